# SPDX-License-Identifier: Apache-2.0
"""vLLM's connector: each call passed on to the scheduler side, or to this process's rank."""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import vllm

from ..engine import options
from ..engine.coordinator import Coordinator
from ..engine.facts import ConfigurationError
from ..engine.identity import Fields
from ..engine.node import check_node_options
from ..engine.orders import RankReport, StepOrders
from ..engine.rank import Rank
from ..engine.weights import Weights
from . import identity, updates, versions
from .events import StoreEvents
from .facts import LOGGER, VllmFacts, images_counted, read_facts
from .request import VllmPages, VllmRequest

try:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorMetadata,
        KVConnectorRole,
        KVConnectorTransferResults,
        KVConnectorWorkerMetadata,
    )

    from .stats import CisternMetrics, CisternStats
    from .without import WithoutCistern
except ImportError as error:
    raise versions.lacking(vllm.__version__, error) from error

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


WEIGHTS_WAIT_S = 2.0
"""Time that a starting engine waits for its weights' identity: small ones are read by then, known ones at once."""


@dataclass
class StepMetadata(KVConnectorMetadata):
    """The scheduler side's orders of one step, for every rank."""

    orders: StepOrders


@dataclass
class Reports(KVConnectorWorkerMetadata):
    """The ranks' reports to the scheduler side, with one step's output."""

    ranks: list[RankReport] = field(default_factory=list)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Reports:
        assert isinstance(other, Reports)
        return Reports(self.ranks + other.ranks)


