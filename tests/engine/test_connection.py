# SPDX-License-Identifier: Apache-2.0
"""The connection alone: its thread goes on whatever it meets, and what has to be done is done."""

from __future__ import annotations

import fcntl
import logging
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import WATCHDOG_S
from scheduler_side import SIZE, OneConnection, OneStore, ready, until

import cistern.engine.connection as connection_module
from cistern import Busy, Denied, Error, Gone, IoError, MatchResult, Mismatch, NamespaceSpec, Unavailable
from cistern.engine import node as node_module
from cistern.engine import options
from cistern.engine.connection import Connection
from cistern.engine.conversations import Conversations, Ending
from cistern.engine.orders import LoadOrder
from cistern.engine.session import Session, SessionSpec
from cistern.engine.written import LoadLeases, WrittenPuts

SPEC = SessionSpec(1, "", "default", None, ((),), (), SIZE, False, "", "")
LOGGER = logging.getLogger("test.cistern")


def test_thread_that_lost_the_processor_between_two_looks_at_the_clock_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of the next attempt comes between them."""
    now, meets = [0.0], []

    def monotonic() -> float:
        now[0] += 0.04
        return now[0]

    monkeypatch.setattr(connection_module, "time", SimpleNamespace(monotonic=monotonic))
    starter: Any = SimpleNamespace(meet=lambda: meets.append(1))
    kept = Connection(LOGGER, starter)
    until(lambda: len(meets) >= 3)
    kept.close()


def test_attempt_that_raises_what_nobody_expects_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    """Without its thread an engine shares nothing until it is started again."""
    meets: list[int] = []

    def meet() -> None:
        meets.append(1)
        raise RuntimeError("can't start new thread")

    starter: Any = SimpleNamespace(meet=meet)
    kept = Connection(LOGGER, starter)
    until(lambda: len(meets) >= 3)
    kept.close()
    assert caplog.text.count("can't start new thread") == 1


def test_idle_engine_keeps_no_other_from_starting_the_node_again(tmp_path: Path) -> None:
    """It has no session before its first request; the node that it started may end meanwhile."""
    given = {"socket": str(tmp_path / "socket"), "memory": "64MiB", "memory_dir": str(tmp_path), "linger_s": 1}
    kept = Connection(LOGGER, node_module.NodeStarter(options.read(given)))
    until(lambda: kept._met is not None)
    with (tmp_path / "socket.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    kept.close()


def test_idle_engine_gives_its_node_no_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It looks every second whether its node lives, as does each rank of each engine of the host: not by a call."""
    monkeypatch.setattr(connection_module, "ALIVE_CHECK_S", 0.01)
    looks: list[object] = []
    kept, store = Connection(LOGGER), SimpleNamespace(report=lambda: looks.append("alive"), close=lambda: None)
    kept.session = Session(SPEC, store, [object()])  # type: ignore[arg-type,list-item]
    kept.open(SPEC)
    until(lambda: len(looks) >= 3 or caplog.text)
    kept.close()
    assert not caplog.text


def test_adapter_without_room_leaves_the_base_models_sharing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """When the node comes back it may have room for fewer namespaces than the engine had found before."""
    specs: list[dict[str, str]] = []
    full = [True]

    def attach(spec: NamespaceSpec, **more: object) -> object:
        specs.append(dict(spec.fields))
        if spec.fields.get("adapter") == "third" and full[0]:
            raise Busy("1024 namespaces")
        return spec

    store: Any = SimpleNamespace(attach=attach, report=lambda: None, close=lambda: None)
    monkeypatch.setattr(connection_module.Store, "connect", lambda *given, **more: store)
    wanted = replace(SPEC, fields=((), *((("adapter", name),) for name in ("second", "third", "fourth"))))
    kept = Connection(LOGGER)
    kept.open(wanted)
    until(lambda: len(specs) >= 3)
    until(lambda: kept.session is not None)
    standing = kept.session
    assert standing is not None and kept.failures == 0 and "1024" in kept.lacking
    assert len(standing.namespaces) == len(standing.spec.fields) == 2
    full[0] = False
    until(lambda: kept.session is not None and len(kept.session.namespaces) == 4)
    assert kept.session is not None and kept.session.spec == wanted and not kept.lacking
    assert kept.session.store is store and kept.session.connects == standing.connects
    kept.close()
    assert caplog.text.count("1024 namespaces") == 1


def test_adapters_before_the_one_without_room_extend_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def attach(spec: NamespaceSpec, **more: object) -> object:
        if spec.fields.get("adapter") == "third":
            raise Busy("1024 namespaces")
        return spec

    kept, standing = Connection(LOGGER), session()
    standing.store.attach = attach  # type: ignore[method-assign,assignment]
    kept._spec, kept.session = SPEC, standing
    kept.open(replace(SPEC, fields=((), (("adapter", "second"),), (("adapter", "third"),))))
    until(lambda: kept.lacking)
    until(lambda: kept.session is not None and len(kept.session.namespaces) == 2)
    kept.close()


