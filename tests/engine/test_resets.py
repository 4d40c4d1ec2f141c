# SPDX-License-Identifier: Apache-2.0
"""Resets and changes of weights while loads are under way: nobody runs on what was loaded before."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from test_async import BLOCK, DictionaryStore, make_scheduler  # noqa: E402

import cistern.engine.rank as rank_module  # noqa: E402
from cistern import Done  # noqa: E402
from cistern.engine import options  # noqa: E402
from cistern.engine.facts import EngineFacts, GroupFacts, host  # noqa: E402
from cistern.engine.orders import LoadOrder, LoadReport, RankFacts, RankReport, SaveOrder, StepOrders  # noqa: E402
from cistern.engine.rank import Rank  # noqa: E402
from cistern.engine.session import Session  # noqa: E402
from cistern.vllm.connector import Reports  # noqa: E402

TOKENS = 6 * BLOCK + 3


class Stepped:
    """vLLM's own scheduler with one request whose blocks the store has, stepped by hand."""

    def __init__(self, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from vllm import SamplingParams
        from vllm.v1.request import Request

        self.store = DictionaryStore()
        self.scheduler, hasher = make_scheduler(small, monkeypatch, self.store)
        chosen = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True, detokenize=False)
        self.request = Request(
            request_id="r", prompt_token_ids=list(range(3, 3 + TOKENS)), sampling_params=chosen, pooling_params=None,
            block_hasher=hasher,
        )
        for key in self.request.block_hashes:
            self.store.blocks[bytes(key)] = (0,) * BLOCK
        self.scheduler.add_request(self.request)

    def schedule(self) -> tuple[Any, StepOrders]:
        out = self.scheduler.schedule()
        return out, out.kv_connector_metadata.orders

    def answer(self, step: tuple[Any, StepOrders], weights_step: int = 0, **more: Any) -> None:
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        out, orders = step
        report = RankReport(
            0, orders.step if orders.saves else 0, RankFacts(0, host(), "cpu", "", (1,), ("mock",)),
            session=orders.session_number, namespaces=1, begun=orders.step if orders.looks else 0,
            weights_step=weights_step, loads=more.pop("loads", []),
        )
        ids = list(out.num_scheduled_tokens)
        self.scheduler.update_from_output(out, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)}, sampled_token_ids=[[5]] * len(ids),
            kv_connector_output=KVConnectorOutput(kv_connector_worker_meta=Reports([report]), **more),
        ))

    def until_a_load(self) -> LoadOrder:
        for _ in range(10):
            step = self.schedule()
            self.answer(step)
            if step[1].loads:
                return step[1].loads[0]
        raise AssertionError("nothing is loaded")


