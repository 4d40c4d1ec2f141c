# SPDX-License-Identifier: Apache-2.0
"""An engine's configuration as far as it matters here: read once, by the engine's own package."""

from __future__ import annotations

import socket
from dataclasses import dataclass


class ConfigurationError(ValueError):
    """The engine cannot run with this connector as configured; the message says what to change."""


@dataclass(frozen=True)
class GroupFacts:
    """One of the engine's KV cache groups."""

    name: str
    window_tokens: int
    """Tokens for which its KV is needed, back from a position; 0: all."""
    pages_per_block: int
    """Engine blocks of this group in one block of the store."""
    layers: tuple[str, ...]
    page_bytes: int | None
    """Bytes of one page without padding, over all layers of one rank; None: the engine does not say."""


@dataclass(frozen=True)
class EngineFacts:
    ranks: int
    """Processes that each hold a share of the KV and report every order."""
    identical_ranks: int
    """Number of consecutive ranks that hold the same KV."""
    block_tokens: int
    """Tokens of a block of the store: a block of the engine's scheduler, over all groups."""
    hash_tokens: int
    """Tokens of one hash; divides `block_tokens`."""
    pages: int
    """Engine blocks of each group, the null page included."""
    groups: tuple[GroupFacts, ...]
    drafts: bool
    """Whether the last block's KV may come from a draft."""
    logger: str
    """Name of the logger, under the engine's own, so that its configuration holds."""
    adapters: str = ""
    """What of an adapter's files the engine applies, and how, where that is not by the files alone."""
    beside_others: bool = False
    """Whether another connector of the engine may bring KV that another engine has computed."""
    name: str = ""
    """What the engine is called where nothing else is said: 1 to 64 visible ASCII characters, or nothing."""
    labels: tuple[tuple[str, str], ...] = ()
    """What people call what it serves, of each of its namespaces; no part of what is shared."""


def host() -> str:
    """Identity of this boot of this host: processes with the same one can share memory, unless containers part them."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return socket.gethostname()
