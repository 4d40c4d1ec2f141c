# SPDX-License-Identifier: Apache-2.0
"""The scheduler side alone: nothing that it is asked waits, and what one request needs no other request pays for."""

from __future__ import annotations

import concurrent.futures
import contextlib
import errno
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import WATCHDOG_S, Node
from scheduler_side import SIZE, Clock, Listener, OneConnection, OneRequest, add, join, make, name_files, ready, until

import cistern.engine.adapted as adapted_module
import cistern.engine.adapters as adapters_module
import cistern.engine.coordinator as coordinator_module
import cistern.engine.node as node_module
import cistern.engine.shared_session as shared_module
from cistern import Chain, Hints, MatchResult, MatchRun, Store, Transfers
from cistern.engine import options
from cistern.engine.adapters import Adapters, LoadedAdapter
from cistern.engine.connection import Connection
from cistern.engine.coordinator import Coordinator
from cistern.engine.facts import ConfigurationError
from cistern.engine.matches import SOON_S, Match, Matches
from cistern.engine.orders import LoadReport, RankReport, SaveReport
from cistern.engine.request import Adapter
from cistern.engine.session import GroupShape, Session, SessionSpec


def test_hints_of_a_request_are_told_with_its_match(clock: Clock, connection: OneConnection) -> None:
    side = ready()
    assert connection.store.hints == Hints()
    parameters, _ = options.read_parameters({"cistern.outlook": "tool", "cistern.importance": "high"})
    side.add_request(OneRequest("told"), parameters)
    assert side.match("told", 0) == (3 * SIZE, True)
    assert connection.store.hints == Hints("tool", "high")


# ---------------------------------------------------------------------------- no node


def test_only_the_first_requests_wait_for_a_silent_node(clock: Clock, connection: OneConnection) -> None:
    connection.opens = False
    side = make(start_timeout_s=20)
    add(side, "a")
    assert side.match("a", 0) == (None, False)
    clock.now += 19
    add(side, "b")
    assert [side.match(name, 0) for name in "ab"] == [(None, False)] * 2
    clock.now += 2
    add(side, "c")
    assert [side.match(name, 0) for name in "abc"] == [(0, False)] * 3
    assert side.stats.total["without_node"] == 3


def test_a_rank_that_lost_its_session_alone_is_not_waited_for(clock: Clock, connection: OneConnection) -> None:
    side = ready()
    clock.now += shared_module.JOIN_S
    side.handle_reports([RankReport(0, 0)], set())
    add(side, "a")
    assert side.match("a", 0) == (0, False)
    join(side)
    add(side, "b")
    assert side.match("b", 0) == (3 * SIZE, True)


def computes_after_one_message(side: Coordinator, caplog: pytest.LogCaptureFixture) -> str:
    """Asks until the answer is to compute, as it must be then for everybody; what was said."""
    try:
        add(side, "a")
        until(lambda: side.match("a", 0) != (None, False))  # far below the time that it might wait
        assert side.match("a", 0) == (0, False)
        for name in "bcd":
            add(side, name)
            assert side.match(name, 0) == (0, False)
        (said,) = [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]
        return said
    finally:
        side.close()


def test_node_that_cannot_start_said_once_and_not_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Node("64MiB") as other:  # whose directory is refused at the start alone: it may be free by then
        side = make(
            socket=str(tmp_path / "socket"), start_node=True, memory="64MiB", memory_dir=str(other.folder / "memory"),
            start_timeout_s=300,
        )
        said = computes_after_one_message(side, caplog)
    assert "is held by" in said and "log:" in said


def test_why_no_node_starts_said_once_however_often_it_is_tried(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []
    starter: Any = SimpleNamespace(
        meet=lambda: None, failed=lambda: f"the node ended: {len(tried)}", start=lambda: tried.append(1)
    )
    kept = Connection(logging.getLogger("test.cistern"), starter)
    groups = (GroupShape("g", "full", 0, (64,)),)
    kept.open(
        SessionSpec(1, str(tmp_path / "socket"), "default", None, ((("name", "a"),),), groups, 4, False, "", "")
    )
    until(lambda: len(tried) >= 3)
    kept.close()
    assert caplog.text.count("the node ended") == 1


def test_node_started_ahead_of_the_first_request_and_kept(tmp_path: Path) -> None:
    """It takes its memory while it serves: what is saved meanwhile finds little of it, and takes long."""
    given = {"socket": str(tmp_path / "socket"), "memory": "64MiB", "memory_dir": str(tmp_path), "linger_s": 1}
    kept = Connection(logging.getLogger("test.cistern"), node_module.NodeStarter(options.read(given)))
    until(lambda: kept._met is not None)
    assert kept._met is not None and kept._met.status()["now"]
    assert kept.session is None
    kept.open(
        SessionSpec(
            1, str(tmp_path / "socket"), "default", None, ((("name", "a"),),), (GroupShape("g", "full", 0, (64,)),),
            4, False, "", "",
        )
    )
    until(lambda: kept.session is not None and kept._met is None)
    kept.close()


def test_disk_too_full_to_start_a_node_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "cistern.lock")

    monkeypatch.setattr(node_module, "os", SimpleNamespace(**{**vars(os), "open": full}))
    side = make(socket=str(tmp_path / "socket"), start_node=True, start_timeout_s=300)
    assert "none can be started: [Errno 28] No space left" in computes_after_one_message(side, caplog)