def test_engine_that_was_refused_shares_once_the_node_is_of_another_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines are upgraded first, or the node is rolled back below one that runs."""
    monkeypatch.setattr(connection_module, "REFUSED_AGAIN_S", 0.01)
    node: list[Error] = [Mismatch("a list of version 2, this node reads 1")]
    asked: list[Error | None] = []

    def connect(*given: object, **more: object) -> object:
        asked.append(node[0] if node else None)
        if node:
            raise node[0]
        return SimpleNamespace(attach=lambda spec, **more: spec, report=lambda: None, close=lambda: None)

    monkeypatch.setattr(connection_module.Store, "connect", connect)
    kept = Connection(LOGGER)
    kept.open(SPEC)
    until(lambda: len(asked) >= 2)
    assert "version 2" in kept.refusal
    node[:] = [Gone("it is restarted")]
    until(lambda: not kept.refusal)
    node.clear()
    until(lambda: kept.session is not None)
    kept.close()


def test_node_that_an_idle_engine_has_met_is_let_go_of_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before its first request an engine has no session, and maps the node's memory nonetheless."""
    monkeypatch.setattr(connection_module, "ALIVE_CHECK_S", 0.01)
    closed: list[object] = []

    def report() -> None:
        raise Gone("the node ended")

    first: Any = SimpleNamespace(report=report, close=lambda: closed.append(first))
    second: Any = SimpleNamespace(report=lambda: None, close=lambda: closed.append(second))
    nodes, short = [first, second], []
    starter: Any = SimpleNamespace(meet=lambda: nodes.pop(0), keep_log_short=lambda: short.append(1))
    kept = Connection(LOGGER, starter)
    until(lambda: kept._met is second)
    assert closed == [first]
    until(lambda: short)
    kept.close()
    assert closed == [first, second]


def test_node_that_a_refused_engine_has_met_is_let_go_of_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other one could start in its place."""
    monkeypatch.setattr(connection_module, "REFUSED_AGAIN_S", 0.01)
    closed: list[object] = []
    answers: list[Error] = [Mismatch("of another release"), Gone("the node ended")]

    def connect(*given: object, **more: object) -> object:
        raise answers.pop(0) if len(answers) > 1 else answers[0]

    monkeypatch.setattr(connection_module.Store, "connect", connect)
    met: Any = SimpleNamespace(report=lambda: None, close=lambda: closed.append(met))
    starter: Any = SimpleNamespace(
        meet=lambda: met, failed=lambda: "", start=lambda: None, keep_log_short=lambda: None
    )
    kept = Connection(LOGGER, starter)
    until(lambda: kept._met is met)
    kept.open(SPEC)
    until(lambda: closed == [met])
    kept.close()


def test_session_that_gives_way_to_another_owners_is_let_go_of_by_whoever_refers_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    left: list[object] = []

    def connect(*given: object, owner: bytes, **more: object) -> object:
        return SimpleNamespace(
            attach=lambda spec, **more: spec, report=lambda: None, close=lambda: left.append(owner)
        )

    monkeypatch.setattr(connection_module.Store, "connect", connect)
    kept = Connection(LOGGER)
    kept.when_lost.append(left.append)
    first, second = bytes([1]) * 16, bytes([2]) * 16
    kept.open(replace(SPEC, owner=first))
    until(lambda: kept.session is not None)
    before = kept.session
    kept.open(replace(SPEC, number=2, owner=second))
    until(lambda: left == [first, before])
    kept.close()


def test_rank_does_not_ask_for_an_owner_that_went_with_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler side has another one by then, and names it with the orders of the next step."""
    monkeypatch.setattr(connection_module, "ALIVE_CHECK_S", 0.01)
    alive, asked, left = [True], [], []
    gone, fresh = bytes([1]) * 16, bytes([2]) * 16

    def report() -> None:
        if not alive[0]:
            raise Gone("the node ended")

    def connect(*given: object, owner: bytes, **more: object) -> object:
        asked.append(owner)
        if not alive[0] and owner == gone:
            raise Denied("the owner token is of no open session")
        return SimpleNamespace(attach=lambda spec, **more: spec, report=report, close=lambda: left.append("closed"))

    monkeypatch.setattr(connection_module.Store, "connect", connect)
    kept = Connection(LOGGER)
    kept.when_lost.append(lambda session: left.append("told"))
    kept.open(replace(SPEC, owner=gone))
    until(lambda: kept.session is not None)
    alive[0] = False
    until(lambda: left == ["closed", "told"])
    assert kept.session is None
    kept.open(replace(SPEC, owner=gone))  # by orders of before the scheduler side knew
    until(lambda: kept._gone_owner == gone)
    alive[0] = True
    kept.open(replace(SPEC, number=2, owner=fresh))
    until(lambda: kept.session is not None)
    kept.close()
    assert asked == [gone, gone, fresh]