class CisternConnector(WithoutCistern):
    """A shared store for KV blocks: docs/vllm.md."""

    _hit_sources = versions.hit_sources()

    def __new__(cls, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> Any:
        """A connector that does nothing, where this engine's KV is of a kind that Cistern does not know."""
        chosen = _options(vllm_config.kv_transfer_config)
        versions.check(vllm.__version__, chosen.allow_untested)
        try:
            read_facts(vllm_config, kv_cache_config)
            identity.engine_fields(vllm_config, kv_cache_config, vllm.__version__)
        except ConfigurationError as error:
            if chosen.required:
                raise
            if role is KVConnectorRole.SCHEDULER:
                logging.getLogger(LOGGER).warning("cistern: this engine runs without Cistern: %s", error)
            return WithoutCistern(vllm_config, role, kv_cache_config)
        return super().__new__(cls)

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        chosen = _options(self._kv_transfer_config)
        facts = read_facts(vllm_config, kv_cache_config)
        self.coordinator: Coordinator | None = None
        self.rank: Rank | None = None
        self._events: StoreEvents | None = None
        self._stepped_by_caller: bool | None = None
        self._shares_images = chosen.share_images and not images_counted(vllm_config)
        if role is KVConnectorRole.SCHEDULER:
            self._events = StoreEvents(facts.engine.block_tokens) if facts.publishes_events else None
            _check_failure_policy(versions.engine_transfer_config(vllm_config), logging.getLogger(facts.engine.logger))
            fields = identity.engine_fields(vllm_config, kv_cache_config, vllm.__version__)
            weights = Weights(identity.weights_finder(vllm_config), logging.getLogger(facts.engine.logger))
            weights.wait(WEIGHTS_WAIT_S)

            def known() -> Fields | None:
                return fields.with_(("weights", weights.value)) if weights.value else None

            self.coordinator = Coordinator(chosen, facts.engine, known, lambda: _hash_fields(facts), self._events)
            if getattr(vllm_config, "lora_config", None) is not None:
                updates.watch_adapters(versions.core_of_caller(), self.coordinator)
        else:
            self.rank = Rank(chosen, facts.engine, facts.rank)
            self._worker = versions.worker_of_caller()

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        return _options(vllm_config.kv_transfer_config).kv_cache_layout or None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """No. vLLM asks when it reads its configuration, long before it loads weights: a wrong option is told then."""
        check_node_options(options.read(extra_config, "kv_connector_extra_config"))
        return False

    # ------------------------------------------------------------------ the worker's side

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        assert self.rank is not None
        self.rank.register(kv_caches, versions.page_writers(self._vllm_config), versions.cpu_features())
        updates.watch(self._worker, self.rank)

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        super().bind_connector_metadata(connector_metadata)
        assert self.rank is not None and isinstance(connector_metadata, StepMetadata)
        self.rank.begin(connector_metadata.orders)

    def wait_for_save(self) -> None:
        if self.rank is not None and self.has_connector_metadata():
            metadata = self._get_connector_metadata()
            assert isinstance(metadata, StepMetadata)
            if metadata.orders.computes:
                self.rank.save(metadata.orders)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        assert self.rank is not None
        finished, _ = self.rank.finished()
        return None, finished or None

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        assert self.rank is not None
        finished, failed = self.rank.finished()
        return KVConnectorTransferResults(finished_recving=finished, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        assert self.rank is not None
        return self.rank.bad_pages()

    def build_connector_worker_meta(self) -> Reports | None:
        if self.rank is None or (report := self.rank.report()) is None:
            return None
        return Reports([report])

    # ------------------------------------------------------------------ the scheduler's side

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        super().bind_kv_cache_manager(kv_cache_manager)
        if self.coordinator is not None:
            self.coordinator.use_pages(VllmPages(kv_cache_manager))
            updates.watch_prefix_cache(kv_cache_manager, self.coordinator)

    def on_new_request(self, request: Any) -> None:
        assert self.coordinator is not None
        parameters, wrong = options.read_parameters(request.kv_transfer_params)
        for text in wrong:
            self.coordinator.warn(
                "parameters", f"kv_transfer_params: {text}; the request is neither saved nor loaded"
            )
        if request.mm_features and not self._shares_images:
            self.coordinator.warn(
                "images",
                "requests with images, video or sound are not shared: a client may have named them, and vLLM takes "
                "such a name for their content. Where no client does, and vLLM has its prefix cache or its processor "
                'cache on, set "share_images": true in kv_connector_extra_config',
            )
        self.coordinator.add_request(VllmRequest(request, self._shares_images), parameters)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        assert self.coordinator is not None
        return self.coordinator.match(request.request_id, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        assert self.coordinator is not None
        if num_external_tokens:
            self.coordinator.begin_load(request.request_id, tuple(blocks.get_block_ids()), num_external_tokens)

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        """Asked behind update_state_after_alloc(), for the engine's metrics. What vLLM has no name for is left out: it
        counts the whole hit as of no known source then."""
        assert self.coordinator is not None
        tokens = self.coordinator.load_tiers(request.request_id, num_external_tokens)
        return {self._hit_sources[tier]: count for tier, count in tokens.items() if tier in self._hit_sources}

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        assert self.coordinator is not None
        return StepMetadata(self.coordinator.step_orders(scheduler_output.num_scheduled_tokens))

    def update_connector_output(self, connector_output: Any) -> None:
        assert self.coordinator is not None
        reports = connector_output.kv_connector_worker_meta
        self.coordinator.handle_reports(
            reports.ranks if isinstance(reports, Reports) else [], set(connector_output.invalid_block_ids or ())
        )
        if connector_output.finished_recving:
            connector_output.finished_recving -= self.coordinator.withhold(connector_output.finished_recving)
        if self._stepped_by_caller is None:
            self._stepped_by_caller = versions.stepped_by_caller()
            if self._stepped_by_caller:
                atexit.register(_finish_in_process, weakref.ref(self.coordinator))
        if self._stepped_by_caller and (rank := rank_of_this_process()) is not None:
            self.coordinator.left_by_caller(rank)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        assert self.coordinator is not None
        return False, self.coordinator.end_request(request.request_id, tuple(block_ids))

    def has_pending_push_work(self) -> bool:
        return self.coordinator is not None and self.coordinator.pending

    def has_pending_block_frees(self) -> bool:
        """vLLM asks where it would preempt a request otherwise."""
        return self.coordinator is not None and self.coordinator.makes_room()

    def take_events(self) -> Iterable[Any]:
        return self._events.take() if self._events is not None else ()

    def reset_cache(self) -> bool | None:
        return self.coordinator.reset() if self.coordinator is not None else None

    # ------------------------------------------------------------------ both

    def get_kv_connector_stats(self) -> CisternStats | None:
        counted = self.coordinator.stats.take() if self.coordinator is not None else {}
        return CisternStats(data=counted) if counted else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> CisternStats:
        return CisternStats(data=data if data is not None else {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: VllmConfig, metric_types: Any, labelnames: list[str], per_engine_labelvalues: Any
    ) -> CisternMetrics:
        return CisternMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        if self.coordinator is not None:
            self.coordinator.close()
        if self.rank is not None:
            self.rank.close()


def _options(transfer_config: Any) -> options.Options:
    extra = transfer_config.kv_connector_extra_config if transfer_config is not None else None
    return options.read(extra, "kv_connector_extra_config")


def _check_failure_policy(transfer_config: Any, logger: logging.Logger) -> None:
    policy = getattr(transfer_config, "kv_load_failure_policy", "fail")
    if policy != "recompute":
        logger.error(
            'cistern: kv_load_failure_policy is "%s": a request of which a block was evicted while it was being loaded '
            'ends with an error. Set "kv_load_failure_policy": "recompute" in --kv-transfer-config (of MultiConnector '
            "itself, where that is used): then it is computed instead",
            policy,
        )


def _hash_fields(facts: VllmFacts) -> tuple[tuple[str, str], ...]:
    seed, engine = versions.hash_seed(), facts.engine
    return identity.hash_fields(facts.hash_algorithm, seed, engine.hash_tokens, engine.block_tokens, len(seed))


def _finish_in_process(of: weakref.ref[Coordinator]) -> None:
    if (coordinator := of()) is not None:
        coordinator.finish_in_process()


def rank_of_this_process() -> Rank | None:
    """The rank, where engine and worker are one process."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    if not has_kv_transfer_group():
        return None
    connectors = get_kv_transfer_group()
    for one in getattr(connectors, "sub_connectors", None) or [connectors]:
        if isinstance(one, CisternConnector) and one.rank is not None:
            return one.rank
    return None
