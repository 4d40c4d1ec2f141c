# SPDX-License-Identifier: Apache-2.0
"""What the scheduler side asks of the store about blocks under way: puts to be published or abandoned where they were
written, and leases of chains that are being loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any

from .. import Chain, Lease, Namespace, Store
from .connection import CALL_US, Connection
from .orders import LoadOrder
from .session import Session

LEASE_EXTRA_US = 1_000_000
MAX_LEASE_US = 60_000_000
MAX_HELD = 20_000
"""Keys of one call that holds: a longer chain is held as far as that."""
AT_ONCE = 1024

LOOK_S = 1.0
"""Time for which the connection's thread waits for a look: one at a disk that does not answer holds up the other
blocks no longer."""

Look = Callable[[], "Future[bool]"]
Place = tuple[Store, Namespace, "Look | None"]
"""The look says whether blocks may become visible there, and is taken when they are to."""


class WrittenPuts:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._places: dict[int, Place] = {}
        """Where each order's blocks are put, by its number: a session of after a reset has other namespaces under the
        same numbers."""

    def ordered(self, order_id: int, session: Session, namespace: int, look: Look | None = None) -> None:
        self._places[order_id] = session.store, session.namespaces[namespace], look

    def forget(self) -> None:
        """What is under way goes with its namespaces, which are dropped."""
        self._places.clear()

    def ended(self, order_id: int) -> Place | None:
        """Where an order's blocks were put that has ended; None: nowhere, or nobody knows any more."""
        return self._places.pop(order_id, None)

    def publish(self, place: Place | None, puts: Sequence[bytes]) -> None:
        look = place[2]() if place is not None and place[2] is not None else None
        self._submit(place, puts, lambda store: store.publish if look is None or _agrees(look) else store.abandon)

    def abandon(self, place: Place | None, puts: Sequence[bytes]) -> None:
        self._submit(place, puts, lambda store: store.abandon)

    def _submit(
        self, place: Place | None, puts: Sequence[bytes], call: Callable[[Store], Callable[..., Any]]
    ) -> None:
        """Unless the node that they were written to is gone by then."""
        if place is None:
            return
        store, namespace, _ = place
        for first in range(0, len(puts), AT_ONCE):
            some = puts[first : first + AT_ONCE]

            def work(session: Session, some: Sequence[bytes] = some) -> None:
                if session.store is store:
                    call(store)(namespace, some, deadline_us=CALL_US)

            self._connection.submit(work)


def _agrees(look: Future[bool]) -> bool:
    return bool(wait([look], LOOK_S).done) and look.exception() is None and look.result()


class LoadLeases:
    """Leases of the chains that are being loaded, so that none of it is evicted before it is read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._leases: dict[int, Lease] = {}
        """By the load's order. Of the connection's thread."""
        self._connects = 0
        """Number of the session that they are of."""
        connection.when_lost.append(lambda session: self._leases.clear())

    def take(self, order: LoadOrder, keys: Sequence[bytes]) -> None:
        """`keys`: of the chain that is held, from the request's first block on: at least to the load's end."""
        chain = Chain(keys[:MAX_HELD])
        lease_us = min(order.deadline_us + LEASE_EXTRA_US, MAX_LEASE_US)

        def work(session: Session) -> None:
            self._let_go_of_former(session)
            answer = session.store.match(session.namespaces[order.namespace], chain, hold_us=lease_us)
            if answer.hold is not None:
                self._leases[order.id] = answer.hold

        self._connection.submit(work)

    def release(self, order_id: int) -> None:
        self._connection.submit(partial(self._release, order_id))

    def _let_go_of_former(self, session: Session) -> None:
        """What was to be released when no session stood is not: such a lease has ended, but keeps its node's memory
        mapped and the session's descriptors open."""
        if session.connects != self._connects:
            self._leases.clear()
            self._connects = session.connects

    def _release(self, order_id: int, session: Session) -> None:
        self._let_go_of_former(session)
        lease = self._leases.pop(order_id, None)
        if lease is not None:
            lease.release()
