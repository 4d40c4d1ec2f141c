# SPDX-License-Identifier: Apache-2.0
"""Blocks that are written: whose adapter is still to be looked at waits for that, and nobody else does."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from harness import WATCHDOG_S
from scheduler_side import SIZE, Clock, OneConnection, OneRequest, OneStore, join, name_files, ready, until

import cistern.engine.coordinator as coordinator_module
import cistern.engine.written as written_module
from cistern.engine import options
from cistern.engine.adapters import Adapters
from cistern.engine.connection import Connection
from cistern.engine.orders import RankReport, SaveOrder, SaveReport
from cistern.engine.request import Adapter
from cistern.engine.session import Session, SessionSpec
from cistern.engine.written import WrittenPuts

BASE, LORA = 0, 1


class Written:
    """A side with a request of the base model and one of an adapter, both of one conversation; whose blocks the node
    was asked to show or to give up, and when the conversation ended."""

    def __init__(self, connection: OneConnection, monkeypatch: pytest.MonkeyPatch) -> None:
        self.connection = connection
        self.done: list[tuple[str, int]] = []
        self.look: Future[bool] = Future()
        store: Any = connection.store
        store.publish = lambda namespace, puts, **more: self.note("publish", namespace)
        store.abandon = lambda namespace, puts, **more: self.note("abandon", namespace)
        store.end_conversation = lambda namespace, name, **more: self.note("end", namespace)
        store.touch = lambda *given, **more: None
        name_files(monkeypatch)
        monkeypatch.setattr(Adapters, "ask_again", lambda adapters, adapter, loaded: self.look)
        self.side = ready()
        store.blocks = 0
        for name in ("base", "lora"):
            self.add(name)
            until(lambda name=name: self.side.match(name, 0) == (0, False) or join(self.side))
        self.orders: list[SaveOrder] = self.side.step_orders({"lora": SIZE, "base": SIZE}).saves

    def add(self, name: str, **more: Any) -> None:
        adapter = Adapter("lora", 1, "/nowhere", False) if name != "base" else None
        self.side.add_request(
            OneRequest(name, adapter=adapter), options.RequestParameters(conversation="talk", **more)
        )

    def note(self, what: str, namespace: object) -> None:
        assert self.connection.session is not None
        self.done.append((what, self.connection.session.namespaces.index(namespace)))  # type: ignore[arg-type]

    def copied(self) -> None:
        """The rank has written the blocks of both."""
        reports = [SaveReport(0, one.id, len(one.keys)) for one in self.orders]
        self.side.handle_reports([RankReport(0, self.orders[0].step, saves=reports)], set())

    def work(self) -> list[tuple[str, int]]:
        assert self.connection.session is not None
        for one in self.connection.work:
            one(self.connection.session)
        self.connection.work.clear()
        return self.done


@pytest.mark.parametrize("agrees", [True, False])
def test_blocks_of_an_adapter_shown_with_the_step_behind_its_look(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch, agrees: bool
) -> None:
    written = Written(connection, monkeypatch)
    written.copied()
    assert written.work() == [("publish", BASE)] and written.side.pending
    written.side.step_orders({})
    assert written.work() == [("publish", BASE)]
    written.look.set_result(agrees)
    written.side.step_orders({})
    assert written.work()[1:] == [("publish" if agrees else "abandon", LORA)] and not written.side.pending


def test_blocks_of_an_adapter_whose_look_does_not_end_are_given_up(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(connection, monkeypatch)
    written.copied()
    clock.now += written_module.LOOK_S
    written.side.step_orders({})
    assert written.work() == [("publish", BASE), ("abandon", LORA)] and not written.side.pending


def test_conversation_of_an_adapter_ends_behind_the_look_that_its_blocks_wait_for(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(connection, monkeypatch)
    side = written.side
    for name in ("base", "lora"):
        side.end_request(name, ([*range(1, 6)],))
    written.add("ends", end_conversation=True)
    until(lambda: side.match("ends", 0) == (0, False))
    side.end_request("ends", ([*range(1, 6)],))
    written.copied()
    assert ("end", LORA) not in written.work()
    written.look.set_result(True)
    side.step_orders({})
    assert written.work()[-2:] == [("publish", LORA), ("end", LORA)]


def test_end_of_an_engine_waits_for_the_looks_of_its_last_blocks(
    connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Written(connection, monkeypatch)
    waits = threading.Event()

    def wait(of: list[Future[bool]], timeout_s: float) -> None:
        assert of == [written.look] and timeout_s == written_module.LOOK_S
        waits.set()
        written.look.set_result(True)

    monkeypatch.setattr(written_module, "wait", wait)
    written.copied()
    written.side.close()
    assert waits.is_set() and written.work()[-1] == ("publish", LORA)


def test_blocks_of_an_adapter_whose_look_ends_soon_wait_for_no_further_request(
    connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine stepped by its caller takes no step behind its last one: the node would drop them by the next."""
    written = Written(connection, monkeypatch)
    side, waited = written.side, []
    for name in ("first", "base", "lora"):
        side.end_request(name, ([*range(1, 6)],))

    def wait(of: list[Future[bool]], timeout_s: float) -> None:
        waited.append(timeout_s)
        written.look.set_result(True)

    monkeypatch.setattr(written_module, "wait", wait)
    written.copied()
    side.left_by_caller(SimpleNamespace(poll=lambda: None, report=lambda: None, begin=lambda orders: None))  # type: ignore[arg-type]
    assert waited == [written_module.SOON_S] and written.work()[-1] == ("publish", LORA)


