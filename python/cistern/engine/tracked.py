# SPDX-License-Identifier: Apache-2.0
"""A request of the engine, as the scheduler side knows it."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from .. import Chain
from .adapters import LoadedAdapter
from .matches import Match
from .plan import PlannedRequest
from .request import Request


@dataclass
class TrackedRequest:
    """A request of the engine, the plan's part of it, and the store's last answer."""

    request: Request
    planned: PlannedRequest
    chain: Chain
    match: Match = field(default_factory=Match)
    computing: bool = False
    """Scheduled since its last match: its computed tokens are computed, or being computed."""
    matched_at: int = 0
    """Tokens that were computed at its last match: where a load begins."""
    loaded_to: int = 0
    """Tokens that were computed then, or that a load of this side was to bring."""
    adapter: Future[LoadedAdapter] | None = None
    """What the engine has of its adapter, until its namespace is known by that."""
    looked_at: float = 0.0
    """When the last look at its adapter's files was asked for."""
    loaded: LoadedAdapter | None = None
    """That, as it was when it was first computed or its namespace became known."""
    digest: str = ""
    """Of its adapter, once its namespace is known by it."""
    may: tuple[bool, bool] = (False, False)
    """Whether it may be saved and loaded once its namespace is known."""
    first_asked: float = 0.0
    """When it first waited for the ranks to look at their weights."""
    own: bool = True
    """Whether what it stands on is this engine's own, where another connector brings KV too."""
    noted: int = 0
    """Leading blocks that OwnBlocks has heard of since it began to be computed."""
    used: int = 0
    """Leading blocks that count as used by its conversation."""
    ends_after: frozenset[str] | None = None
    """The requests of its conversation that were there before it, if it ends that."""
    counted: bool = False
    probes: bool | None = None
    """Whether it loads what is not worth it; None: nothing of it was declined."""
    prompt_tokens: int = 0
    """Of its prompt when it came."""
    stopped_until: float = 0.0
    """When it saves on; 0: it has not stopped."""
    stops: int = 0
    """How often it has."""
    loading_since: float = 0.0
    """When the engine had made room for its load."""

    @property
    def waits(self) -> bool:
        """Whether it waits for the engine, and for nothing of the store."""
        return not (self.computing or self.planned.load or self.match.pending or self.adapter)

    def stop_saving(self) -> None:
        """What its engine computes for it stands on KV of another one."""
        self.may = False, self.may[1]
        self.planned.may_save = False

    def stop_sharing(self) -> None:
        """What its engine computes for it from here on is not what its keys say."""
        self.may = self.planned.may_save, self.planned.may_load = (False, False)
