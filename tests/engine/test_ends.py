# SPDX-License-Identifier: Apache-2.0
"""The scheduler side alone: what a request leaves when it ends or goes on is saved, or counted and said."""

from __future__ import annotations

import logging
import threading
import weakref
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from harness import WATCHDOG_S
from scheduler_side import FACTS, SIZE, Clock, Listener, OneConnection, OneRequest, OneStore, Pool, add, ready

import cistern.engine.connection as connection_module
import cistern.engine.coordinator as coordinator_module
from cistern import Chain, MatchResult
from cistern.engine import options
from cistern.engine.adapters import Adapters, LoadedAdapter
from cistern.engine.connection import Connection
from cistern.engine.coordinator import Coordinator
from cistern.engine.orders import LoadOrder, RankReport, SaveOrder, SaveReport, StepOrders
from cistern.engine.request import Adapter
from cistern.engine.session import Session, SessionSpec
from cistern.engine.written import LoadLeases
from cistern.vllm.events import StoreEvents


def test_continued_request_shared_as_far_as_it_came(connection: OneConnection) -> None:
    """A session of streaming input: vLLM takes tokens and hashes of its answer back, and further input has images of
    its own, which a client may have named."""
    side = ready()
    connection.store.blocks = 0
    add(side, "second")
    assert side.match("second", 0) == (0, False)
    (first,) = side.step_orders({"second": 4 * SIZE + 1}).saves
    request: Any = side._requests["second"].request
    request.computed_tokens = 4 * SIZE + 1
    request.hashes = [*request.hashes[:3], *OneRequest("other", blocks=8).hashes[3:]]
    request.prompt_tokens = request.tokens = 8 * SIZE + 1
    request.content_hashed = False
    assert not side.step_orders({"second": 4 * SIZE}).saves
    request.computed_tokens = 0  # preempted
    connection.store.blocks = 8
    assert side.match("second", 0) == (0, False)
    side.end_request("second", ([*range(1, 10)],))
    assert not side.step_orders({}).saves and len(first.keys) == 4


class Hold:
    """cistern.Lease."""

    def release(self) -> None: ...


def test_lease_whose_node_went_before_its_load_ended_is_let_go_of() -> None:
    """It keeps its node's memory mapped."""
    work: list[Any] = []
    leases = LoadLeases(SimpleNamespace(submit=work.append, when_lost=[]))  # type: ignore[arg-type]
    order = LoadOrder(1, "r", 0, 0, [b"k" * 32], [[3]])
    holds = [Hold(), Hold()]
    kept = [weakref.ref(one) for one in holds]

    def match(*given: object, **more: object) -> MatchResult:
        return MatchResult(1, (), holds.pop(0))  # type: ignore[arg-type]

    spec = SessionSpec(1, "", "default", None, ((),), (), SIZE, False, "", "")
    first, second = (Session(spec, SimpleNamespace(match=match), [object()], n) for n in (1, 2))  # type: ignore[arg-type,list-item]
    leases.take(order, order.keys)
    work.pop()(first)
    leases.release(order.id)
    work.clear()  # as the connection does where no session stands
    leases.take(replace(order, id=2), order.keys)
    work.pop()(second)
    assert [one() is not None for one in kept] == [False, True]
    leases.release(2)
    work.pop()(second)
    assert kept[1]() is None


def test_chain_that_no_call_takes_whole_is_held_as_far_as_one_does() -> None:
    work: list[Any] = []
    held: list[int] = []
    leases = LoadLeases(SimpleNamespace(submit=work.append, when_lost=[]))  # type: ignore[arg-type]

    def match(namespace: object, chain: Chain, **more: object) -> MatchResult:
        held.append(len(chain))
        return MatchResult(1, (), Hold())  # type: ignore[arg-type]

    spec = SessionSpec(1, "", "default", None, ((),), (), SIZE, False, "", "")
    session = Session(spec, SimpleNamespace(match=match), [object()], 1)  # type: ignore[arg-type,list-item]
    keys = [number.to_bytes(32, "little") for number in range(25_000)]
    leases.take(LoadOrder(1, "r", 0, 0, [b"k" * 32], [[3]]), keys)
    work.pop()(session)
    assert held == [20_000]


