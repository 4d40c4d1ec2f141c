# SPDX-License-Identifier: Apache-2.0
"""Matches for an engine's scheduler, whose thread waits for none: begun when a request arrives, looked at when it is
scheduled. A match begins to fetch what lies on flash."""

from __future__ import annotations

import time
from weakref import WeakSet

from .. import Busy, Chain, Error, Gone, Hints, MatchRun, Missed, PendingMatch
from .connection import Connection
from .session import Session
from .warnings import Warn

ANSWER_GOOD_S = 1.0
"""Time for which an answer of the store is given again without asking."""
QUIET_S = 1.0
"""Time without a question after the node did not answer in time."""
SOON_S = 0.0005
"""Time that the scheduler's thread spends looking for an answer: one from memory is there by then, and another step for
it would cost more."""
LOOK_AGAIN_S = 0.00002
ABANDON_US = 30_000_000
"""Deadline of the question itself. A match_timeout_s counts from the first look on: an engine may be long in a step."""
MAX_PENDING, MAX_PENDING_KEYS = 128, 13_000
"""Questions under way, and their keys: half of the calls and of the arguments that a session may have in flight, so
that saves are published meanwhile. A further one is asked when there is room; the first may have any number of keys."""


class Match:
    """The store's answers about one request's chain."""

    def __init__(self, hints: Hints | None = None) -> None:
        self.hints = hints
        """What the client said of the request."""
        self.found = -1
        """Leading blocks that the store had; -1: not known, or the answer is forgotten."""
        self.runs: tuple[MatchRun, ...] = ()
        """Tiers of the blocks found."""
        self.keys = 0
        """Keys that were asked for."""
        self.asked_at = 0.0
        self.looked_at = 0.0
        """First look for the answer; 0: none yet."""
        self.pending: PendingMatch | None = None
        self.session: Session | None = None
        """The one that was asked."""
        self.news = False
        """Whether the store itself said `found`, and nobody has passed it on yet; a node that is silent or gone says
        nothing."""

    def forget(self) -> None:
        self.found, self.looked_at, self.pending = -1, 0.0, None

    def fresh(self, keys: int) -> bool:
        return self.found >= 0 and self.keys == keys and time.monotonic() - self.asked_at < ANSWER_GOOD_S


class Matches:
    def __init__(self, connection: Connection, timeout_s: float, warn: Warn) -> None:
        """`timeout_s`: from the first look on, after which the node counts as silent."""
        self._connection = connection
        self._timeout_s = timeout_s
        self._warn = warn
        self._quiet_until = 0.0
        self._pending: WeakSet[Match] = WeakSet()

    def begin(self, match: Match, session: Session, namespace: int, chain: Chain) -> None:
        """Asks, unless the same question is under way, or others have all the room that questions may have."""
        if match.pending is not None and match.keys == len(chain):
            return
        if match.pending is not None:
            match.looked_at = 0.0
        now = time.monotonic()
        match.keys, match.asked_at, match.found, match.pending = len(chain), now, -1, None
        if now < self._quiet_until:
            match.found, match.runs, match.news = 0, (), False
            return
        self.collect()
        keys = sum(one.keys for one in self._pending)
        if self._pending and (len(self._pending) >= MAX_PENDING or keys + len(chain) > MAX_PENDING_KEYS):
            return
        try:
            match.pending = session.store.begin_match(
                session.namespaces[namespace], chain, hints=match.hints, deadline_us=ABANDON_US
            )
            match.session = session
            self._pending.add(match)
        except Busy:
            return
        except Error as error:
            self._failed(match, session, error)

    def collect(self) -> None:
        """Takes the answers that are there and that nobody has looked for, of requests that wait for their turn: until
        then each has one of the session's calls, and room for its keys."""
        for match in list(self._pending):
            if match.pending is None:
                self._pending.discard(match)
            elif not match.looked_at:
                self.take(match)

    def take(self, match: Match) -> bool:
        """Takes the answer if it is there. Whether what the store has is known."""
        pending, session = match.pending, match.session
        if pending is not None and session is not None and pending.ready():
            match.pending, match.looked_at = None, 0.0
            self._pending.discard(match)
            try:
                answer = pending.result()
            except Error as error:
                self._failed(match, session, error)
            else:
                match.found, match.runs, match.news = answer.blocks, answer.runs, True
        return match.found >= 0

    def answered(self, match: Match, session: Session) -> bool:
        """Looks for the answer of a question that was begun, for SOON_S at most. False: it is still under way, or is to
        be begun again."""
        now = time.monotonic()
        while not self.take(match):
            match.looked_at = match.looked_at or now
            later = time.monotonic()
            if later - match.looked_at > self._timeout_s:
                self._failed(match, session, None)
                return True
            if match.pending is None or later - now > SOON_S:
                return False
            time.sleep(LOOK_AGAIN_S)
        return True

    def _failed(self, match: Match, session: Session, error: Error | None) -> None:
        match.pending, match.found, match.runs, match.news, match.looked_at = None, 0, (), False, 0.0
        # Missed: somebody dropped the namespace, which the next session attaches anew.
        if isinstance(error, (Gone, Missed)):
            self._connection.lose(session)
            return
        self._quiet_until = time.monotonic() + QUIET_S
        self._warn("match", f"the node did not answer a match: {error or f'nothing within {self._timeout_s:g} s'}")
