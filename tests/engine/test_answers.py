# SPDX-License-Identifier: Apache-2.0
"""The scheduler side alone: what it makes of the store's answers to its matches, and of how late it looks at them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harness import Node
from scheduler_side import SIZE, Clock, OneConnection, add, ready

from cistern import Chain, MatchResult, MatchRun, NamespaceSpec, Store
from cistern.engine.matches import MAX_PENDING, Match, Matches


def test_answer_of_what_can_never_be_read_is_computed_and_ends_no_engine(connection: OneConnection) -> None:
    side = ready()
    side._pace.step(100, 0.1)
    runs = (MatchRun(3, "flash", (1 << 63) - 1),)
    answer = SimpleNamespace(ready=lambda: True, result=lambda: MatchResult(3, runs, None))
    begin: Any = lambda *given, **more: answer  # noqa: E731
    connection.store.begin_match = begin  # type: ignore[method-assign]
    add(side, "second")
    assert side.match("second", 0) == (0, False)


# ---------------------------------------------------------------------------- a backlog


def test_requests_that_wait_leave_the_session_its_calls(node: Node) -> None:
    """What is saved meanwhile is published by the same session."""
    said: list[str] = []
    with Store.connect(node.socket) as store:
        session: Any = SimpleNamespace(store=store, namespaces=[store.attach(NamespaceSpec({"test": "backlog"}))])
        nobody: Any = SimpleNamespace(lose=None)
        matches, waiting = Matches(nobody, 60, said.append), [Match() for _ in range(300)]
        for number, one in enumerate(waiting):
            matches.begin(one, session, 0, Chain([bytes([number % 256, number // 256]).ljust(32)]))
        assert store.publish(session.namespaces[0], [b"p" * 16]) == 0
        for number, one in enumerate(waiting):
            while not matches.answered(one, session):
                matches.begin(one, session, 0, Chain([bytes([number % 256, number // 256]).ljust(32)]))
    assert [one.found for one in waiting] == [0] * 300 and not said


def test_questions_past_their_share_wait_for_a_place(clock: Clock, connection: OneConnection) -> None:
    side = ready(match_timeout_s=0.05)
    store = connection.store
    store.answers, before = False, store.asked
    for number in range(MAX_PENDING + 1):
        add(side, f"{number:03}")
    assert store.asked == before + MAX_PENDING
    last = f"{MAX_PENDING:03}"
    assert side.match(last, 0) == (None, False)
    store.answers = True
    clock.now += 0.01
    assert side.match(last, 0) == (3 * SIZE, True)


def test_place_that_no_question_gets_is_a_silent_node(clock: Clock, connection: OneConnection) -> None:
    side = ready(match_timeout_s=0.05)
    connection.store.answers = False
    for number in range(MAX_PENDING + 1):
        add(side, f"{number:03}")
    last = f"{MAX_PENDING:03}"
    assert side.match(last, 0) == (None, False)
    clock.now += 0.1
    assert side.match(last, 0) == (0, False)


def test_request_that_waited_is_asked_for_anew_at_its_turn(clock: Clock, connection: OneConnection) -> None:
    """What was there when it came may have gone, and what was not may have been saved by a neighbour."""
    side, store, wanted = ready(), connection.store, [0, 3]

    def begin(*given: object, **more: object) -> Any:
        blocks = wanted.pop(0)
        answer = MatchResult(blocks, (MatchRun(blocks, "memory", 0),) if blocks else (), None)
        return SimpleNamespace(ready=lambda: True, result=lambda: answer)

    store.begin_match = begin  # type: ignore[method-assign]
    add(side, "second")
    clock.now += 60
    assert side.match("second", 0) == (3 * SIZE, True)


def test_answer_that_a_long_step_kept_waiting_is_taken(clock: Clock, connection: OneConnection) -> None:
    side, store = ready(match_timeout_s=0.05), connection.store
    add(side, "second")
    clock.now += 60
    store.answers = False
    assert side.match("second", 0) == (None, False)
    store.answers, asked = True, store.asked
    clock.now += 5
    side.step_orders({})
    assert side.match("second", 0) == (3 * SIZE, True) and store.asked == asked
