# SPDX-License-Identifier: Apache-2.0
"""KV that another connector of the same engine brought, which another engine may have computed.

It counts as computed like all else, and the engine's own prefix cache has it from then on. Saved, it would be in the
namespace of this engine, whose list says how this one computes. So nothing is saved of requests that stand on it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class ForeignBlocks:
    def __init__(self, most: int) -> None:
        """`most`: blocks that the engine's prefix cache has room for. Of more, those used last are known: the others
        have left it."""
        self._most = most
        self._keys: OrderedDict[bytes, None] = OrderedDict()

    def stands_on(self, keys: Sequence[bytes], cached: int, known: int, computed: int) -> bool:
        """Whether a request that begins to be computed stands on such blocks. Of its `keys`, the engine's prefix cache
        had the first `cached`, this side brought those up to `known`, and somebody those up to `computed`."""
        brought = keys[known:computed]
        found = [key for key in keys[:cached] if key in self._keys]
        for key in [*found, *brought]:
            self._keys[key] = None
            self._keys.move_to_end(key)
        while len(self._keys) > self._most:
            self._keys.popitem(last=False)
        return bool(found or brought)

    def prefix_cache_emptied(self) -> None:
        self._keys.clear()
