# SPDX-License-Identifier: Apache-2.0
"""Conversations: the store is told which use what they found, and which have ended."""

from __future__ import annotations

from collections.abc import Callable

from .. import Store
from .link import CALL_US, Joined, Link
from .plan import Plan


class Conversations:
    def __init__(self, link: Link, plan: Plan) -> None:
        self._link = link
        self._plan = plan
        self._ending: list[tuple[Joined, int, str]] = []
        """With the number of the namespace that each is in."""

    def uses(self, joined: Joined, namespace: int, name: str, last: bytes) -> None:
        """The conversation has found this block, which stands for its ancestors: whoever wrote them, they stay
        when that one is ended."""
        self._with(
            joined,
            lambda store: store.touch(joined.namespaces[namespace], [last], conversation=name, deadline_us=CALL_US),
        )

    def end(self, joined: Joined, namespace: int, name: str) -> None:
        self._ending.append((joined, namespace, name))
        self.settle()

    def settle(self) -> None:
        """Ends those of which no block is on its way any more. To be called when a save has ended, after what has
        to be published of it was handed to the link, which keeps the order."""
        waiting = [one for one in self._ending if self._plan.saving(one[1], one[2])]
        for one in self._ending:
            if one not in waiting:
                self._end(*one)
        self._ending = waiting

    def _end(self, joined: Joined, namespace: int, name: str) -> None:
        self._with(
            joined, lambda store: store.end_conversation(joined.namespaces[namespace], name, deadline_us=CALL_US)
        )

    def _with(self, joined: Joined, call: Callable[[Store], object]) -> None:
        self._link.do(lambda now: call(now.store) if now.store is joined.store else None)
