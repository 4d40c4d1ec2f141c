# SPDX-License-Identifier: Apache-2.0
"""What the scheduler side tells the workers, and what they tell it: plain values that pickle."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class LoadOrder:
    id: int
    request: str
    namespace: int
    first_block: int
    keys: list[bytes]
    pages: list[list[int]]
    """For each group, its pages of all these blocks, in order; 0: the engine has no page there."""
    deadline_us: int = 0
    worth_us: int = 0
    """0: whenever it is ready."""
    where: str = "memory"
    """The lowest tier that any of it lay in when it was asked for."""
    doomed: bool = False
    """Not to be tried: reported as failed, so that the engine computes."""


@dataclass(frozen=True)
class SaveOrder:
    id: int
    step: int
    namespace: int
    first_block: int
    parent: bytes | None
    keys: list[bytes]
    put_ids: list[list[bytes | None]]
    """For each group one a block; None: the group has no such block (its window is past it)."""
    pages: list[list[int]]
    ttl_s: int = 0
    conversation: str = ""


@dataclass(frozen=True)
class GroupShape:
    name: str
    reach: str
    window_tokens: int
    part_bytes: tuple[int, ...]


@dataclass(frozen=True)
class Hello:
    """What only the worker knows."""

    rank: int
    host: str
    device: str
    isa: str
    page_bytes: tuple[int, ...]
    """For each group, of one page on this rank."""
    layout: tuple[str, ...]
    """For each group, what a page's bytes are, in words."""


@dataclass(frozen=True)
class _Report:
    rank: int
    id: int
    blocks: int
    """Leading blocks of the order that are done: written by this rank, or checked and in the engine's pages."""
    message: str = ""
    moved_bytes: int = 0
    took_us: int = 0


@dataclass(frozen=True)
class SaveReport(_Report):
    """How far this rank has come with a save."""


@dataclass(frozen=True)
class LoadReport(_Report):
    """How far this rank has come with a load."""

    bad_pages: tuple[int, ...] = ()
    """What this rank told the engine not to use."""


@dataclass
class RankReport:
    rank: int
    step: int
    hello: Hello | None = None
    session: int = 0
    """The number of the session that this rank has joined."""
    saves: list[SaveReport] = field(default_factory=list)
    loads: list[LoadReport] = field(default_factory=list)
