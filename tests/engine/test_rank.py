# SPDX-License-Identifier: Apache-2.0
"""One rank alone: its orders and reports in the order of an engine's calls, with a mover that ends what it is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

import cistern.engine.rank as rank_module
from cistern import Done
from cistern.engine import options
from cistern.engine.facts import ConfigurationError, EngineFacts, GroupFacts
from cistern.engine.mover import Batch
from cistern.engine.orders import LoadOrder, SaveOrder, StepOrders
from cistern.engine.rank import Rank
from cistern.engine.session import GroupShape, Session, SessionSpec
from cistern.engine.staging import NoStaging

SPEC = SessionSpec(
    1, "/nowhere", "default", bytes(16), ((("name", "base"),),), (GroupShape("g", "full", 0, (64,)),), 4, False, "", "",
)
FACTS = EngineFacts(
    ranks=1, identical_ranks=1, block_tokens=4, hash_tokens=4, pages=9, groups=(GroupFacts("g", 0, 1, ("layer",), 64),),
    drafts=True, logger="test.cistern",
)


class OneMover:
    """Ends a transfer with the next poll once it may."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, Batch]] = []
        self.ended, self.may_end, self.closed = 0, True, False
        self.left: list[Done] = []

    def load(self, batch: Batch) -> int:
        self.batches.append(("load", batch))
        return len(self.batches)

    def save(self, batch: Batch) -> int:
        self.batches.append(("save", batch))
        return len(self.batches)

    def poll(self) -> list[Done]:
        done, self.left = self.left, []
        while self.may_end and self.ended < len(self.batches):
            kind, batch = self.batches[self.ended]
            self.ended += 1
            done.append(Done(self.ended, kind, bytes(len(batch.keys)), b"", 1, 1, ""))  # type: ignore[arg-type]
        return done

    def wait(self, timeout_s: float) -> list[Done]:
        return self.poll()

    def close(self) -> None:
        """What was under way is reported as failed."""
        self.closed, begun = True, self.ended
        self.ended = len(self.batches)
        self.left = [
            Done(begun + i + 1, kind, bytes([1]) * len(batch.keys), b"", 0, 1, "closed")  # type: ignore[arg-type]
            for i, (kind, batch) in enumerate(self.batches[begun:])
        ]


class OneConnection:
    def __init__(self, *given: object) -> None:
        self.session: Session | None = None
        self.when_lost: list[object] = []
        self.refusal = ""

    def open(self, spec: SessionSpec) -> None:
        self.session = Session(spec, None, [object()] * len(spec.fields))  # type: ignore[arg-type,list-item]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[Rank, OneMover]]:
    def made() -> tuple[Rank, OneMover]:
        mover = OneMover()
        monkeypatch.setattr(rank_module, "Connection", OneConnection)
        monkeypatch.setattr(rank_module, "make_mover", lambda *given: mover)
        rank = Rank(options.Options(), FACTS, 0)
        rank._layouts = [SimpleNamespace(page_bytes=64, text="x")]  # type: ignore[list-item]
        return rank, mover

    return made


def save(number: int, step: int) -> SaveOrder:
    return SaveOrder(number, step, 0, 0, None, [bytes([number]) * 32], [[bytes([number]) * 16]], [[number]])


def step(number: int, *saves: SaveOrder, computes: bool = True, **more: Any) -> StepOrders:
    return StepOrders(number, more.get("spec"), 1, more.get("loads", []), list(saves), computes)


def run(rank: Rank, orders: StepOrders, saves_after_forward: bool) -> list[int]:
    """One step as vLLM's model runner has it; the saves that were reported with it."""
    rank.begin(orders)
    if saves_after_forward and orders.computes:
        rank.save(orders)
    rank.finished()
    report = rank.report()
    return [one.id for one in report.saves] if report is not None else []


