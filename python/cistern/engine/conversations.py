# SPDX-License-Identifier: Apache-2.0
"""Conversations: their uses of blocks and their ends, passed on to the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .. import Store
from .connection import CALL_US, Connection
from .plan import Plan
from .session import Session


@dataclass(frozen=True)
class Ending:
    """A conversation whose end was asked for; it ends with the last save of what came before."""

    session: Session
    namespace: int
    name: str
    before: frozenset[str]
    """Its requests that were there before the one that ends it. The engine may run them later: while a request waits
    for its match, others go first."""


class Conversations:
    def __init__(self, connection: Connection, plan: Plan) -> None:
        self._connection = connection
        self._plan = plan
        self._ending: list[Ending] = []

    def use(self, session: Session, namespace: int, name: str, last: bytes) -> None:
        """Counts this block, and with it its ancestors, as used by the conversation: they stay when another
        conversation, which wrote them, is ended."""
        self._submit(
            session,
            lambda store: store.touch(session.namespaces[namespace], [last], conversation=name, deadline_us=CALL_US),
        )

    def end(self, ending: Ending) -> None:
        """Ends it with the settle() that finds no block to come."""
        self._ending.append(ending)

    def settle(self) -> None:
        """Ends those with no block to come any more. Called when a request has ended, after its last saves were
        ordered, and when a save has, after its blocks' publishing was submitted to the connection, which keeps the
        order."""
        waiting = [one for one in self._ending if self._awaits(one)]
        for one in self._ending:
            if one not in waiting:
                self._end(one)
        self._ending = waiting

    def _awaits(self, one: Ending) -> bool:
        return not one.before.isdisjoint(self._plan.requests) or self._plan.saving(one.namespace, one.name)

    def _end(self, one: Ending) -> None:
        namespace = one.session.namespaces[one.namespace]
        self._submit(one.session, lambda store: store.end_conversation(namespace, one.name, deadline_us=CALL_US))

    def _submit(self, session: Session, call: Callable[[Store], object]) -> None:
        self._connection.submit(lambda now: call(now.store) if now.store is session.store else None)
