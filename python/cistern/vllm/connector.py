# SPDX-License-Identifier: Apache-2.0
"""The connector as vLLM knows it: each call handed to the side that it belongs to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)

from . import options, versions
from .groups import read_groups
from .link import Target
from .orders import LoadOrder, RankReport, SaveOrder
from .scheduler import Scheduler
from .stats import CisternMetrics, CisternStats
from .worker import Worker

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


@dataclass
class StepOrders(KVConnectorMetadata):
    """What the scheduler side tells every rank with one step."""

    step: int
    session: Target | None
    session_number: int
    loads: list[LoadOrder]
    saves: list[SaveOrder]
    computes: bool
    """False: a step for the connectors alone."""


@dataclass
class Reports(KVConnectorWorkerMetadata):
    """What the ranks tell the scheduler side with one step's output."""

    ranks: list[RankReport] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Reports:
        assert isinstance(other, Reports)
        return Reports(self.ranks + other.ranks)


class CisternConnector(KVConnectorBase_V1, SupportsHMA):
    """A shared store for KV blocks: docs/vllm.md."""

    _cache_hit_source = versions.hit_source()

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        chosen = options.read(self._kv_transfer_config.kv_connector_extra_config)
        versions.check(vllm.__version__, chosen.allow_untested)
        self._scheduler: Scheduler | None = None
        self.worker: Worker | None = None
        self._stepped_by_caller: bool | None = None
        if role is KVConnectorRole.SCHEDULER:
            self._scheduler = Scheduler(chosen, vllm_config, kv_cache_config, vllm.__version__)
        else:
            block_tokens, _ = versions.block_sizes(vllm_config, kv_cache_config)
            read_groups(vllm_config, kv_cache_config, block_tokens)
            self.worker = Worker(chosen, vllm_config, kv_cache_config, vllm_config.parallel_config.rank)

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        transfer = vllm_config.kv_transfer_config
        extra = transfer.kv_connector_extra_config if transfer is not None else None
        return options.read(extra).kv_cache_layout or None

    # ------------------------------------------------------------------ the worker's side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        assert self.worker is not None
        self.worker.register(kv_caches)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert self.worker is not None and isinstance(connector_metadata, StepOrders)
        self.worker.begin(connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Loads were started when the step's orders came: they fill pages that no running step touches."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are whole before their request runs."""

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        """Saves are of whole pages, after the step."""

    def wait_for_save(self) -> None:
        if self.worker is not None and self.has_connector_metadata():
            orders = self._get_connector_metadata()
            assert isinstance(orders, StepOrders)
            if orders.computes:
                self.worker.save(orders)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        assert self.worker is not None
        finished, _ = self.worker.finished()
        return None, finished or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        assert self.worker is not None
        finished, failed = self.worker.finished()
        return KVConnectorTransferResults(finished_recving=finished, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        assert self.worker is not None
        return self.worker.bad_pages()

    def build_connector_worker_meta(self) -> Reports | None:
        if self.worker is None or (report := self.worker.report()) is None:
            return None
        return Reports([report])

    # ------------------------------------------------------------------ the scheduler's side

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        if self._scheduler is not None:
            self._scheduler.bind(kv_cache_manager)

    def on_new_request(self, request: Any) -> None:
        assert self._scheduler is not None
        self._scheduler.arrived(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self._scheduler is not None
        return self._scheduler.match(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self._scheduler is not None
        if num_external_tokens:
            self._scheduler.allocated(request, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepOrders:
        assert self._scheduler is not None
        return StepOrders(*self._scheduler.orders(scheduler_output.num_scheduled_tokens))

    def update_connector_output(self, connector_output: Any) -> None:
        assert self._scheduler is not None
        reports = connector_output.kv_connector_worker_meta
        self._scheduler.came_back(
            reports.ranks if isinstance(reports, Reports) else [], set(connector_output.invalid_block_ids or ())
        )
        if self._stepped_by_caller is None:
            self._stepped_by_caller = versions.stepped_by_caller()
        if self._stepped_by_caller and (worker := _worker_of_this_process()) is not None:
            self._scheduler.finish_in_process(worker)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        assert self._scheduler is not None
        return False, self._scheduler.ended(request, block_ids)

    def has_pending_push_work(self) -> bool:
        return self._scheduler is not None and self._scheduler.pending

    def take_events(self) -> Iterable[Any]:
        return self._scheduler.stored.take() if self._scheduler is not None else ()

    def reset_cache(self) -> bool | None:
        return self._scheduler.reset() if self._scheduler is not None else None

    # ------------------------------------------------------------------ both

    def get_kv_connector_stats(self) -> CisternStats | None:
        return self._scheduler.stats.take() if self._scheduler is not None else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> CisternStats:
        return CisternStats(data=data if data is not None else {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> CisternMetrics:
        return CisternMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self._scheduler is not None:
            self._scheduler.close()
        if self.worker is not None:
            self.worker.close()


def _worker_of_this_process() -> Worker | None:
    """The worker's side, where engine and worker are one process."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    if not has_kv_transfer_group():
        return None
    group = get_kv_transfer_group()
    for one in getattr(group, "sub_connectors", None) or [group]:
        if isinstance(one, CisternConnector) and one.worker is not None:
            return one.worker
    return None