@pytest.mark.parametrize("saves_after_forward", [True, False])
def test_saves_end_where_the_engine_says_no_end_of_the_forward_pass(
    make: Callable[[], tuple[Rank, OneMover]], saves_after_forward: bool
) -> None:
    """Runner V1 does not call wait_for_save on any pipeline stage but the last when it speculates (defer_finalize)."""
    rank, mover = make()
    steps = [step(1, save(1, 1), spec=SPEC), step(2, save(2, 2)), step(3, computes=False)]
    reported = [run(rank, one, saves_after_forward) for one in steps]
    assert sum(reported, []) == [1, 2]
    assert [batch.pages for _, batch in mover.batches] == [[1], [2]]
    if not saves_after_forward:
        assert reported[0] == []  # never before its step's forward pass was launched


def test_new_namespace_leaves_transfers_under_way_alone(make: Callable[[], tuple[Rank, OneMover]]) -> None:
    rank, mover = make()
    mover.may_end = False
    load = LoadOrder(7, "r", 0, 0, [bytes(32)], [[3]], deadline_us=5_000_000)
    run(rank, step(1, spec=SPEC, loads=[load]), True)
    wider = replace(SPEC, fields=(*SPEC.fields, (("name", "adapter"),)))
    adapters = replace(load, id=8, request="s", namespace=1, pages=[[4]])
    rank.begin(step(2, spec=wider, loads=[adapters]))
    mover.may_end = True
    finished, failed = rank.finished()
    report = rank.report()
    assert finished == {"r", "s"} and not failed and not rank.bad_pages()
    assert report is not None and [(one.id, one.blocks) for one in report.loads] == [(7, 1), (8, 1)]
    assert (report.session, report.namespaces) == (1, 2)


