# SPDX-License-Identifier: Apache-2.0
"""From the engine's hashes to the store's keys.

The engine chains one hash every `hash_tokens` tokens over everything before it (tokens, salt, adapter, images), so
the hash at a block's end names the whole prefix up to it: it is the key of the block that ends there.
"""

from __future__ import annotations

from collections.abc import Sequence


def new_keys(hashes: Sequence[bytes], known: int, hash_tokens: int, block_tokens: int) -> list[bytes]:
    """The keys of whole blocks beyond the `known` first. `block_tokens` is a multiple of `hash_tokens`."""
    per_block = block_tokens // hash_tokens
    return [bytes(hashes[end - 1]) for end in range((known + 1) * per_block, len(hashes) + 1, per_block)]


def content_hashed(identifier: str | None) -> bool:
    """Whether an image's (or sound's) identifier is a digest of its content: 64 hexadecimal digits or more, perhaps
    behind an adapter's name. A counter or a client's own name is none."""
    if not identifier:
        return False
    digest = identifier.rsplit(":", 1)[-1]
    return len(digest) >= 64 and all(c in "0123456789abcdef" for c in digest)