def test_calls_that_wait_behind_a_silent_node_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_WORK", 3)
    spec = SessionSpec(1, "", "default", None, ((),), (), SIZE, False, "", "")
    store = SimpleNamespace(report=lambda: None, close=lambda: None)
    kept = Connection(logging.getLogger("test.cistern"))
    kept._spec, kept.session = spec, Session(spec, store, [object()])  # type: ignore[arg-type,list-item]
    asked, answers, done = threading.Event(), threading.Event(), []
    try:
        kept.submit(lambda session: asked.set() or answers.wait(WATCHDOG_S))
        assert asked.wait(WATCHDOG_S)
        for number in range(10):
            kept.submit(lambda session, number=number: done.append(number))  # type: ignore[misc]
        answers.set()
        assert kept.flush(WATCHDOG_S) and done == [0, 1, 2]
    finally:
        kept.close()


def test_call_that_raises_ends_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Without the connection's thread nothing is published any more, and what is submitted stays."""
    spec = SessionSpec(1, "", "default", None, ((),), (), SIZE, False, "", "")
    store = SimpleNamespace(report=lambda: None, close=lambda: None)
    kept = Connection(logging.getLogger("test.cistern"))
    kept._spec, kept.session = spec, Session(spec, store, [object()])  # type: ignore[arg-type,list-item]
    done: list[str] = []
    try:
        kept.submit(lambda session: [][1])
        kept.submit(lambda session: done.append("next"))
        assert kept.flush(WATCHDOG_S) and done == ["next"] and "IndexError" in caplog.text
    finally:
        kept.close()


class RankBeside:
    """engine.Rank in the engine's own process, which has copied what it saves, or does as soon as it is waited for."""

    def __init__(self) -> None:
        self.copied, self.orders = False, StepOrders(0, None, 0, [], [], False)
        self.waits: list[float] = []

    def begin(self, orders: StepOrders) -> None:
        self.orders = orders

    def poll(self) -> None: ...

    def wait_idle(self, timeout_s: float) -> bool:
        self.waits.append(timeout_s)
        self.copied = True
        return True

    def report(self) -> RankReport | None:
        saves = [SaveReport(0, one.id, len(one.keys)) for one in self.orders.saves]
        return RankReport(0, self.orders.step, saves=saves) if self.copied else None


def ended(side: Coordinator, name: str, blocks: int) -> list[SaveOrder]:
    """A request that the store knows nothing of and that ends with its first step; its saves of that step."""
    add(side, name, blocks=blocks)
    side.match(name, 0)
    orders = side.step_orders({name: blocks * SIZE + 1}).saves
    side._requests[name].request.computed_tokens = blocks * SIZE + 1  # type: ignore[misc]
    side.end_request(name, ([*range(1, blocks + 2)],))
    return orders


def many_pages(connection: OneConnection, monkeypatch: pytest.MonkeyPatch, pages: int) -> Coordinator:
    """An engine with so many pages and a store that has nothing."""
    monkeypatch.setattr(Pool, "pages_of", lambda self, name: ([*range(1, pages)],))
    side = ready(replace(FACTS, pages=pages))
    connection.store.blocks = 0
    return side