def test_node_that_answers_nonsense_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Another program at the socket, which sends what it likes and goes."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        server.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    with client, contextlib.suppress(OSError):
                        client.sendall(b"HTTP/1.1 400 Bad Request\r\n" * 40)

        threading.Thread(target=answer, daemon=True).start()
        said = computes_after_one_message(make(socket=str(tmp_path / "socket"), start_timeout_s=1), caplog)
        server.shutdown(socket.SHUT_RDWR)
    assert str(tmp_path / "socket") in said


def test_store_that_has_more_than_it_was_asked_for_loads_nothing_beyond(connection: OneConnection) -> None:
    side = ready()
    connection.store.blocks = 1000
    add(side, "second")
    assert side.match("second", 0) == (4 * SIZE, True)
    side.begin_load("second", ([1, 2, 3, 4],), 4 * SIZE)
    (load,) = side.step_orders({}).loads
    assert len(load.keys) == 4 and not load.invalid


def test_lease_of_a_load_released_with_its_end(connection: OneConnection) -> None:
    """One that is not holds its blocks against every other engine, for as long as it was taken."""
    side, released = ready(), []
    lease = SimpleNamespace(release=lambda: released.append("released"))
    connection.store.match = lambda *given, **more: SimpleNamespace(hold=lease)  # type: ignore[method-assign,assignment]
    connection.store.report = lambda **figures: None  # type: ignore[attr-defined]
    side.begin_load("first", ([1, 2, 3],), 3 * SIZE)

    def work() -> list[str]:
        assert connection.session is not None
        for one in connection.work:
            one(connection.session)
        connection.work.clear()
        return released

    (load,) = side.step_orders({}).loads
    assert work() == []
    side.handle_reports([RankReport(0, 0, loads=[LoadReport(0, load.id, 0)])], set())
    assert work() == ["released"]


