# SPDX-License-Identifier: Apache-2.0
"""The counters as vLLM's connector statistics and as Prometheus metrics."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

from ..engine.stats import COUNTERS


class CisternStats(KVConnectorStats):
    """Counters of one interval."""

    data: dict[str, Any]

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data if data is not None else {})

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, count in other.data.items():
            self.data[name] = self.data.get(name, 0) + count
        return self

    def reduce(self) -> dict[str, int | float]:
        short: dict[str, int | float] = {name: self.data[name] for name in COUNTERS if name in self.data}
        if self.data.get("asked_tokens"):
            short["hit_share"] = round(self.data.get("hit_tokens", 0) / self.data["asked_tokens"], 3)
        return short

    def is_empty(self) -> bool:
        return not self.data


class CisternMetrics(KVConnectorPromMetrics):
    """`vllm:cistern_NAME_total`, one for each counter."""

    def __init__(self, vllm_config: Any, metric_types: Any, labelnames: list[str], values: Any) -> None:
        super().__init__(vllm_config, metric_types, labelnames, values)
        self._counters = {
            name: {
                engine: counter.labels(*labels) for engine, labels in values.items()
            }
            for name, help in COUNTERS.items()
            for counter in [
                self._counter_cls(name=f"vllm:cistern_{name}", documentation=help + ".", labelnames=labelnames)
            ]
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, count in transfer_stats_data.items():
            if name in self._counters and engine_idx in self._counters[name]:
                self._counters[name][engine_idx].inc(count)
