# SPDX-License-Identifier: Apache-2.0
"""Blocks of the engine's prefix cache that this engine has computed, where another connector of it brings KV too.

What another one brings another engine may have computed. It counts as computed like all else, and the prefix cache has
it from then on. Saved, it would be in the namespace of this engine, whose list says how this one computes. So a request
is saved where it stands on nothing else than what was computed here, or loaded by this side; of what is not known, and
of what was forgotten, nothing is.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from .tracked import TrackedRequest


class OwnBlocks:
    def __init__(self, most: int, block_tokens: int) -> None:
        """`most`: blocks that the engine's prefix cache has room for."""
        self._most, self._block_tokens = most, block_tokens
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def begin(self, tracked: TrackedRequest) -> bool:
        """A request begins to be computed, or begins again: whether all that it stands on is this engine's own. Blocks
        that are so in part are not."""
        keys, size = tracked.planned.keys, self._block_tokens
        brought = tracked.request.computed_tokens > tracked.loaded_to
        cached = keys[: -(-min(tracked.matched_at, tracked.request.computed_tokens) // size)]
        tracked.own = not brought and all(key in self._keys for key in cached)
        tracked.noted = 0
        return tracked.own

    def computes(self, tracked: TrackedRequest, tokens: int) -> None:
        """So many of its tokens are computed once the step is done that is being planned."""
        keys = tracked.planned.keys
        if tracked.own:
            end = max(tracked.noted, tokens // self._block_tokens)
            self._add(keys[tracked.noted : end])
            tracked.noted = min(end, len(keys))
        else:
            self._remove(keys[max(tracked.noted, tracked.loaded_to // self._block_tokens) :])
            tracked.noted = len(keys)

    def end(self, tracked: TrackedRequest) -> None:
        """A request ends that was not computed since its last match: what was brought for it is in the prefix cache."""
        if tracked.request.computed_tokens > tracked.loaded_to:
            self._remove(tracked.planned.keys[tracked.loaded_to // self._block_tokens :])

    def prefix_cache_emptied(self) -> None:
        self._keys.clear()

    def _add(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._most:
            self._keys.popitem(last=False)

    def _remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._keys.pop(key, None)