def test_required_ends_the_engine_at_start_and_never_later(clock: Clock, connection: OneConnection) -> None:
    with pytest.raises(ConfigurationError, match="no node answers at /nowhere/socket"):
        make(required=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(coordinator_module, "require_node", lambda *given: None, raising=False)
        side = make(required=True)
    connection.opens = False
    add(side, "a")
    side.match("a", 0)
    clock.now += 1000
    assert side.match("a", 0) == (0, False)
    connection.refusal = "of another tenant"
    assert side.match("a", 0) == (0, False)


# ---------------------------------------------------------------------------- adapters


def test_new_adapter_makes_only_its_own_request_wait(
    connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = ready()
    number = side.step_orders({}).session_number
    name_files(monkeypatch)
    connection.opens = False
    add(side, "lora", adapter=Adapter("lora", 1, "/nowhere", False))
    def specified() -> bool:
        asked = side.match("lora", 0) == (None, False)
        return asked and connection.spec is not None and len(connection.spec.fields) == 2

    until(specified)
    assert connection.spec is not None
    add(side, "base")
    assert side.match("base", 0) == (3 * SIZE, True)
    orders = side.step_orders({"base": 5})
    assert orders.session_number == number and orders.spec is None
    # The node has attached it; the ranks join, and no number that a load or a save was given in has changed.
    connection.opens = True
    connection.open(connection.spec)
    assert side.match("lora", 0) == (None, False)
    join(side)
    assert side.match("lora", 0) == (3 * SIZE, True)
    assert side.step_orders({}).session_number == number


def test_adapter_files_looked_at_beside(connection: OneConnection, monkeypatch: pytest.MonkeyPatch) -> None:
    side = ready()
    there, seen = threading.Event(), []

    def state(adapter: Adapter) -> object:
        seen.append(threading.get_ident())
        assert there.wait(WATCHDOG_S)
        return adapter.path

    name_files(monkeypatch)
    monkeypatch.setattr(adapters_module, "_state", state)
    timer = threading.Timer(10, there.set)  # so that a scheduler that waits for it shows as such
    timer.start()
    add(side, "lora", adapter=Adapter("lora", 1, "/nowhere", False))
    assert side.match("lora", 0) == (None, False) and not there.is_set()
    add(side, "base")
    assert side.match("base", 0) == (3 * SIZE, True) and not there.is_set()
    timer.cancel()
    there.set()
    until(lambda: side.match("lora", 0)[1] or join(side))
    assert threading.get_ident() not in seen


class Share:
    """Where adapters lie: a look at one has an answer as long as it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there, self.looks = threading.Event(), 0
        self.there.set()
        self.elsewhere: set[str] = set()
        """Places that always answer."""
        self.waits: list[float] = []
        monkeypatch.setattr(adapters_module, "_state", self.state)
        monkeypatch.setattr(Adapters, "_digest", lambda self, adapter: adapter.name)
        monkeypatch.setattr(adapted_module, "wait", self.wait)

    def state(self, adapter: Adapter) -> object:
        self.looks += 1
        assert adapter.path in self.elsewhere or self.there.wait(WATCHDOG_S)
        return adapter.path

    def wait(self, of: Any, timeout_s: float) -> Any:
        self.waits.append(timeout_s)
        return concurrent.futures.wait(of, timeout_s)

    def hangs(self, side: Coordinator, lora: Adapter) -> None:
        """From now on, in the middle of a look."""
        self.there.clear()
        looks = self.looks
        side._adapted._adapters.ask(lora)
        until(lambda: self.looks > looks)


LORA = Adapter("lora", 1, "/nowhere", False)


def with_lora(connection: OneConnection, monkeypatch: pytest.MonkeyPatch) -> tuple[Coordinator, Share]:
    """A side that knows an adapter, of which it had a request with a hit of 3 blocks."""
    side, share = ready(), Share(monkeypatch)
    add(side, "first lora", adapter=LORA)
    until(lambda: side.match("first lora", 0)[1] or join(side))
    return side, share


def test_only_the_first_request_of_an_adapter_waits_for_a_share_that_hangs(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, share = with_lora(connection, monkeypatch)
    share.hangs(side, LORA)
    add(side, "a", adapter=LORA)
    assert side.match("a", 0) == (None, False)
    clock.now += 2 * adapted_module.LOOK_S
    add(side, "b", adapter=LORA)
    assert [side.match(name, 0) for name in "ab"] == [(0, False)] * 2
    # One that is late all the same does not have the next one wait either; one in time does.
    share.there.set()
    until(lambda: side._requests["b"].adapter.done())  # type: ignore[union-attr]
    share.hangs(side, LORA)
    add(side, "c", adapter=LORA)
    assert side.match("c", 0) == (0, False)
    share.there.set()
    until(lambda: not side._adapted._late)
    add(side, "d", adapter=LORA)
    until(lambda: side.match("d", 0) != (None, False))
    assert side.match("d", 0) == (3 * SIZE, True)
    side.close()


def test_request_that_waits_for_the_end_of_a_look_in_time_keeps_no_later_one_from_waiting(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread lost the processor between the look and its answer."""
    side, _ = with_lora(connection, monkeypatch)
    answers: list[concurrent.futures.Future[LoadedAdapter]] = []
    looks: list[Callable[[float], object]] = []

    def ask(
        self: Adapters, adapter: Adapter, looked: Callable[[float], object]
    ) -> concurrent.futures.Future[LoadedAdapter]:
        looks.append(looked)
        answers.append(concurrent.futures.Future())
        return answers[-1]

    monkeypatch.setattr(Adapters, "ask", ask)
    add(side, "a", adapter=LORA)
    looks[0](0.0)
    assert side.match("a", 0) == (None, False)
    loaded = side._adapted._adapters.loaded(LORA.number)
    assert loaded is not None
    answers[0].set_result(loaded)
    assert side.match("a", 0) == (3 * SIZE, True)
    clock.now += 2 * adapted_module.LOOK_S
    add(side, "b", adapter=LORA)
    assert side.match("b", 0) == (None, False)


@pytest.mark.parametrize("hangs", [True, False])
def test_adapter_that_each_request_loads_again_is_looked_at_as_one_that_is_known(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """So servers ask for one that they were told to load in place; new ones are read meanwhile."""
    side, share = with_lora(connection, monkeypatch)
    again, adapters = replace(LORA, reload=True), side._adapted._adapters
    share.elsewhere.add("" if hangs else LORA.path)
    share.there.clear()
    new = [adapters.ask(Adapter("new", number, "/new", False)) for number in range(2, 2 + adapters_module.MAX_READS)]
    until(lambda: all(one.running() for one in new))
    add(side, "a", adapter=again)
    until(lambda: hangs or side.match("a", 0) != (None, False))
    assert side.match("a", 0) == ((None, False) if hangs else (3 * SIZE, True))
    clock.now += 2 * adapted_module.LOOK_S
    assert side.match("a", 0) == ((0, False) if hangs else (3 * SIZE, True))
    share.there.set()
    side.close()


@pytest.mark.parametrize("known", [True, False])
def test_adapter_whose_files_are_read_is_waited_for_until_they_were(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    side, share = with_lora(connection, monkeypatch)
    there, reads = threading.Event(), threading.Event()

    def digest(self: Adapters, adapter: Adapter) -> str:
        reads.set()
        assert there.wait(WATCHDOG_S)
        return "other"

    monkeypatch.setattr(Adapters, "_digest", digest)
    adapter = Adapter("lora", 1 if known else 2, "/elsewhere", True)
    if known:
        with side.adapter_loading(adapter):
            pass
    add(side, "a", adapter=adapter)
    assert side.match("a", 0) == (None, False) and reads.wait(WATCHDOG_S)
    clock.now += 2 * adapted_module.LOOK_S
    assert side.match("a", 0) == (None, False)
    there.set()
    until(lambda: side.match("a", 0) != (None, False) or join(side))
    assert side.match("a", 0) == (3 * SIZE, True) and not side._adapted._late
    side.close()


def test_new_adapter_whose_files_hang_keeps_nobody_waiting_behind_its_first_request(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, share = ready(start_timeout_s=20), Share(monkeypatch)
    share.there.clear()
    add(side, "a", adapter=LORA)
    assert side.match("a", 0) == (None, False)
    clock.now += 19
    add(side, "b", adapter=LORA)
    assert [side.match(name, 0) for name in "ab"] == [(None, False)] * 2
    clock.now += 2
    add(side, "c", adapter=LORA)
    assert [side.match(name, 0) for name in "abc"] == [(0, False)] * 3
    share.there.set()
    side.close()


def test_request_of_an_adapter_waits_for_no_look_where_nothing_is_shared(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files were seen before it was computed, and later ones are shared."""
    there, reads, new = threading.Event(), threading.Event(), Adapter("new", 7, "/nowhere", False)

    def digest(self: Adapters, adapter: Adapter) -> str:
        if adapter is new:
            reads.set()
        assert there.wait(WATCHDOG_S)
        return adapter.name

    name_files(monkeypatch)
    monkeypatch.setattr(Adapters, "_digest", digest)
    side = ready()
    session, connection.session, connection.refusal = connection.session, None, "another release"
    add(side, "a", adapter=new)
    assert reads.wait(WATCHDOG_S) and side.match("a", 0) == (0, False)
    side.step_orders({"a": SIZE})
    connection.session, connection.refusal = session, ""
    add(side, "b", adapter=new)
    assert side.match("b", 0) == (None, False)
    there.set()
    until(lambda: side.match("b", 0)[1] or join(side))
    side.close()


def test_steps_look_for_an_adapters_answer_once_however_many_wait(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, share = with_lora(connection, monkeypatch)
    share.hangs(side, LORA)
    share.waits.clear()
    names = [f"{i} lora" for i in range(100)]
    for name in names:
        add(side, name, adapter=LORA)
    for _ in range(3):
        assert all(side.match(name, 0) == (None, False) for name in names)
    assert share.waits == [SOON_S]
    share.there.set()
    side.close()


@pytest.mark.parametrize("known", [True, False])
def test_adapter_whose_share_hangs_keeps_no_other_adapter_waiting(
    connection: OneConnection, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """Neither its requests nor its blocks: the other's look, or the reading of its files, goes on beside."""
    side, share = with_lora(connection, monkeypatch)
    other, adapters = Adapter("other", 2, "/other", False), side._adapted._adapters

    def of(adapter: Adapter) -> LoadedAdapter:
        loaded = adapters.loaded(adapter.number)
        assert loaded is not None
        return loaded

    share.elsewhere.add(other.path)
    if known:
        add(side, "first other", adapter=other)
        until(lambda: side.match("first other", 0)[1] or join(side))
    share.hangs(side, LORA if known else Adapter("new", 3, "/new", False))
    for _ in range(3):  # what waits behind a look that hangs takes no thread of its own
        add(side, "hung", adapter=LORA)
        adapters.ask_again(LORA, of(LORA))
    add(side, "other", adapter=other)
    until(lambda: side.match("other", 0)[1] or join(side))
    assert adapters.ask_again(other, of(other)).result(WATCHDOG_S)
    assert adapters._looks._threads <= 2 and adapters._reads._threads <= 2
    share.there.set()
    side.close()


def test_looks_at_adapters_are_as_many_as_these_at_most(
    connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests that come and of blocks that are to be seen, known and new, and each as fresh as it is asked for."""
    side, share = with_lora(connection, monkeypatch)
    adapters, new = side._adapted._adapters, Adapter("new", 2, "/new", False)
    loaded = adapters.loaded(LORA.number)
    assert loaded is not None
    share.there.clear()
    first = [adapters.ask(LORA), adapters.ask(new)]
    until(lambda: all(one.running() for one in first))
    later = [
        [adapters.ask(LORA) for _ in range(100)], [adapters.ask(new) for _ in range(100)],
        [adapters.ask_again(LORA, loaded) for _ in range(100)],
    ]
    assert [sum(map(len, one._lanes.values())) for one in (adapters._looks, adapters._reads)] == [2, 1]
    looks = share.looks
    share.there.set()
    assert [{one.result(WATCHDOG_S) for one in some} for some in later] == [{loaded}, {adapters.loaded(2)}, {True}]
    assert share.looks > looks and adapters.ask(LORA) is not later[0][0]
    side.close()


def test_nothing_is_shared_between_a_change_of_weights_and_an_emptied_cache(connection: OneConnection) -> None:
    """The engine's own prefix cache has KV of both until then."""
    side = ready()
    changed = side.step_orders({}).step
    side.handle_reports([RankReport(0, 0, begun=changed, weights_step=changed)], set())
    join(side)
    add(side, "doubtful")
    assert side.match("doubtful", 0) == (0, False)
    assert not side.step_orders({"doubtful": 4 * SIZE + 1}).saves
    side.prefix_cache_emptied()
    asks = side.step_orders({"doubtful": 1})
    assert asks.looks and not asks.saves and side.match("doubtful", 0) == (None, False)
    report = RankReport(0, 0, session=2, namespaces=1, begun=asks.step, weights_step=changed)
    side.handle_reports([report], set())
    connection.store.blocks = 2
    add(side, "later")
    assert side.match("later", 0) == (2 * SIZE, True)
    connection.store.blocks = 0
    add(side, "saved")
    assert side.match("saved", 0) == (0, False)
    assert side.step_orders({"saved": 4 * SIZE + 1}).saves


def test_wait_for_an_adapters_files_is_none_for_the_ranks_look(
    clock: Clock, connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = ready()
    there = threading.Event()

    def state(adapter: Adapter) -> object:
        there.wait(WATCHDOG_S)
        return adapter.path

    name_files(monkeypatch)
    monkeypatch.setattr(adapters_module, "_state", state)
    add(side, "lora", adapter=Adapter("lora", 1, "/nowhere", False))
    assert side.match("lora", 0) == (None, False)
    clock.now += 3
    side.prefix_cache_emptied()
    there.set()
    until(lambda: side.match("lora", 0) != (None, False) or side._requests["lora"].adapter is None)
    assert side.match("lora", 0) == (None, False)
    clock.now += 3
    assert side.match("lora", 0) == (0, False)


def test_namespace_added_to_the_session_that_stands(node: Node) -> None:
    def spec(number: int, *names: str) -> SessionSpec:
        return SessionSpec(
            number, str(node.socket), "default", None, tuple((("name", one),) for one in names),
            (GroupShape("g", "full", 0, (64,)),), SIZE, False, "", "",
        )

    connection = Connection(logging.getLogger("test.cistern"))
    try:
        connection.open(spec(1, "base"))
        first = connection.wait_session(1, WATCHDOG_S)
        assert first is not None
        connection.open(spec(1, "base", "adapter"))
        until(lambda: connection.session is not first)
        second = connection.session
        assert second is not None and second.store is first.store and second.connects == first.connects
        assert second.namespaces[:1] == first.namespaces and len(second.namespaces) == 2
    finally:
        connection.close()


def test_silent_node_keeps_nobody_waiting_who_makes_a_mover(node: Node) -> None:
    """The engine's thread makes it, with the first save or load of a session."""
    with Store.connect(node.socket) as store:
        node.signal(signal.SIGSTOP)
        goes_on = threading.Timer(3, node.signal, [signal.SIGCONT])  # so that one who waits for it shows as such
        goes_on.start()
        transfers = Transfers(store)
        waited = not goes_on.is_alive()
        goes_on.cancel()
        node.signal(signal.SIGCONT)
        transfers.close()
        assert not waited


def test_work_submitted_before_a_reset_is_done(node: Node) -> None:
    """Drops and abandons of the session that stood, although another is asked for at once."""
    spec = SessionSpec(
        1, str(node.socket), "default", None, ((("name", "work"),),), (GroupShape("g", "full", 0, (64,)),), SIZE, False,
        "", "",
    )
    connection = Connection(logging.getLogger("test.cistern"))
    try:
        connection.open(spec)
        assert connection.wait_session(1, WATCHDOG_S) is not None
        done = []
        busy = threading.Event()
        connection.submit(lambda session: busy.wait(WATCHDOG_S))
        for number in range(5):
            connection.submit(lambda session, number=number: done.append(number))  # type: ignore[misc]
        connection.open(SessionSpec(**{**spec.__dict__, "number": 2}))
        busy.set()
        assert connection.wait_session(2, WATCHDOG_S) is not None
        assert done == [0, 1, 2, 3, 4]
    finally:
        connection.close()


# ---------------------------------------------------------------------------- matches


def test_one_match_a_request_begun_when_it_arrives(connection: OneConnection) -> None:
    side = ready()
    before = connection.store.asked
    add(side, "second")
    assert connection.store.asked == before + 1
    for _ in range(3):  # the head of the queue is asked with each step, as long as there is no room for it
        assert side.match("second", 0) == (3 * SIZE, True)
    orders = side.step_orders({"second": 4 * SIZE + 1})
    assert [len(order.keys) for order in orders.saves] == [1]  # what the store has is not saved
    side.end_request("second", ([*range(1, 6)],))
    assert connection.store.asked == before + 1


def test_blocks_that_a_failed_load_missed_are_saved_again(connection: OneConnection) -> None:
    side = ready()
    add(side, "second")
    assert side.match("second", 0) == (3 * SIZE, True)
    side.begin_load("second", ([1, 2, 3],), 3 * SIZE)
    (load,) = side.step_orders({}).loads
    connection.store.blocks = 1
    loaded = LoadReport(0, load.id, 1, bad_pages=(2, 3))
    side.handle_reports([RankReport(0, 0, session=1, namespaces=1, loads=[loaded])], {2, 3})
    side._requests["second"].request.computed_tokens = SIZE  # type: ignore[misc]
    (save,) = side.step_orders({"second": 3 * SIZE + 1}).saves
    assert (save.first_block, len(save.keys)) == (1, 3)


def test_silent_node_answers_none_until_the_timeout_and_then_computes(
    clock: Clock, connection: OneConnection
) -> None:
    side = ready(match_timeout_s=0.05)
    connection.store.answers = False
    add(side, "second")
    clock.now += 3  # the engine was in a step meanwhile: that is not the node's time
    begun = clock.now
    assert side.match("second", 0) == (None, False)
    assert clock.now - begun < 0.001
    clock.now += 0.1
    assert side.match("second", 0) == (0, False)
    asked = connection.store.asked
    add(side, "third")
    assert side.match("third", 0) == (0, False) and connection.store.asked == asked  # not asked for a while
    clock.now += 2
    connection.store.answers = True
    add(side, "later")
    assert side.match("later", 0) == (3 * SIZE, True)


def test_drop_at_reset_does_not_wait_for_the_node(connection: OneConnection) -> None:
    side = ready(on_reset="drop")
    session = connection.session
    assert session is not None
    assert side.reset() is True
    assert connection.store.dropped == 0
    for work in connection.work:
        work(session)
    assert connection.store.dropped == 1


def test_drop_at_reset_without_a_node_says_that_nothing_was_dropped(
    connection: OneConnection, caplog: pytest.LogCaptureFixture
) -> None:
    side = ready(on_reset="drop")
    connection.session = None
    assert side.match("first", 0) == (0, False)
    assert side.reset() is True
    assert not connection.work and "was not dropped" in caplog.text


def test_late_save_of_before_a_reset_is_reported_all_the_same(connection: OneConnection) -> None:
    """An order that no rank gets is reported by none: its pages would stay referenced, and the engine would step on."""
    side = ready()
    connection.store.blocks = 0
    add(side, "second")
    assert side.match("second", 0) == (0, False)
    orders = [*side.step_orders({"second": SIZE}).saves]
    side._requests["second"].request.computed_tokens = 4 * SIZE  # type: ignore[misc]
    side.end_request("second", ([*range(1, 6)],))
    side.reset()
    orders += side.step_orders({}).saves
    assert [one.invalid for one in orders] == [False, True]  # the ranks hold a session with other namespaces by then
    reports = [SaveReport(0, one.id, len(one.keys)) for one in orders]
    side.handle_reports([RankReport(0, orders[-1].step, saves=reports)], set())
    assert len(orders) == 2 and not side.pending


def test_reset_goes_on_with_the_requests_of_which_nothing_is_computed(connection: OneConnection) -> None:
    """In the new generation, by a match of its own; the others are neither saved nor loaded."""
    side = ready()
    for name in ("fresh", "begun"):
        add(side, name)
    side.step_orders({"begun": SIZE})
    side.reset()
    connection.store.blocks, asked = 2, connection.store.asked
    assert side.match("fresh", 0) == (None, False)
    join(side)
    assert side.match("fresh", 0) == (2 * SIZE, True) and connection.store.asked == asked + 1
    assert side.match("begun", 0) == (0, False)


def test_save_of_before_a_reset_is_abandoned_where_it_was_put(
    connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new session has other namespaces under the same numbers, and no adapter's yet: looked for there, a put was
    not found, and kept its room until it expired."""
    side = ready()
    name_files(monkeypatch)
    connection.store.blocks = 0
    add(side, "lora", adapter=Adapter("lora", 1, "/nowhere", False))
    until(lambda: side.match("lora", 0) == (0, False) or join(side))
    add(side, "base")
    assert side.match("base", 0) == (0, False)
    before = connection.session
    assert before is not None and len(before.namespaces) == 2
    base, lora = sorted(side.step_orders({"lora": SIZE, "base": SIZE}).saves, key=lambda one: one.namespace)
    side.reset()
    side.step_orders({})
    reports = [SaveReport(0, one.id, 1) for one in (base, lora)]
    side.handle_reports([RankReport(0, base.step, saves=reports)], set())
    after = connection.session
    assert after is not None and after is not before and len(after.namespaces) == 1
    for work in connection.work:
        work(after)
    wanted = [(before.namespaces[one.namespace], one.put_ids[0]) for one in (base, lora)]
    assert sorted(connection.store.abandoned, key=str) == sorted(wanted, key=str)
    assert side.stats.total["abandoned_blocks"] == 2 and not side.pending


def test_conversation_ends_behind_its_requests_of_before(connection: OneConnection) -> None:
    """The engine runs the request that ends it first: the other one's match had no answer yet."""
    side, done = ready(), []
    store: Any = connection.store
    store.publish = lambda *given, **more: done.append("publish")
    store.end_conversation = lambda *given, **more: done.append("end")
    store.answers = False

    def talk(name: str, **more: Any) -> None:
        side.add_request(OneRequest(name), options.RequestParameters(conversation="talk", **more))

    def settle() -> list[str]:
        assert connection.session is not None
        for work in connection.work:
            work(connection.session)
        connection.work.clear()
        return done

    settle(), done.clear()
    talk("waits")
    talk("ends", end_conversation=True)
    talk("later")
    side.end_request("ends", ([*range(1, 6)],))
    assert settle() == []
    store.answers, store.blocks = True, 0
    assert side.match("waits", 0) == (0, False)
    orders = side.step_orders({"waits": 4 * SIZE + 1})
    side.end_request("waits", ([*range(1, 6)],))
    assert settle() == []
    reports = [SaveReport(0, one.id, len(one.keys)) for one in orders.saves]
    side.handle_reports([RankReport(0, orders.step, saves=reports)], set())
    assert settle() == ["publish", "end"]  # and not behind what came later


def test_match_begun_and_looked_at_later(node: Node) -> None:
    from cistern import NamespaceSpec

    with Store.connect(node.socket) as store:
        namespace = store.attach(NamespaceSpec({"test": "begun"}))
        store.put(namespace, bytes(32), b"body", parent=None)
        begun = store.begin_match(namespace, [bytes(32), bytes([1]) * 32])
        while not begun.ready():
            pass
        assert begun.result().blocks == 1


# ---------------------------------------------------------------------------- events


def test_what_a_match_does_not_find_is_told_unless_the_node_is_silent(
    clock: Clock, connection: OneConnection
) -> None:
    side, listener = ready(), Listener()
    side._listener = listener
    add(side, "second")
    assert side.match("second", 0) == (3 * SIZE, True)
    assert listener.told == [OneRequest("second").hashes[3:]]
    connection.store.answers = False
    add(side, "third")
    assert side.match("third", 0) == (None, False)
    clock.now += 1
    assert side.match("third", 0) == (0, False)
    assert len(listener.told) == 1
    side.reset()
    assert listener.told[1:] == ["forked"]


# ---------------------------------------------------------------------------- declined hits


def test_declined_hits_counted_and_probed(connection: OneConnection) -> None:
    side = ready()
    side._pace.step(100_000, 0.001)  # computing is sooner than any load
    side._pace.load(1 << 20, 1.0)
    answers = []
    for number in range(8):
        add(side, f"x{number}")
        answers.append(side.match(f"x{number}", 0))
        assert side.match(f"x{number}", 0) == answers[-1]  # asked again: answered, and counted, the same
    assert answers.count((3 * SIZE, True)) == 1 and answers.count((0, False)) == 7
    assert side.stats.total["declined"] == 8 and side.stats.total["probes"] == 1


def test_dropped_namespace_is_attached_anew(node: Node) -> None:
    """Somebody else dropped it: an operator, a neighbour's reset, or the cell whose history is another one. The calls
    of who had attached it miss from then on."""
    spec = SessionSpec(
        1, str(node.socket), "default", None, ((("name", "dropped"),),), (GroupShape("g", "full", 0, (64,)),), SIZE,
        False, "", "",
    )
    connection = Connection(logging.getLogger("test.cistern"))
    key = [bytes(32)]

    def blocks() -> int:
        """By the session that stands, as a request asks."""
        session = connection.session
        if session is None:
            return -1
        asked = Match()
        matches = Matches(connection, WATCHDOG_S, lambda said: None)
        matches.begin(asked, session, 0, Chain(key))
        until(lambda: matches.answered(asked, session))
        return asked.found

    try:
        connection.open(spec)
        first = connection.wait_session(1, WATCHDOG_S)
        assert first is not None
        with Store.connect(node.socket) as other:
            theirs = other.attach(spec.namespace_spec(0))
            theirs, _ = other.drop_namespace(theirs)
            other.write(theirs, key, [bytes(64)])
        until(lambda: blocks() == 1)
        assert connection.session is not first
    finally:
        connection.close()


def test_drop_at_reset_reaches_what_was_written_since_another_drop(node: Node) -> None:
    """An engine that has asked nothing since has the namespace of before the other drop."""
    spec = SessionSpec(
        1, str(node.socket), "default", None, ((("name", "reset"),),), (GroupShape("g", "full", 0, (64,)),), SIZE,
        False, "", "",
    )
    key = [bytes(32)]
    with Store.connect(node.socket) as own, Store.connect(node.socket) as other:
        session = Session(spec, own, [own.attach(spec.namespace_spec(0))])
        theirs, _ = other.drop_namespace(other.attach(spec.namespace_spec(0)))
        other.write(theirs, key, [bytes(64)])
        assert other.match(theirs, key).blocks == 1
        coordinator_module._drop_namespaces(session, session)
        assert other.match(other.attach(spec.namespace_spec(0)), key).blocks == 0


def test_what_a_load_saved_is_told_of_the_tokens_that_it_brought(connection: OneConnection) -> None:
    """Those at the end of a long prompt look back at all of it."""
    told: list[dict[str, int]] = []
    side = ready()
    connection.store.report = lambda **more: told.append(more)  # type: ignore[attr-defined]
    for tokens, begin in ((1, 0), (200, 0), (2048, 0), (2048, 8192)) * 10:
        squares = tokens * (2 * begin + tokens)
        side._pace.step(tokens, 0.008 + tokens * 2e-4 + squares * 3e-8, squares)
    connection.store.blocks = 4000
    add(side, "chat", blocks=4001)
    begin = 2000 * SIZE
    more, _ = side.match("chat", begin)
    assert more == 2000 * SIZE
    side.begin_load("chat", ([*range(1, 4002)],), more)
    (load,) = side.step_orders({}).loads
    side.handle_reports([RankReport(0, 0, loads=[LoadReport(0, load.id, 2000, took_us=1)])], set())
    assert connection.session is not None
    for work in connection.work:
        with contextlib.suppress(AttributeError):  # leases, of which this store has none
            work(connection.session)
    assert [one["saved_us"] for one in told] == [int(side._pace.compute_s(more, begin) * 1e6)]


def test_engine_that_saves_nothing_measures_its_steps(clock: Clock, connection: OneConnection) -> None:
    """Else each hit were worth its load, however late it comes."""
    side = ready(save="none")
    for _ in range(3):
        orders = side.step_orders({"first": 1000})
        clock.now += 0.1
        side.handle_reports([RankReport(0, orders.step if orders.timed else 0, session=1, namespaces=1)], set())
    runs = (MatchRun(3, "flash", 6_000_000),)
    connection.store.begin_match = lambda *given, **more: SimpleNamespace(  # type: ignore[method-assign]
        ready=lambda: True, result=lambda: MatchResult(3, runs, None)
    )
    add(side, "second")
    assert side.match("second", 0) == (0, False)


def test_few_steps_that_save_nothing_are_timed(connection: OneConnection) -> None:
    side = ready(save="none")
    side._pace.step(1, 0.1)
    timed = [side.step_orders({"first": 1}).timed for _ in range(4 * coordinator_module.TIMED_EVERY)]
    assert sum(timed) == 4
