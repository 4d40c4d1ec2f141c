# SPDX-License-Identifier: Apache-2.0
"""Tiers of a matched chain's blocks, and when they could be read: on plain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

MOST_READY_US = 3_600_000_000
"""What a block of a lower tier is held to take at most: a load is planned by it, whatever the node says."""


class Run(Protocol):
    """Blocks that follow each other in one tier: cistern.MatchRun."""

    @property
    def blocks(self) -> int: ...
    @property
    def where(self) -> str: ...
    @property
    def ready_in_us(self) -> int: ...


def load_ends(runs: Sequence[Run], first_block: int) -> list[tuple[int, float]]:
    """Ends of runs up to which a load from `first_block` on may go, the furthest first; with each the seconds until its
    blocks of lower tiers could be in memory, one run after the other."""
    ends: list[tuple[int, float]] = []
    blocks, ready_s = 0, 0.0
    for run in runs:
        blocks += run.blocks
        if blocks <= first_block:
            continue
        if run.where != "memory":
            ready_s += min(run.ready_in_us, MOST_READY_US) / 1e6
        ends.append((blocks, ready_s))
    return ends[::-1]


def tokens_by_tier(runs: Sequence[Run], block_tokens: int, begin: int, end: int) -> dict[str, int]:
    """How many of a prompt's tokens [begin, end) lie in each tier, of those that have any."""
    tokens: dict[str, int] = {}
    first = 0
    for run in runs:
        last = first + run.blocks * block_tokens
        if (count := min(last, end) - max(first, begin)) > 0:
            tokens[run.where] = tokens.get(run.where, 0) + count
        first = last
    return tokens


def lowest_tier(runs: Sequence[Run], first_block: int, end_block: int) -> str:
    """The lowest tier that any of these blocks lies in."""
    begin = 0
    for run in runs:
        if run.where != "memory" and begin < end_block and begin + run.blocks > first_block:
            return run.where
        begin += run.blocks
    return "memory"
