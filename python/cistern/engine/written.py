# SPDX-License-Identifier: Apache-2.0
"""What the scheduler side asks of the store about blocks under way: puts to be published or abandoned where they were
written, and leases of chains that are being loaded."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass

from .. import Chain, Lease, Namespace, Store
from .connection import CALL_US, Connection
from .orders import LoadOrder, SaveOrder
from .session import Session

LEASE_EXTRA_US = 1_000_000
MAX_LEASE_US = 60_000_000
MAX_HELD = 20_000
"""Keys of one call that holds: a longer chain is held as far as that."""
AT_ONCE = 1024

LOOK_S = 1.0
"""Time for which blocks wait for a look before they are given up."""
SOON_S = 0.005
"""Time for which an engine that may take no further step waits for one: far longer than one takes."""

Look = Callable[[], "Future[bool]"]
Told = Callable[[bool], object]


@dataclass(frozen=True)
class Place:
    """Where an order's blocks are put."""

    store: Store
    namespace: Namespace
    look: Look | None = None
    """Says whether blocks may become visible there, and is taken when they are to."""
    conversation: tuple[int, str] = (0, "")
    """The namespace's number and the order's conversation, where there is a look."""


@dataclass(frozen=True)
class _LookedAt:
    """Blocks that become visible once a look says so."""

    place: Place
    puts: Sequence[bytes]
    look: Future[bool]
    since: float
    told: Told


class WrittenPuts:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._places: dict[int, Place] = {}
        """Where each order's blocks are put, by its number: a session of after a reset has other namespaces under the
        same numbers."""
        self._looked_at: list[_LookedAt] = []

    def ordered(self, order: SaveOrder, session: Session, look: Look | None = None) -> None:
        conversation = (order.namespace, order.conversation) if look is not None else (0, "")
        self._places[order.id] = Place(session.store, session.namespaces[order.namespace], look, conversation)

    def forget(self) -> None:
        """What is under way goes with its namespaces, which are dropped."""
        self._places.clear()
        self._looked_at.clear()

    def ended(self, order_id: int) -> Place | None:
        """Where an order's blocks were put that has ended; None: nowhere, or nobody knows any more."""
        return self._places.pop(order_id, None)

    def publish(self, place: Place | None, puts: Sequence[bytes], told: Told) -> None:
        """At once, or by the settle() that finds what their place's look says: the connection's thread never waits for
        that, since all other blocks would wait behind them. `told`: called with whether they become visible, once that
        is submitted."""
        if place is not None and place.look is not None:
            self._looked_at.append(_LookedAt(place, puts, place.look(), time.monotonic(), told))
        else:
            self._submit(place, puts, publish=True)
            told(place is not None)

    def abandon(self, place: Place | None, puts: Sequence[bytes]) -> None:
        self._submit(place, puts, publish=False)

    def settle(self, behind: bool = False, last: bool = False) -> None:
        """Publishes what the looks that have ended agree to, and abandons what they do not, or what has waited for
        LOOK_S. `behind`: nobody may ask again for long: waits SOON_S for them. `last`: nobody will: waits LOOK_S."""
        if (behind or last) and self._looked_at:
            wait([one.look for one in self._looked_at], LOOK_S if last else SOON_S)
        still, now = [], time.monotonic()
        for one in self._looked_at:
            if one.look.done() or last or now - one.since >= LOOK_S:
                agrees = _agrees(one.look)
                self._submit(one.place, one.puts, publish=agrees)
                one.told(agrees)
            else:
                still.append(one)
        self._looked_at = still

    @property
    def looks(self) -> bool:
        """Whether blocks wait for a look: settle() is to be called again."""
        return bool(self._looked_at)

    def looks_for(self, namespace: int, conversation: str) -> bool:
        """Whether blocks of this conversation do."""
        return any(one.place.conversation == (namespace, conversation) for one in self._looked_at)

    def _submit(self, place: Place | None, puts: Sequence[bytes], publish: bool) -> None:
        """Unless the node that they were written to is gone by then."""
        if place is None:
            return
        store, namespace = place.store, place.namespace
        for first in range(0, len(puts), AT_ONCE):
            some = puts[first : first + AT_ONCE]

            def work(session: Session, some: Sequence[bytes] = some) -> None:
                if session.store is store:
                    (store.publish if publish else store.abandon)(namespace, some, deadline_us=CALL_US)

            self._connection.submit(work)


def _agrees(look: Future[bool]) -> bool:
    return look.done() and look.exception() is None and look.result()


class LoadLeases:
    """Leases of the chains that are being loaded, so that none of it is evicted before it is read."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loads: set[int] = set()
        """Orders of loads that have not ended."""
        self._leases: dict[int, Lease] = {}
        """By the load's order. Of the connection's thread."""
        self._connects = 0
        """Number of the session that they are of."""
        connection.when_lost.append(lambda session: self._leases.clear())

    def take(self, order: LoadOrder, keys: Sequence[bytes]) -> None:
        """`keys`: of the chain that is held, from the request's first block on: at least to the load's end."""
        chain = Chain(keys[:MAX_HELD])
        lease_us = min(order.deadline_us + LEASE_EXTRA_US, MAX_LEASE_US)
        self._loads.add(order.id)

        def work(session: Session) -> None:
            self._let_go_of_ended(session)
            if order.id not in self._loads:  # the node was silent meanwhile
                return
            answer = session.store.match(session.namespaces[order.namespace], chain, hold_us=lease_us)
            if answer.hold is not None:
                self._leases[order.id] = answer.hold

        self._connection.submit(work)

    def release(self, order_id: int) -> None:
        """The load has ended. Where the connection has no room for this, its lease goes with the next one's."""
        self._loads.discard(order_id)
        self._connection.submit(self._let_go_of_ended)

    def _let_go_of_former(self, session: Session) -> None:
        """What was to be released when no session stood is not: such a lease has ended, but keeps its node's memory
        mapped and the session's descriptors open."""
        if session.connects != self._connects:
            self._leases.clear()
            self._connects = session.connects

    def _let_go_of_ended(self, session: Session) -> None:
        self._let_go_of_former(session)
        for order_id in self._leases.keys() - self._loads:
            self._leases.pop(order_id).release()