@pytest.mark.parametrize("kind", ["save", "load"])
def test_transfer_that_cannot_begin_fails_its_order_alone(
    make: Callable[[], tuple[Rank, OneMover]], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """A worker that raises takes its engine with it."""
    rank, mover = make()
    rank.begin(step(1, spec=SPEC))

    def full(batch: object) -> int:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(mover, kind, full)
    if kind == "save":
        rank.begin(step(2, save(7, 2), computes=False))
    else:
        rank.begin(step(2, loads=[LoadOrder(7, "r", 0, 0, [b"k" * 32], [[3]], deadline_us=5_000_000)]))
    finished, _ = rank.finished()
    report = rank.report()
    assert report is not None
    (ended,) = report.saves if kind == "save" else report.loads
    assert (ended.id, ended.blocks, ended.message) == (7, 0, "out of memory")
    assert (finished, rank.bad_pages()) == (({"r"}, {3}) if kind == "load" else (set(), set()))


def test_rank_that_finds_nothing_to_move_pages_with_goes_on(
    make: Callable[[], tuple[Rank, OneMover]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mover takes descriptors and threads, of which the process may have none left."""
    rank, mover = make()

    def none(*given: object) -> OneMover:
        raise RuntimeError("too many open files")

    with monkeypatch.context() as short:
        short.setattr(rank_module, "make_mover", none)
        load = LoadOrder(7, "r", 0, 0, [b"k" * 32], [[3]], deadline_us=5_000_000)
        rank.begin(step(1, save(1, 1), spec=SPEC, loads=[load], computes=False))
        rank.finished()
        report = rank.report()
    assert report is not None and rank.bad_pages() == {3}
    assert [(one.id, one.blocks, one.message) for one in report.saves] == [(1, 0, "too many open files")]
    assert [(one.id, one.blocks, one.message) for one in report.loads] == [(7, 0, "too many open files")]
    assert run(rank, step(2, save(2, 2)), True) == [2]


def test_order_in_a_namespace_that_the_rank_lacks_fails(make: Callable[[], tuple[Rank, OneMover]]) -> None:
    rank, mover = make()
    rank.begin(step(1, replace(save(1, 1), namespace=1), spec=SPEC, computes=False))
    report = rank.report()
    assert report is not None and [(one.id, one.blocks) for one in report.saves] == [(1, 0)] and not mover.batches


def test_pages_let_go_of_with_every_order_reported(make: Callable[[], tuple[Rank, OneMover]]) -> None:
    """Under way, or waiting for a session: each ends as failed, and what is ordered later has a mover of its own."""
    rank, mover = make()
    mover.may_end = False
    load = LoadOrder(7, "r", 0, 0, [bytes(32)], [[3]], deadline_us=5_000_000)
    run(rank, step(1, save(1, 1), spec=SPEC, loads=[load]), True)
    rank.begin(step(2, loads=[replace(load, id=8, request="s", namespace=1, pages=[[4]])]))
    rank.let_go_of_pages()
    finished, _ = rank.finished()
    report = rank.report()
    assert finished == {"r", "s"} and rank.bad_pages() == {3, 4} and mover.closed
    assert report is not None and [(one.id, one.blocks) for one in report.loads] == [(7, 0), (8, 0)]
    assert [(one.id, one.blocks) for one in report.saves] == [(1, 0)]
    mover.may_end = True
    assert run(rank, step(3, save(2, 3)), True) == [2]


def test_weights_that_sleep_are_looked_at_when_they_are_back(make: Callable[[], tuple[Rank, OneMover]]) -> None:
    """Memory of a device that is not mapped ends the engine: a request that is given up has it step while it sleeps."""
    rank, _ = make()
    looks: list[int] = []

    def look() -> bool:
        looks.append(1)
        return False

    rank.watch_weights(look)
    rank.report()
    rank.weights_go()
    rank.begin(replace(step(1, spec=SPEC, computes=False), looks=True))
    report = rank.report()
    assert not looks and (report is None or report.begun == 0)
    rank.weights_go(False)
    rank.begin(step(2, computes=False))
    report = rank.report()
    assert looks == [1] and report is not None and report.begun == 2
    rank.begin(step(3, computes=False))
    assert looks == [1]


def test_rank_that_joins_its_session_again_moves_pages_by_it(
    make: Callable[[], tuple[Rank, OneMover]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node ended this rank's connection alone: the session of the scheduler side, and with it the number, stand."""
    rank, former = make()
    former.may_end = False
    run(rank, step(1, save(1, 1), spec=SPEC), True)
    mover = OneMover()
    monkeypatch.setattr(rank_module, "make_mover", lambda *given: mover)
    rank.connection.session = Session(SPEC, object(), [object()], connects=1)  # type: ignore[arg-type,list-item]
    assert run(rank, step(2, save(2, 2)), True) == [2]
    assert [batch.pages for _, batch in mover.batches] == [[2]] and not former.closed
    former.may_end = True
    assert run(rank, step(3), True) == [1] and former.closed


@pytest.mark.parametrize("required", [False, True])
def test_device_without_memory_for_staging_computes_and_says_so(
    monkeypatch: pytest.MonkeyPatch, required: bool
) -> None:
    def none(*given: object) -> None:
        raise NoStaging("no memory for what pages pass through")

    tensor = SimpleNamespace(device=SimpleNamespace(type="cuda"))
    layout = SimpleNamespace(page_bytes=64, text="x", tensors=[tensor])
    monkeypatch.setattr(rank_module, "group_layout", lambda *given: layout)
    monkeypatch.setattr(rank_module, "take_staging", none)
    rank = Rank(options.Options(required=required), FACTS, 0)
    with pytest.raises(ConfigurationError, match="no memory") if required else contextlib.nullcontext():
        rank.register({})
        assert "no memory" in rank._rank_facts().unfit and not rank._layouts


def test_step_that_is_timed_is_reported_though_it_saves_nothing(make: Callable[[], tuple[Rank, OneMover]]) -> None:
    rank, _ = make()
    run(rank, step(1, spec=SPEC), True)
    rank.begin(replace(step(2), timed=True))
    report = rank.report()
    assert report is not None and report.step == 2
    rank.begin(step(3))
    assert rank.report() is None
