# SPDX-License-Identifier: Apache-2.0
"""KV events: what became visible in the store, in the engine's own event stream."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .orders import SaveOrder
    from .plan import Plan

MEDIUM = "CISTERN"
MOST_KNOWN = 4096


class Stored:
    """Remembers the tokens of blocks on their way, if anybody listens, and makes events of those that arrive."""

    def __init__(self, vllm_config: Any) -> None:
        events = vllm_config.kv_events_config
        self._on = events is not None and bool(events.enable_kv_cache_events)
        self._known: dict[int, tuple[SaveOrder, list[int], int, str | None, int | None]] = {}
        self._ready: list[Any] = []

    def ordered(self, orders: Sequence[SaveOrder], plan: Plan, live: Mapping[str, Any]) -> None:
        if not self._on:
            return
        size = plan.limits.block_tokens
        for order in orders:
            owner = live.get(plan.request_of(order.id))
            if owner is None:
                continue
            first, last = order.first_block * size, (order.first_block + len(order.keys)) * size
            adapter = owner.request.lora_request
            if len(self._known) >= MOST_KNOWN:  # those of saves that came to nothing
                del self._known[next(iter(self._known))]
            self._known[order.id] = (
                order, list(owner.request.all_token_ids[first:last]), size,
                adapter.lora_name if adapter else None, adapter.lora_int_id if adapter else None,
            )

    def published(self, order_id: int, blocks: int) -> None:
        known = self._known.pop(order_id, None)
        if known is None:
            return
        from vllm.distributed.kv_events import BlockStored
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        order, tokens, size, adapter, adapter_id = known
        self._ready.append(
            BlockStored(
                block_hashes=[maybe_convert_block_hash(key) for key in order.keys[:blocks]],
                parent_block_hash=maybe_convert_block_hash(order.parent) if order.parent else None,
                token_ids=tokens[: blocks * size],
                block_size=size,
                lora_id=adapter_id,
                medium=MEDIUM,
                lora_name=adapter,
            )
        )

    def take(self) -> Iterable[Any]:
        ready, self._ready = self._ready, []
        return ready
