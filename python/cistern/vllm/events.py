# SPDX-License-Identifier: Apache-2.0
"""KV events: blocks that became visible in the store, in vLLM's own event stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..engine.orders import SaveOrder
from ..engine.request import Adapter, Request

MEDIUM = "CPU"
"""vLLM's own name for memory of the host: routers drop a medium that they do not know, or take it for the GPU's."""
MAX_SAVES = 4096


class StoredEvents:
    """Events of published blocks; keeps the tokens of blocks on their way. engine.SaveListener."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._saves: dict[int, tuple[SaveOrder, list[int], Adapter | None]] = {}
        self._events: list[Any] = []

    def ordered(self, order: SaveOrder, request: Request) -> None:
        size = self._block_tokens
        first, last = order.first_block * size, (order.first_block + len(order.keys)) * size
        if len(self._saves) >= MAX_SAVES:  # saves that were abandoned
            del self._saves[next(iter(self._saves))]
        self._saves[order.id] = (order, list(request.token_ids[first:last]), request.adapter)

    def published(self, order_id: int, blocks: int) -> None:
        save = self._saves.pop(order_id, None)
        if save is None:
            return
        from vllm.distributed.kv_events import BlockStored
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        order, tokens, adapter = save
        self._events.append(
            BlockStored(
                block_hashes=[maybe_convert_block_hash(key) for key in order.keys[:blocks]],
                parent_block_hash=maybe_convert_block_hash(order.parent) if order.parent else None,
                token_ids=tokens[: blocks * self._block_tokens],
                block_size=self._block_tokens,
                lora_id=adapter.number if adapter else None,
                medium=MEDIUM,
                lora_name=adapter.name if adapter else None,
            )
        )

    def take(self) -> Iterable[Any]:
        events, self._events = self._events, []
        return events
