# SPDX-License-Identifier: Apache-2.0
"""Conversations: their uses of blocks and their ends, passed on to the store."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from .. import Missed, Namespace, Store
from .connection import CALL_US, Connection
from .plan import Plan
from .session import Session
from .written import WrittenPuts

MAX_ENDING = 4096
"""Conversations whose end was asked for and is not done: while no node is there, the first asked for are forgotten."""


@dataclass(eq=False)
class Ending:
    """A conversation whose end was asked for; it ends with the last save of what came before, by the session that
    stands then: a node that was started anew has its blocks."""

    session: Session | None
    """The one that stood when the end was asked for."""
    specified: int
    """Number of the specification then: sessions of another one have other namespaces."""
    namespace: int
    name: str
    before: frozenset[str]
    """Its requests that were there before the one that ends it. The engine may run them later: while a request waits
    for its match, others go first."""
    asked: Store | None = None
    """The last node that was asked."""
    done: bool = False

    def place(self, now: Session) -> Namespace | None:
        """The namespace in which it ends by that session; None: it has none, or not yet."""
        if now.spec.number != self.specified:
            former = self.session
            if former is None or former.store is not now.store or former.spec.number != self.specified:
                return None
            now = former
        return now.namespaces[self.namespace] if self.namespace < len(now.namespaces) else None


class Conversations:
    def __init__(self, connection: Connection, plan: Plan, written: WrittenPuts) -> None:
        self._connection = connection
        self._plan = plan
        self._written = written
        self._ending: list[Ending] = []

    def use(self, session: Session, namespace: int, name: str, last: bytes) -> None:
        """Counts this block, and with it its ancestors, as used by the conversation: they stay when another
        conversation, which wrote them, is ended."""
        self._submit(
            session,
            lambda store: store.touch(session.namespaces[namespace], [last], conversation=name, deadline_us=CALL_US),
        )

    def end(self, ending: Ending) -> None:
        """Ends it with the settle() that finds no block to come, and a node."""
        self._ending = [*self._ending[1 - MAX_ENDING :], ending]

    def settle(self) -> None:
        """Ends those with no block to come any more. Called when a request has ended, after its last saves were
        ordered, and when a save or the look that its blocks waited for has, after their publishing was submitted to the
        connection, which keeps the order."""
        self._ending = [one for one in self._ending if not one.done]
        session = self._connection.session
        for one in self._ending:
            if session is not None and one.asked is not session.store and not self._awaits(one):
                self._end(one, session)

    def _awaits(self, one: Ending) -> bool:
        return (
            not one.before.isdisjoint(self._plan.requests) or self._plan.saving(one.namespace, one.name)
            or self._written.looks_for(one.namespace, one.name)
        )

    def _end(self, one: Ending, session: Session) -> None:
        namespace = one.place(session)
        if namespace is None:
            one.done = session.spec.number > one.specified  # what it wrote is in namespaces that nobody here has
            return

        def call(store: Store) -> None:
            with contextlib.suppress(Missed):  # somebody dropped the namespace
                store.end_conversation(namespace, one.name, deadline_us=CALL_US)
            one.done = True

        one.asked = session.store
        self._submit(session, call, kept=True)

    def _submit(self, session: Session, call: Callable[[Store], object], kept: bool = False) -> None:
        self._connection.submit(lambda now: call(now.store) if now.store is session.store else None, kept)
