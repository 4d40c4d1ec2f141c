# SPDX-License-Identifier: Apache-2.0
"""The node is killed, restarted, hung, full, or loses a block at the wrong moment: right tokens, the engine lives, the
next request is right. The answers to compare with are those of an engine without a connector."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import PATIENT, Engine, Node, prompt, transfer_config

BLOCK = 128
KNOWN = [prompt(number, 1500) for number in range(6)]
NEW = [prompt(100 + number, 700) for number in range(8)]

CONNECTED = """
side = connector(llm).coordinator
before = asked["before"]
session = side.connection.wait_session(1, 30)
while session is None or session.connects <= before:
    with side.connection._wake:
        side.connection._wake.wait(1)
    session = side.connection.session
answer = session.connects
"""
"""Waits until the engine's scheduler side has connected once more than `before`."""

WHEN_LOADING = """
import os, signal
side = connector(llm).coordinator
lease = side._leases.take
def strike(order, keys):
    side._leases.take = lease
    lease(order, keys)
    side.connection.flush(5)
    for pid, number in asked["signals"]:
        os.kill(pid, number)
side._leases.take = strike
"""
"""Sends signals the moment that the next load is ordered, before any rank has begun it."""

DROP_WHEN_LOADING = """
side = connector(llm).coordinator
lease = side._leases.take
def drop(order, keys):
    side._leases.take = lease
    session = side._shared.session
    session.store.drop(session.namespaces[0], [order.keys[asked["block"]]])
side._leases.take = drop
"""
"""The moment that the next load is ordered, the store loses one of its blocks (and what descends from it)."""


@pytest.fixture(scope="module")
def right(small: Path) -> dict[str, list[int]]:
    with Engine(small, None) as oracle:
        return {str(one): oracle.generate([one])[0]["tokens"] for one in [*KNOWN, *NEW]}


class Told:
    """An engine, a node, and what is asked of both."""

    def __init__(self, engine: Engine, node: Node, right: dict[str, list[int]]) -> None:
        self.engine, self.node, self._right = engine, node, right
        self._new = iter(NEW)

    def right(self, tokens: list[int]) -> int:
        """Asks; the answer must be right. How many tokens were cached."""
        (answer,) = self.engine.generate([tokens])
        assert answer["tokens"] == self._right[str(tokens)]
        assert isinstance(answer["cached"], int)
        return answer["cached"]

    def right_afresh(self, tokens: list[int]) -> int:
        """As right(), with the engine's own cache emptied before."""
        assert self.engine.ask("reset") is True
        return self.right(tokens)

    def new(self) -> int:
        return self.right(next(self._new))

    def connections(self) -> int:
        count = self.engine.run("s = connector(llm).coordinator.connection.session; answer = s.connects if s else 0")
        assert isinstance(count, int)
        return count

    def counted(self, name: str) -> int:
        value = self.engine.ask("counted").get(name, 0)
        assert isinstance(value, int)
        return value


@pytest.fixture(scope="module")
def told(small: Path, right: dict[str, list[int]]) -> Iterator[Told]:
    with Node() as node, Engine(
        small, transfer_config(node, load_timeout_s=2.0, save_timeout_s=2.0)
    ) as engine:
        one = Told(engine, node, right)
        for tokens in KNOWN:
            assert one.right(tokens) == 0
        yield one


FULL = (1500 - 1) // BLOCK * BLOCK


def test_a_block_lost_between_answer_and_load(told: Told) -> None:
    """The load fails in the middle with nothing else running: it ends, the good prefix is kept, the rest is
    computed, and the request is not answered again."""
    failed = told.counted("failed_loads")
    told.engine.run(DROP_WHEN_LOADING, block=5)
    told.right_afresh(KNOWN[0])
    assert told.counted("failed_loads") == failed + 1
    assert told.right_afresh(KNOWN[0]) == FULL  # what was computed was stored again
    told.engine.run(DROP_WHEN_LOADING, block=0)
    told.right_afresh(KNOWN[0])
    assert told.right_afresh(KNOWN[0]) == FULL


def test_killed_before_a_load_and_restarted(told: Told) -> None:
    before = told.connections()
    told.node.kill()
    told.right_afresh(KNOWN[1])
    told.new()
    told.node.start()
    told.engine.run(CONNECTED, before=before)
    told.new()
    assert told.right_afresh(KNOWN[2]) == FULL  # what lay in memory is there again


def test_killed_while_loading(told: Told) -> None:
    assert told.node.process is not None
    before = told.connections()
    told.engine.run(WHEN_LOADING, signals=[[told.node.process.pid, signal.SIGKILL]])
    told.right_afresh(KNOWN[3])
    told.new()
    told.node.kill()
    told.node.start()
    told.engine.run(CONNECTED, before=before)
    assert told.right_afresh(KNOWN[3]) == FULL


def test_hung_while_loading(told: Told) -> None:
    assert told.node.process is not None
    told.engine.run(WHEN_LOADING, signals=[[told.node.process.pid, signal.SIGSTOP]])
    told.right_afresh(KNOWN[4])
    told.new()  # the node neither answers the match nor takes the save
    told.right_afresh(KNOWN[4])
    told.node.signal(signal.SIGCONT)
    told.new()
    assert told.engine.run("answer = connector(llm).coordinator.connection.flush(20)")
    assert told.right_afresh(KNOWN[5]) == FULL


def test_all_references_came_back(told: Told) -> None:
    free, total = told.engine.run(
        "pool = core(llm).scheduler.kv_cache_manager.block_pool; "
        "answer = [pool.get_num_free_blocks(), pool.num_gpu_blocks]"
    )
    assert free == total - 1


def test_a_full_node(small: Path, right: dict[str, list[int]]) -> None:
    """The node holds some 380 blocks; more than that are saved."""
    with Node(memory="128MiB") as node, Engine(small, transfer_config(node, **PATIENT)) as engine:
        told = Told(engine, node, right)
        for number in range(40):
            engine.generate([prompt(500 + number, 1900)], max_tokens=2)
        for tokens in KNOWN:
            told.right(tokens)
        assert told.right_afresh(KNOWN[5]) == FULL
        assert node.status()["store"]["evicted"] > 0


SLOW_TO_ANSWER = """
from cistern import Store, TooLate
def late_once(name):
    call = getattr(Store, name)
    def late(*given, **more):
        setattr(Store, name, call)
        raise TooLate("the node did not answer within the deadline")
    setattr(Store, name, late)
late_once("connect")
late_once("publish")
"""
"""A busy host: the first of these calls goes unanswered."""


def test_a_node_that_is_slow_to_answer_is_waited_for(small: Path, right: dict[str, list[int]], node: Node) -> None:
    with Engine(small, transfer_config(node)) as engine:
        engine.run(SLOW_TO_ANSWER)
        engine.generate([KNOWN[0]], max_tokens=1)  # over with its first step: saved only by a session that stood
        assert Told(engine, node, right).right_afresh(KNOWN[0]) == FULL


def test_no_node_at_all(small: Path, right: dict[str, list[int]], tmp_path: Path) -> None:
    """The engine starts and computes; a node that appears later is used without a restart."""
    node = Node()
    try:
        with Engine(small, transfer_config(node)) as engine:
            told = Told(engine, node, right)
            assert told.right(KNOWN[0]) == 0
            node.start()
            engine.run(CONNECTED, before=0)
            told.right_afresh(KNOWN[1])
            told.right_afresh(KNOWN[1])
            assert told.right_afresh(KNOWN[1]) == FULL
    finally:
        node.remove()
