# SPDX-License-Identifier: Apache-2.0
"""Conversations: their uses of blocks and their ends, passed on to the store."""

from __future__ import annotations

from collections.abc import Callable

from .. import Store
from .connection import CALL_US, Connection
from .plan import Plan
from .session import Session


class Conversations:
    def __init__(self, connection: Connection, plan: Plan) -> None:
        self._connection = connection
        self._plan = plan
        self._ending: list[tuple[Session, int, str]] = []
        """Conversations that end with their last save: session, number of the namespace, name."""

    def use(self, session: Session, namespace: int, name: str, last: bytes) -> None:
        """Counts this block, and with it its ancestors, as used by the conversation: they stay when another
        conversation, which wrote them, is ended."""
        self._submit(
            session,
            lambda store: store.touch(session.namespaces[namespace], [last], conversation=name, deadline_us=CALL_US),
        )

    def end(self, session: Session, namespace: int, name: str) -> None:
        self._ending.append((session, namespace, name))
        self.settle()

    def settle(self) -> None:
        """Ends those with no block on its way any more. Called when a save has ended, after its blocks' publishing was
        submitted to the connection, which keeps the order."""
        waiting = [one for one in self._ending if self._plan.saving(one[1], one[2])]
        for one in self._ending:
            if one not in waiting:
                self._end(*one)
        self._ending = waiting

    def _end(self, session: Session, namespace: int, name: str) -> None:
        self._submit(
            session, lambda store: store.end_conversation(session.namespaces[namespace], name, deadline_us=CALL_US)
        )

    def _submit(self, session: Session, call: Callable[[Store], object]) -> None:
        self._connection.submit(lambda now: call(now.store) if now.store is session.store else None)
