# SPDX-License-Identifier: Apache-2.0
"""What the connector counts, as vLLM's connector statistics and as Prometheus metrics."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats

COUNTERS = {
    "asked_tokens": "Tokens of prompts for which the store was asked",
    "hit_tokens": "Of those, tokens that were loaded",
    "loads": "Loads that ended",
    "failed_loads": "Loads that did not bring everything: the engine computed the rest",
    "loaded_bytes": "Bytes loaded into the engine's pages, all ranks",
    "load_us": "Time from ordering a load to its report, the slowest rank, in microseconds",
    "saves": "Saves that ended",
    "published_blocks": "Blocks that became visible to every engine of this host",
    "abandoned_blocks": "Blocks that were copied, or to be, and given up",
    "saved_bytes": "Bytes copied from the engine's pages, all ranks",
    "left_out": "Times that a save waited for a later step because too many pages were on their way",
    "resets": "Resets of the engine's caches that reached the connector",
    "without_node": "Questions that were answered with no hit because no node was connected",
}


class CisternStats(KVConnectorStats):
    """Counters of one interval; `total` keeps those of the scheduler side's whole life."""

    data: dict[str, Any]
    total: dict[str, int]

    def __init__(self, data: dict[str, Any] | None = None) -> None:
        super().__init__(data=data if data is not None else {})
        self.total = {}

    def reset(self) -> None:
        self.data = {}

    def add(self, name: str, count: int = 1) -> None:
        if count:
            self.data[name] = self.data.get(name, 0) + count
            self.total[name] = self.total.get(name, 0) + count

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        for name, count in other.data.items():
            self.add(name, count)
        return self

    def reduce(self) -> dict[str, int | float]:
        short: dict[str, int | float] = {name: self.data[name] for name in COUNTERS if name in self.data}
        if self.data.get("asked_tokens"):
            short["hit_share"] = round(self.data.get("hit_tokens", 0) / self.data["asked_tokens"], 3)
        return short

    def is_empty(self) -> bool:
        return not self.data

    def take(self) -> CisternStats | None:
        """What was counted since the last call."""
        if not self.data:
            return None
        taken, self.data = CisternStats(data=self.data), {}
        return taken


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
