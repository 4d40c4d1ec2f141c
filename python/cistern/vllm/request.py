# SPDX-License-Identifier: Apache-2.0
"""vLLM's requests and pages, as the scheduler side sees them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..engine.keys import content_hashed
from ..engine.request import Adapter, Pages
from . import versions


def adapter_of(lora: Any) -> Adapter | None:
    """engine.Adapter of a LoRARequest, or of none."""
    if lora is None:
        return None
    place = lora.lora_path
    if isinstance(place, str) and place.startswith("~"):  # as vLLM's loader has it
        place = os.path.expanduser(place)
    form = "fused experts" if getattr(lora, "is_3d_lora_weight", False) else ""
    return Adapter(
        lora.lora_name, lora.lora_int_id, place, bool(getattr(lora, "load_inplace", False)), form,
        versions.adapter_key(lora),
    )


class VllmRequest:
    """engine.Request over a vllm.v1.request.Request."""

    __slots__ = ("_request", "_shares_images")

    def __init__(self, request: Any, shares_images: bool) -> None:
        """`shares_images`: whether the names of this engine's images are known to be digests of their content."""
        self._request, self._shares_images = request, shares_images

    @property
    def id(self) -> str:
        return str(self._request.request_id)

    @property
    def prompt_tokens(self) -> int:
        return int(self._request.num_prompt_tokens)

    @property
    def tokens(self) -> int:
        return int(self._request.num_tokens)

    @property
    def computed_tokens(self) -> int:
        return int(self._request.num_computed_tokens)

    @property
    def placeholder_tokens(self) -> int:
        return int(self._request.num_output_placeholders)

    @property
    def token_ids(self) -> Sequence[int]:
        ids: Sequence[int] = self._request.all_token_ids
        return ids

    @property
    def hashes(self) -> Sequence[bytes]:
        hashes: Sequence[bytes] = self._request.block_hashes
        return hashes

    @property
    def adapter(self) -> Adapter | None:
        return adapter_of(self._request.lora_request)

    @property
    def content_hashed(self) -> bool:
        images = self._request.mm_features or ()
        return not images or (self._shares_images and all(content_hashed(one.identifier) for one in images))

    def hashed_beside(self, first: int, last: int) -> tuple[Any, ...] | None:
        return versions.event_extra_keys(self._request, first, last)

    @property
    def skips_cache(self) -> bool:
        return bool(getattr(self._request, "skip_reading_prefix_cache", False))


class VllmPages:
    """engine.PagePool over vLLM's KV cache manager."""

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._pool = manager.block_pool

    def pages_of(self, request_id: str) -> Pages:
        pages: Pages = self._manager.get_block_ids(request_id)
        return pages

    def reference(self, pages: Sequence[int]) -> None:
        self._pool.touch([self._pool.blocks[page] for page in pages])

    def used(self) -> int:
        return int(self._pool.num_gpu_blocks - self._pool.get_num_free_blocks()) - 1  # the null block

    def release(self, pages: Sequence[int]) -> None:
        self._pool.free_blocks([self._pool.blocks[page] for page in pages])
