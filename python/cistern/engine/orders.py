# SPDX-License-Identifier: Apache-2.0
"""Orders of the scheduler side for the ranks, and their reports: plain values that pickle."""

from __future__ import annotations

from dataclasses import dataclass, field

from .session import SessionSpec


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
    """The lowest tier that any of its blocks lay in at the match."""
    invalid: bool = False
    """Not carried out: reported as failed, so that the engine computes."""


@dataclass(frozen=True)
class SaveOrder:
    id: int
    step: int
    namespace: int
    first_block: int
    parent: bytes | None
    keys: list[bytes]
    put_ids: list[list[bytes | None]]
    """For each group one id a block; None: the group has no such block (its window is past it)."""
    pages: list[list[int]]
    ttl_s: int = 0
    conversation: str = ""
    invalid: bool = False
    """Not carried out: reported as failed. Its session's namespaces are not those of now."""


@dataclass
class StepOrders:
    """One step's orders for every rank."""

    step: int
    spec: SessionSpec | None
    """None: every rank has joined the session."""
    session_number: int
    loads: list[LoadOrder]
    saves: list[SaveOrder]
    computes: bool
    """False: a step for the connectors alone."""
    epoch: int = 0
    """Number of the engine's resets: a rank ends earlier loads as failed."""
    failed: list[LoadOrder] = field(default_factory=list)
    """Loads that every rank has ended well, of before a reset: reported once more, as failed."""
    weights_step: int = 0
    """The last change of weights that the scheduler side has heard of, by the step at which it was found."""
    looks: bool = False
    """Whether the ranks look at their weights before anything else."""
    timed: bool = False
    """Whether the ranks report the step though it saves nothing: the scheduler side measures it."""


@dataclass(frozen=True)
class RankFacts:
    """Facts that only a rank knows of itself: part of its first report."""

    rank: int
    host: str
    device: str
    isa: str
    page_bytes: tuple[int, ...]
    """For each group, of one page on this rank."""
    layout: tuple[str, ...]
    """For each group, the text of its Layout and what writes its pages."""
    unfit: str = ""
    """Why this rank's pages cannot be moved: nothing is shared then."""


@dataclass(frozen=True)
class _Report:
    rank: int
    id: int
    blocks: int
    """Leading blocks of the order that are done: written by this rank, or checked and in the engine's pages."""
    message: str = ""
    code: int = 0
    """Of what the message says, where a block's outcome has one."""
    moved_bytes: int = 0
    took_us: int = 0


@dataclass(frozen=True)
class SaveReport(_Report):
    """End of a save on this rank."""


@dataclass(frozen=True)
class LoadReport(_Report):
    """End of a load on this rank."""

    bad_pages: tuple[int, ...] = ()
    """Pages that this rank told the engine not to use."""


@dataclass
class RankReport:
    rank: int
    step: int
    facts: RankFacts | None = None
    session: int = 0
    """The number of the session that this rank has joined."""
    namespaces: int = 0
    """How many of that session's namespaces it has."""
    begun: int = 0
    """The last step that this rank has begun, where the scheduler side asks, or where its weights changed."""
    weights_step: int = 0
    """The step at whose beginning this rank last found its weights changed."""
    saves: list[SaveReport] = field(default_factory=list)
    loads: list[LoadReport] = field(default_factory=list)