def test_request_that_ends_with_its_first_step_saved_whole(
    connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order has 256 blocks at most; a long prompt of which one token is asked has no later step for the others."""
    side = many_pages(connection, monkeypatch, pages=4000)
    orders = ended(side, "long", blocks=1000) + side.step_orders({}).saves
    assert sum(len(one.keys) for one in orders) == 1000
    assert [one.first_block for one in orders] == [0, 256, 512, 768]
    assert "not_saved" not in side.stats.total


def test_blocks_without_room_at_their_requests_end_counted_and_said(
    connection: OneConnection, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    side = many_pages(connection, monkeypatch, pages=20)  # half of which saves may keep
    (first,) = ended(side, "first", blocks=8)
    (second,) = ended(side, "second", blocks=7)  # the copies of the first are still under way
    assert (len(first.keys), len(second.keys)) == (8, 2) and not side.step_orders({}).saves
    assert side.stats.total["not_saved"] == 5
    (said,) = [one.getMessage() for one in caplog.records]
    assert "5 blocks" in said and "10 of the 10 pages" in said and "max_pages_share" in said


def left(connection: OneConnection) -> tuple[Coordinator, RankBeside, SaveOrder, list[bytes]]:
    """An engine in its caller's own process that has answered: its rank, the save that is under way, and the puts that
    the store was asked to show."""
    side, published = ready(), []
    connection.store.blocks, connection.store.answers = 0, False
    connection.store.publish = lambda namespace, puts, **more: published.extend(puts)  # type: ignore[method-assign]
    side.end_request("first", ([1],))
    assert not ended(side, "second", blocks=4)  # ordered when the request ends, of which no step comes
    rank = RankBeside()
    side.left_by_caller(rank)  # type: ignore[arg-type]
    (save,) = rank.orders.saves
    assert side.pending and not rank.waits  # nobody waits for it
    return side, rank, save, published


@pytest.mark.parametrize("by", ["request", "reset", "end"])
def test_saves_under_way_when_nothing_steps_the_engine_published_later(
    clock: Clock, connection: OneConnection, by: str
) -> None:
    """`LLM` in the caller's own process: its answer does not wait for copies."""
    side, rank, save, published = left(connection)
    rank.copied = by == "request"
    if by == "request":
        add(side, "third")
    elif by == "reset":
        side.release_pages()
    else:
        side.close()
    assert rank.waits == ([] if by == "request" else [coordinator_module.IDLE_S])
    assert connection.session is not None and not side.pending
    for work in connection.work:
        work(connection.session)
    assert published == save.put_ids[0]


def test_end_of_a_process_waits_for_what_was_submitted_to_the_node(clock: Clock, connection: OneConnection) -> None:
    """The copies have ended by then: the connection's thread has still to show their blocks."""
    side, rank, _, _ = left(connection)
    rank.copied = True
    side.left_by_caller(rank)  # type: ignore[arg-type]
    assert not side.pending and connection.flushes == 0
    side.finish_in_process()
    assert connection.flushes == 1


def test_request_that_comes_before_the_last_ones_saves_have_ended_does_not_wait(
    clock: Clock, connection: OneConnection
) -> None:
    side, rank, save, published = left(connection)
    add(side, "third")
    assert side.pending and not rank.waits
    side.handle_reports([RankReport(0, rank.orders.step, saves=[SaveReport(0, save.id, 4)])], set())  # of its step
    assert connection.session is not None and not side.pending
    for work in connection.work:
        work(connection.session)
    assert published == save.put_ids[0]


def test_saves_of_a_requests_last_step_announced(clock: Clock, connection: OneConnection) -> None:
    side, listener = ready(), Listener()
    side._listener = listener
    connection.store.blocks, connection.store.answers = 0, False
    add(side, "second")
    assert not side.step_orders({"second": 4 * SIZE + 1}).saves  # the store has not answered yet
    side._requests["second"].request.computed_tokens = 4 * SIZE + 1  # type: ignore[misc]
    side.end_request("second", ([*range(1, 6)],))
    (late,) = side.step_orders({}).saves
    assert listener.orders == [late]


def test_tokens_of_a_refused_save_are_let_go(connection: OneConnection) -> None:
    """Writes that are off, or a full node, refuse every one: an order's tokens are a MB."""
    side, events = ready(), StoreEvents(SIZE)
    side._listener = events
    connection.store.blocks = 0
    add(side, "second")
    assert side.match("second", 0) == (0, False)
    (save,) = side.step_orders({"second": 4 * SIZE + 1}).saves
    assert list(events._saves) == [save.id]
    side.handle_reports([RankReport(0, save.step, saves=[SaveReport(0, save.id, 0)])], set())
    assert not events._saves and not events._events and not side.pending


def test_pages_of_ended_requests_come_back_before_a_request_that_runs_loses_its_own(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine waits for copies that end soon, and for others no longer than for a moment."""
    back: list[int] = []
    monkeypatch.setattr(Pool, "release", lambda self, pages: back.extend(pages))
    side = ready()
    connection.store.blocks = 0
    published: list[bytes] = []
    connection.store.publish = lambda namespace, puts, **more: published.extend(puts)  # type: ignore[method-assign]

    def copied(order: SaveOrder) -> None:
        saved = SaveReport(0, order.id, len(order.keys))
        side.handle_reports([RankReport(0, order.step, session=1, namespaces=1, saves=[saved])], set())

    add(side, "runs")
    side.match("runs", 0)
    assert side.step_orders({"runs": 4 * SIZE + 1}).saves and not side.makes_room()  # that request needs them itself
    (soon,) = ended(side, "soon", blocks=4)
    assert side.makes_room()
    side.step_orders({})
    clock.now += coordinator_module.ROOM_S / 2
    assert side.makes_room() and not back
    copied(soon)
    assert sorted(back) == sorted(soon.pages[0]) and not side.makes_room()
    side.step_orders({})  # one without a shortage
    clock.now += 2 * coordinator_module.ROOM_S
    back.clear()
    (late,) = ended(side, "late", blocks=4)
    assert side.makes_room() and not back  # another shortage
    side.step_orders({})
    clock.now += 2 * coordinator_module.ROOM_S
    assert side.makes_room() and sorted(back) == sorted(late.pages[0])
    assert not side.makes_room()
    copied(late)
    assert connection.session is not None
    for work in connection.work:
        work(connection.session)
    assert published == soon.put_ids[0]  # what was read late may be another's


def test_request_that_waits_while_nothing_runs_gets_pages_of_a_hung_copy(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    back: list[int] = []
    monkeypatch.setattr(Pool, "release", lambda self, pages: back.extend(pages))
    side = ready()
    connection.store.blocks = 0
    side.end_request("first", ([1],))
    (hung,) = ended(side, "hung", blocks=4)

    def steps(seconds: float) -> list[int]:
        for _ in range(2):
            side.step_orders({})
            clock.now += seconds / 2
        side.step_orders({})
        return sorted(back)

    assert steps(2 * coordinator_module.WAITING_ROOM_S) == []  # nobody waits
    connection.store.answers = False
    add(side, "asks")
    assert steps(2 * coordinator_module.WAITING_ROOM_S) == []  # for the store's answer
    connection.store.answers = True
    assert side.match("asks", 0) == (0, False)
    assert steps(0.5 * coordinator_module.WAITING_ROOM_S) == []
    assert steps(coordinator_module.WAITING_ROOM_S) == sorted(hung.pages[0])


def test_conversation_that_ends_while_its_node_is_away_ends_when_that_is_back(connection: OneConnection) -> None:
    """Its blocks are there again, in a node that was started anew, and so is what its end was asked for."""
    side, ends = ready(), []

    def back() -> None:
        assert before is not None
        store: Any = OneStore()
        store.end_conversation = lambda namespace, name, **more: ends.append((namespace, name))
        store.touch = store.report = lambda *given, **more: None
        connection.session = Session(before.spec, store, [object()])

    def ended(name: str, **more: Any) -> None:
        side.add_request(OneRequest(name), options.RequestParameters(**more))
        side.end_request(name, ([*range(1, 6)],))

    def work() -> None:
        for one in connection.work:
            assert connection.session is not None
            one(connection.session)
        connection.work.clear()

    before, connection.session = connection.session, None
    ended("ends", conversation="away", end_conversation=True)
    back()
    ended("asks", conversation="lost", end_conversation=True)
    connection.work.clear()  # the node goes before it is asked
    back()
    ended("next")
    work()
    assert connection.session is not None
    assert sorted(ends) == [(connection.session.namespaces[0], name) for name in ("away", "lost")]
    back()
    ended("last")
    work()
    assert len(ends) == 2
    connection.session = None
    ended("ends", conversation="former", end_conversation=True)
    back()
    side.reset()
    ended("fresh")
    work()
    assert len(ends) == 2  # another generation has none of its blocks


# ---------------------------------------------------------------------------- ends of conversations


class Talks:
    """A side whose session stands, and the ends of conversations that its node was asked for."""

    def __init__(self, connection: OneConnection) -> None:
        self.side, self.connection = ready(), connection
        self.ends: list[tuple[object, str]] = []
        store: Any = connection.store
        store.end_conversation = lambda namespace, name, **more: self.ends.append((namespace, name))
        store.touch = store.report = lambda *given, **more: None

    def add(self, name: str, adapter: Adapter | None = None, **more: Any) -> None:
        self.side.add_request(OneRequest(name, adapter=adapter), options.RequestParameters(**more))

    def end(self, name: str) -> None:
        self.side.end_request(name, ([*range(1, 6)],))

    def work(self) -> None:
        """What the connection's thread does, after one more request has ended."""
        self.add("later")
        self.end("later")
        assert self.connection.session is not None
        for one in self.connection.work:
            one(self.connection.session)
        self.connection.work.clear()


ENDS_TALK = {"conversation": "talk", "end_conversation": True, "no_load": True}
LORA = Adapter("lora", 1, "/nowhere", False)
LOADED = LoadedAdapter(("/nowhere", ""), "files", digest="digest")


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Future[LoadedAdapter]:
    """What looking at an adapter's files says, once it is set."""
    loaded: Future[LoadedAdapter] = Future()
    monkeypatch.setattr(Adapters, "ask", lambda self, adapter, looked: loaded)
    return loaded


def test_conversation_ends_in_a_namespace_that_is_attached_later(
    connection: OneConnection, looked: Future[LoadedAdapter]
) -> None:
    looked.set_result(LOADED)
    talks = Talks(connection)
    connection.opens = False
    talks.add("adapted", LORA, **ENDS_TALK)
    talks.end("adapted")
    talks.work()
    assert not talks.ends and connection.spec is not None
    connection.opens = True
    connection.open(connection.spec)
    talks.work()
    assert connection.session is not None
    assert talks.ends == [(connection.session.namespaces[1], "talk")]
    talks.work()
    assert len(talks.ends) == 1


@pytest.mark.parametrize("known", [True, False])
def test_conversation_of_an_adapter_ends_once_its_files_were_looked_at(
    connection: OneConnection, looked: Future[LoadedAdapter], known: bool
) -> None:
    """A request may be over before that, and of files that cannot be read nobody knows where it is."""
    talks = Talks(connection)
    talks.add("adapted", LORA, **ENDS_TALK)
    talks.end("adapted")
    talks.work()
    assert not talks.ends
    if known:
        looked.set_result(LOADED)
    else:
        looked.set_exception(OSError("gone"))
    talks.work()
    talks.work()
    assert connection.session is not None
    assert talks.ends == ([(connection.session.namespaces[1], "talk")] if known else [])


def test_conversation_whose_last_request_is_there_at_a_reset_ends_in_both_generations(
    connection: OneConnection,
) -> None:
    """It wrote under the one, and requests that have not begun go on under the other."""
    talks = Talks(connection)
    former = connection.session
    talks.add("last", **ENDS_TALK)
    talks.side.reset()
    talks.end("last")
    talks.work()
    assert former is not None and connection.session is not None and connection.session is not former
    assert set(talks.ends) == {(one.namespaces[0], "talk") for one in (former, connection.session)}


def test_end_asked_for_after_a_reset_waits_for_its_session(connection: OneConnection) -> None:
    talks = Talks(connection)
    connection.opens = False
    talks.side.reset()
    talks.add("last", **ENDS_TALK)
    talks.end("last")
    talks.work()
    assert not talks.ends and connection.spec is not None
    connection.opens = True
    connection.open(connection.spec)
    talks.work()
    assert connection.session is not None and talks.ends == [(connection.session.namespaces[0], "talk")]


def test_conversation_of_an_adapter_ends_where_it_wrote_before_a_reset(
    connection: OneConnection, looked: Future[LoadedAdapter]
) -> None:
    """Adapters have other numbers afterwards."""
    looked.set_result(LOADED)
    talks = Talks(connection)
    talks.add("adapted", LORA, **ENDS_TALK)
    talks.side.step_orders({"adapted": 1})
    former = connection.session
    assert former is not None and len(former.namespaces) == 2
    talks.side.reset()
    talks.end("adapted")
    talks.work()
    assert talks.ends == [(former.namespaces[1], "talk")]
