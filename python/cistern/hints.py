# SPDX-License-Identifier: Apache-2.0
"""Hints: what a caller knows of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MAX_NEXT_TURN_MS = 86_400_000


@dataclass(frozen=True)
class Hints:
    """None of it is needed. It changes the order in which this tenant's blocks leave memory, and when they are read
    from flash into it, and nothing else, and is believed as far as such hints came true before. A wrong one raises
    Invalid."""

    outlook: Literal["unknown", "extended", "ended", "tool"] = "unknown"
    """Whether a later prompt starts with this one: "extended", one does; "ended", none; "tool", one does as soon as a
    tool has answered, which runs now."""
    importance: Literal["normal", "low", "high", "keep"] = "normal"
    """How its blocks count until another prompt uses them: with "low" and "high" a hit counts an eighth and eight
    times; with "keep" they leave after all others, for an hour from their last use, as long as no more than a quarter
    of the blocks in memory are such."""
    next_turn_ms: int = 0
    """When the next turn is expected, from now; 0: not known. At most MAX_NEXT_TURN_MS, and not with "ended"."""
    partial: bool = False
    """The last block is not full: the next turn has another one in its place."""