def test_leases_of_a_node_that_ended_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each keeps its memory mapped; the load that has it ends when the engine takes a step."""
    monkeypatch.setattr(connection_module, "ALIVE_CHECK_S", 0.01)
    alive = [True]

    def report() -> None:
        if not alive[0]:
            raise Gone("the node ended")

    answer = MatchResult(1, (), object())  # type: ignore[arg-type]
    store: Any = SimpleNamespace(
        attach=lambda spec, **more: spec, match=lambda *given, **more: answer, report=report, close=lambda: None
    )
    monkeypatch.setattr(connection_module.Store, "connect", lambda *given, **more: store)
    kept = Connection(LOGGER)
    leases = LoadLeases(kept)
    kept.open(SPEC)
    until(lambda: kept.session is not None)
    leases.take(LoadOrder(7, "r", 0, 0, [bytes(32)], [[3]], deadline_us=5_000_000), [bytes(32)])
    until(lambda: leases._leases)
    alive[0] = False
    until(lambda: not leases._leases)
    kept.close()


def test_load_that_ended_while_its_node_was_silent_leases_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However much waits for the node by then: else the leases of all of them keep its memory full when it is back."""
    monkeypatch.setattr(connection_module, "MAX_WORK", 8)
    silent, leased, released = threading.Event(), [], []

    def match(namespace: object, chain: object, hold_us: int) -> MatchResult:
        leased.append(1)
        assert silent.wait(WATCHDOG_S)
        return MatchResult(1, (), SimpleNamespace(release=lambda: released.append(1)))  # type: ignore[arg-type]

    store: Any = SimpleNamespace(report=lambda: None, close=lambda: None, match=match)
    kept = Connection(LOGGER)
    leases = LoadLeases(kept)
    kept.session = Session(SPEC, store, [object()])  # type: ignore[list-item]
    kept.open(SPEC)
    orders = [LoadOrder(number, "r", 0, 0, [bytes(32)], [[3]], deadline_us=5_000_000) for number in range(12)]
    for order in orders:
        leases.take(order, order.keys)
    until(lambda: leased)
    for order in orders:
        leases.release(order.id)  # of which there is no room for any
    silent.set()
    assert kept.flush(WATCHDOG_S)
    assert (len(leased), len(released), leases._leases) == (1, 1, {})
    kept.close()


# ---------------------------------------------------------------------------- what has to be done


def session() -> Session:
    store: Any = SimpleNamespace(report=lambda: None, close=lambda: None)
    return Session(SPEC, store, [object()])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "refusal", [Busy("tombstones"), Unavailable("etcd"), IoError("the journal's disk is full"), Gone("the node")]
)
def test_kept_work_is_done_though_it_is_refused_at_first(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    monkeypatch.setattr(connection_module, "ALIVE_CHECK_S", 0.01)
    kept, done = Connection(LOGGER), []
    monkeypatch.setattr(kept, "_attempt", lambda before, spec: setattr(kept, "session", session()) or True)
    kept._spec, kept.session = SPEC, session()

    def work(name: str, now: Session) -> None:
        done.append(name)
        if len(done) == 1:
            raise refusal

    kept.submit(lambda now: work("kept", now), kept=True)
    kept.submit(lambda now: work("other", now))
    until(lambda: done.count("kept") == 2)
    kept.close()
    assert done[0] == "kept" and done.count("other") <= 1


def test_kept_work_waits_for_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "ALIVE_CHECK_S", 0.01)
    kept, done = Connection(LOGGER), []
    kept.submit(lambda now: done.append("kept"), kept=True)
    kept.submit(lambda now: done.append("dropped"))
    assert kept.flush(60) and not done
    kept.session = session()
    kept.open(SPEC)
    until(lambda: done)
    kept.close()
    assert done == ["kept"]


def test_drop_at_reset_reaches_a_node_that_was_started_anew(connection: OneConnection) -> None:
    side = ready(on_reset="drop")
    assert connection.session is not None
    other = OneStore()
    connection.session = Session(connection.session.spec, other, [object()])  # type: ignore[arg-type,list-item]
    side.reset()  # nobody has asked anything since
    third = OneStore()
    for work in connection.work:
        work(Session(connection.session.spec, third, [object()]))  # type: ignore[arg-type,list-item]
    assert (connection.store.dropped, other.dropped, third.dropped) == (0, 0, 1)


def test_end_of_a_conversation_that_is_refused_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its client wanted removed would stay, and a later restart of the node remove what came after."""
    monkeypatch.setattr(connection_module, "ALIVE_CHECK_S", 0.01)
    ends: list[str] = []

    def end(namespace: object, name: str, **more: object) -> None:
        ends.append(name)
        if len(ends) == 1:
            raise Busy("tombstones")

    kept, standing = Connection(LOGGER), session()
    standing.store.end_conversation = end  # type: ignore[method-assign]
    kept._spec, kept.session = SPEC, standing
    plan: Any = SimpleNamespace(requests=(), saving=lambda namespace, name: False)
    conversations = Conversations(kept, plan, WrittenPuts(kept))
    conversations.end(Ending(standing, 1, 0, "chat-17", frozenset()))
    conversations.settle()
    until(lambda: len(ends) == 2)
    kept.close()
    conversations.settle()
    assert ends == ["chat-17"] * 2 and not conversations._ending