def test_load_that_ends_well_after_a_reset_is_not_taken(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stepped = Stepped(small, monkeypatch)
    load = stepped.until_a_load()
    flying = stepped.schedule()
    assert stepped.scheduler.reset_prefix_cache(reset_connector=True) is False
    stepped.answer(flying, loads=[LoadReport(0, load.id, len(load.keys))], finished_recving={"r"})
    step = stepped.schedule()
    assert not step[0].num_scheduled_tokens  # it would run on what was loaded before the reset
    assert [one.id for one in step[1].failed] == [load.id] and step[1].epoch == flying[1].epoch + 1
    bad = load.pages[0]
    stepped.answer(
        step, loads=[LoadReport(0, load.id, 0, bad_pages=tuple(bad))], finished_recving={"r"},
        invalid_block_ids=set(bad),
    )
    out, orders = stepped.schedule()
    assert out.num_scheduled_tokens and not orders.loads
    assert [one.num_computed_tokens for one in out.scheduled_new_reqs] == [0]


def test_changed_weights_end_the_generation_until_the_cache_is_emptied(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = Stepped(small, monkeypatch)
    load = stepped.until_a_load()
    step = stepped.schedule()
    bad = load.pages[0]
    stepped.answer(
        step, weights_step=step[1].step, loads=[LoadReport(0, load.id, 0, bad_pages=tuple(bad))],
        finished_recving={"r"}, invalid_block_ids=set(bad),
    )
    out, orders = stepped.schedule()
    assert orders.epoch == 1 and orders.weights_step == step[1].step
    assert [one.num_computed_tokens for one in out.scheduled_new_reqs] == [0]
    assert not orders.saves and not orders.loads  # what the engine holds itself may be of the former weights


def test_emptied_cache_has_the_ranks_look_before_anything_is_loaded(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = Stepped(small, monkeypatch)
    assert stepped.scheduler.reset_prefix_cache() is True
    step = stepped.schedule()
    assert step[1].looks and not step[1].loads and not step[0].num_scheduled_tokens
    stepped.answer(step)
    assert stepped.until_a_load()


def test_request_that_waits_while_the_ranks_look_is_shared_in_the_new_generation(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stepped = Stepped(small, monkeypatch)
    stepped.answer(stepped.schedule())  # the ranks' facts
    assert stepped.scheduler.reset_prefix_cache() is True
    stepped.store.blocks.clear()
    step = stepped.schedule()
    assert step[1].looks and not step[0].num_scheduled_tokens
    stepped.answer(step, weights_step=step[1].step)
    for _ in range(4):
        out, orders = stepped.schedule()
        if orders.saves:
            break
        stepped.answer((out, orders))
    assert orders.epoch == 1 and orders.weights_step == step[1].step
    assert sum(len(one.keys) for one in orders.saves) > 0


# ---------------------------------------------------------------------------- a rank


class SlowMover:
    """A mover whose transfers end, well, when the test says."""

    def __init__(self) -> None:
        self.open: list[tuple[int, int]] = []
        self.ends = False

    def load(self, batch: Any) -> int:
        self.open.append((len(self.open) + 1, len(batch.keys)))
        return self.open[-1][0]

    save = load

    def poll(self) -> list[Done]:
        done = [Done(number, "load", bytes(blocks), b"", 0, 0, "") for number, blocks in self.open] if self.ends else []
        self.open = [] if self.ends else self.open
        return done

    def wait(self, timeout_s: float) -> list[Done]:
        return self.poll()

    def close(self) -> None:
        pass


LOAD = LoadOrder(1, "r", 0, 0, [b"a", b"b"], [[1, 2]], deadline_us=60_000_000)
SAVE = SaveOrder(2, 1, 0, 0, None, [b"a"], [[b"put"]], [[1]])
ORDERS = StepOrders(1, None, 1, [], [], computes=True)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> tuple[Rank, SlowMover]:
    facts = EngineFacts(1, 1, BLOCK, BLOCK, 8, (GroupFacts("group0", 0, 1, ("layer",), None),), False, "vllm.cistern")
    rank, mover = Rank(options.Options(), facts, 0), SlowMover()
    rank._layouts = [SimpleNamespace(page_bytes=1, text="one")]  # type: ignore[list-item]
    monkeypatch.setattr(rank_module, "make_mover", lambda *_: mover)
    rank._session_number = 1
    rank.connection.session = Session(SimpleNamespace(number=1), SimpleNamespace(), [None])  # type: ignore[arg-type]
    return rank, mover


def orders(**changed: Any) -> StepOrders:
    return dataclasses.replace(ORDERS, **changed)


def ends(rank: Rank, mover: SlowMover) -> int:
    """Blocks of the load that the rank reports as good."""
    mover.ends = True
    assert rank.finished()[0] == {"r"}
    report = rank.report()
    assert report is not None
    return report.loads[0].blocks


def test_load_without_a_reset_is_taken(moved: tuple[Rank, SlowMover]) -> None:
    rank, mover = moved
    rank.begin(orders(loads=[LOAD]))
    assert ends(rank, mover) == 2


def test_load_of_before_a_reset_ends_as_failed_before_the_new_session_is_there(moved: tuple[Rank, SlowMover]) -> None:
    rank, mover = moved
    rank.begin(orders(loads=[LOAD]))
    rank.begin(orders(step=2, epoch=1))
    assert ends(rank, mover) == 0 and rank.bad_pages() == {1, 2}


def test_load_and_save_of_before_a_weight_load_end_as_failed(moved: tuple[Rank, SlowMover]) -> None:
    rank, mover = moved
    rank.begin(orders(loads=[LOAD]))
    rank.weights_changed()
    rank.begin(orders(step=2, saves=[SAVE]))
    rank.save(orders(step=2, saves=[SAVE]))
    mover.ends = True
    rank.finished()
    report = rank.report()
    assert report is not None and report.weights_step == 2
    assert [one.blocks for one in (*report.loads, *report.saves)] == [0, 0]
    rank.begin(orders(step=3, weights_step=2, loads=[LOAD]))  # the scheduler side has heard of it
    assert ends(rank, mover) == 2


def test_noticed_load_is_not_found_again_by_a_look(moved: tuple[Rank, SlowMover]) -> None:
    rank, _ = moved
    seen, held = ["old"], ["old"]

    def look() -> bool:
        changed, seen[0] = seen[0] != held[0], held[0]
        return changed

    rank.watch_weights(look)
    held[0] = "new"
    rank.weights_changed()
    rank.begin(orders(step=2))
    rank.begin(orders(step=3, weights_step=2, looks=True))
    report = rank.report()
    assert report is not None and (report.begun, report.weights_step) == (3, 2)


def test_asked_rank_says_whether_its_weights_are_others(moved: tuple[Rank, SlowMover]) -> None:
    rank, _ = moved
    looks = iter([False, True])
    rank.watch_weights(lambda: next(looks))
    found = []
    for step in (5, 6):
        rank.begin(orders(step=step, looks=True))
        report = rank.report()
        assert report is not None
        found.append((report.begun, report.weights_step))
    assert found == [(5, 0), (6, 6)]
