# SPDX-License-Identifier: Apache-2.0
"""KV events: blocks that this engine made visible in the store, and those of them that it found lost, in vLLM's own
event stream. decisions/0005 says what routers take from it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

from ..engine.coordinator import PUBLISHED_S
from ..engine.orders import SaveOrder
from ..engine.request import Adapter, Request

MEDIUM = "CPU"
"""vLLM's own name for memory of the host: routers drop a medium that they do not know, or take it for the GPU's. What
lies on flash has the same: the store tells tiers by a match, which begins to bring it into memory."""
MAX_SAVES = 4096
MAX_ANNOUNCED = 1 << 18
"""Blocks whose loss is told, the last ones that were announced: some 40 MB."""
EVENT_BLOCKS = 4096


class StoreEvents:
    """Events of published and of lost blocks; keeps what is told of blocks on their way. engine.SaveListener."""

    def __init__(self, block_tokens: int) -> None:
        self._block_tokens = block_tokens
        self._saves: dict[int, tuple[SaveOrder, list[int], list[Any], Adapter | None]] = {}
        """With the tokens of the blocks, and what each block's hash is of beside them."""
        self._announced: dict[bytes, float] = {}
        """When each block was announced, by its key."""
        self._events: list[Any] = []

    def ordered(self, order: SaveOrder, request: Request) -> None:
        size = self._block_tokens
        first, last = order.first_block * size, (order.first_block + len(order.keys)) * size
        if len(self._saves) >= MAX_SAVES:
            del self._saves[next(iter(self._saves))]
        beside = [request.hashed_beside(begin, begin + size) for begin in range(first, last, size)]
        self._saves[order.id] = (order, list(request.token_ids[first:last]), beside, request.adapter)

    def published(self, order_id: int, blocks: int) -> None:
        save = self._saves.pop(order_id, None)
        if save is None or blocks == 0:
            return
        from vllm.distributed.kv_events import BlockStored
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        order, tokens, beside, adapter = save
        now = time.monotonic()
        for key in order.keys[:blocks]:
            self._announced.pop(key, None)  # the newest are last
            self._announced[key] = now
        while len(self._announced) > MAX_ANNOUNCED:
            del self._announced[next(iter(self._announced))]
        self._events.append(
            BlockStored(
                block_hashes=[maybe_convert_block_hash(key) for key in order.keys[:blocks]],
                parent_block_hash=maybe_convert_block_hash(order.parent) if order.parent else None,
                token_ids=tokens[: blocks * self._block_tokens],
                block_size=self._block_tokens,
                lora_id=adapter.number if adapter else None,
                medium=MEDIUM,
                lora_name=adapter.name if adapter else None,
                extra_keys=beside[:blocks],
            )
        )

    def missing(self, keys: Sequence[bytes], asked_at: float) -> None:
        announced, before = self._announced, asked_at - PUBLISHED_S
        if announced:
            self._remove([key for key in keys if key in announced and announced[key] < before])

    def forked(self) -> None:
        self._saves.clear()
        self._remove(list(self._announced))

    def _remove(self, keys: list[bytes]) -> None:
        if not keys:
            return
        from vllm.distributed.kv_events import BlockRemoved
        from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

        for key in keys:
            del self._announced[key]
        for first in range(0, len(keys), EVENT_BLOCKS):
            hashes = [maybe_convert_block_hash(key) for key in keys[first : first + EVENT_BLOCKS]]
            self._events.append(BlockRemoved(block_hashes=hashes, medium=MEDIUM))

    def take(self) -> Iterable[Any]:
        events, self._events = self._events, []
        return events