def test_thread_that_publishes_waits_for_no_look() -> None:
    """A share that hangs would stop the saves of the base model, and the leases of its loads."""
    kept, done, published = Connection(logging.getLogger("test.cistern")), [], threading.Event()
    store: Any = type("Store", (), {"report": lambda self: None, "close": lambda self: None})()
    store.abandon = lambda namespace, puts, **more: done.append(namespace)
    store.publish = lambda namespace, puts, **more: published.set()
    spec = SessionSpec(1, "", "default", None, ((), ()), (), SIZE, False, "", "")
    session = Session(spec, store, ["base", "lora"], 1)  # type: ignore[list-item]
    try:
        kept._spec, kept.session = spec, session
        puts = WrittenPuts(kept)
        for number, namespace in enumerate([LORA] * 12 + [BASE]):
            order = SaveOrder(number, 1, namespace, 0, None, [b"k"], [[b"p"]], [[1]])
            puts.ordered(order, session, Future if namespace == LORA else None)
            puts.publish(puts.ended(number), [b"p"], lambda visible: None)
        assert published.wait(WATCHDOG_S) and not done
    finally:
        kept.close()


def test_request_whose_blocks_were_refused_saves_on_later(clock: Clock, connection: OneConnection) -> None:
    """From what the node has by then; a node that goes on refusing is asked ever more rarely."""
    side = ready()
    connection.store.blocks = 0
    request = OneRequest("long", blocks=8)
    side.add_request(request, options.RequestParameters())
    assert side.match("long", 0) == (0, False)

    def saves(tokens: int = 1) -> list[SaveOrder]:
        orders = side.step_orders({"long": tokens})
        request.computed_tokens += tokens
        return orders.saves

    def refuse(order: SaveOrder, written: int) -> None:
        report = SaveReport(0, order.id, written, "the node drains")
        side.handle_reports([RankReport(0, order.step, session=1, namespaces=1, saves=[report])], set())

    (first,) = saves(4 * SIZE)
    refuse(first, written=2)
    assert not saves(SIZE)
    clock.now += coordinator_module.STOPPED_S
    connection.store.blocks = 1  # one of them has left meanwhile
    orders = saves(SIZE) or saves()
    assert [(one.first_block, len(one.keys), one.parent) for one in orders] == [(1, 5, first.keys[0])]
    refuse(orders[0], written=0)
    assert not saves()
    clock.now += coordinator_module.STOPPED_S
    assert not saves() and not saves()
    clock.now += coordinator_module.STOPPED_S
    assert saves() or saves()


@pytest.mark.parametrize("agrees", [True, False])
def test_blocks_that_wait_for_a_look_are_counted_and_told_of_as_it_says(
    connection: OneConnection, monkeypatch: pytest.MonkeyPatch, agrees: bool
) -> None:
    """An engine's own events would name blocks to routers that nobody stored."""
    written, told = Written(connection, monkeypatch), {}
    listener: Any = SimpleNamespace(published=lambda number, blocks: told.update({number: blocks}))
    written.side._listener = listener
    orders = {one.namespace: one.id for one in written.orders}
    written.copied()
    assert told == {orders[BASE]: 1} and written.side.stats.total["published_blocks"] == 1
    written.look.set_result(agrees)
    written.side._settle_looks()
    assert told == {orders[BASE]: 1, orders[LORA]: int(agrees)}
    counted = written.side.stats.total
    assert (counted["published_blocks"], counted.get("abandoned_blocks", 0)) == ((2, 0) if agrees else (1, 1))


@pytest.mark.parametrize("kept", [0, 1])
def test_request_that_outlives_its_node_saves_behind_what_the_next_node_has(
    connection: OneConnection, kept: int
) -> None:
    """Else all that it computes from then on would wait there for ancestors that went with the node."""
    side = ready()
    connection.store.blocks = 0
    side.add_request(request := OneRequest("runs"), options.RequestParameters())
    assert side.match("runs", 0) == (0, False)
    (order,) = side.step_orders({"runs": 2 * SIZE}).saves
    report = SaveReport(0, order.id, len(order.keys))
    side.handle_reports([RankReport(0, order.step, saves=[report])], set())
    before = connection.session
    assert before is not None and (order.first_block, len(order.keys)) == (0, 2)
    connection.session = None
    side.step_orders({"runs": 1})
    connection.store = OneStore()
    connection.store.blocks = kept
    connection.session = Session(before.spec, connection.store, [object()], 2)  # type: ignore[arg-type,list-item]
    until(lambda: side._shared.ready(BASE) or join(side))
    request.computed_tokens = 2 * SIZE
    (order,) = side.step_orders({"runs": SIZE}).saves
    assert (order.first_block, len(order.keys)) == (kept, 3 - kept)
