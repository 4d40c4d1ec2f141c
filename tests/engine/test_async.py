# SPDX-License-Identifier: Apache-2.0
"""vLLM's own AsyncScheduler and block pool, with mock workers and a store in a dictionary: two steps in flight, drafts
of which some are rejected, preemption and resumption in a tiny KV space, aborts, loads that fail in part. A page's
content is, for each position, a hash over all that it was computed from, so that whatever ends up under a wrong key,
or was read while being reused, shows."""

from __future__ import annotations

import random
from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("vllm")

from harness import transfer_config  # noqa: E402

import cistern.engine.coordinator as coordinator_module  # noqa: E402
from cistern.engine.facts import host  # noqa: E402
from cistern.engine.orders import LoadReport, RankFacts, RankReport, SaveReport, StepOrders  # noqa: E402
from cistern.engine.session import Session, SessionSpec  # noqa: E402
from cistern.store import MatchResult, MatchRun  # noqa: E402
from cistern.vllm.connector import CisternConnector, Reports  # noqa: E402

BLOCK, PAGES, DRAFTS, ANSWER = 16, 26, 3, 40


class DictionaryStore:
    """Blocks by key; a put is its content until it is published."""

    owner = bytes(16)

    def __init__(self) -> None:
        self.blocks: dict[bytes, tuple[int, ...]] = {}
        self.puts: dict[bytes, tuple[bytes, tuple[int, ...]]] = {}

    def begin_match(self, namespace: object, chain: Any, **more: object) -> Any:
        answer = self.match(namespace, chain)
        return SimpleNamespace(ready=lambda: True, result=lambda: answer)

    def match(self, namespace: object, chain: Any, **more: object) -> MatchResult:
        count = 0
        for key in chain:
            if key not in self.blocks:
                break
            count += 1
        return MatchResult(count, (MatchRun(count, "memory", 0),) if count else (), None)

    def report(self, **figures: int) -> None:
        assert figures["delivered_tokens"] <= figures["promised_tokens"]

    def publish(self, namespace: object, puts: list[bytes], **more: object) -> None:
        for put in puts:
            key, content = self.puts.pop(put)
            self.blocks.setdefault(key, content)

    def abandon(self, namespace: object, puts: list[bytes], **more: object) -> None:
        for put in puts:
            self.puts.pop(put, None)


class StoreConnection:
    """A connection whose node answers at once."""

    def __init__(self, store: DictionaryStore) -> None:
        self.store, self.session, self.refusal, self.failures, self.start_failure = store, None, "", 0, ""
        self.lacking = ""
        self.when_lost: list[object] = []

    def open(self, spec: SessionSpec) -> None:
        self.session = Session(spec, self.store, [None])  # type: ignore[arg-type,list-item,assignment]

    def submit(self, work: Any) -> None:
        work(self.session)

    def lose(self, session: object) -> None:
        raise AssertionError

    def flush(self, timeout_s: float) -> bool:
        return True

    def close(self) -> None:
        pass


def mix(before: int, token: int) -> int:
    return hash((before, token))


class MockWorker:
    """Executes steps in their order, copies slowly, and keeps each request's true tokens as a model runner would."""

    def __init__(self, dice: random.Random, store: DictionaryStore) -> None:
        self.dice, self.store = dice, store
        self.pages: list[list[int]] = [[0] * BLOCK for _ in range(PAGES)]
        self.tokens: dict[str, list[int]] = {}
        self.computed: dict[str, int] = {}
        self.copies: list[Any] = []
        self.loads: list[Any] = []
        self.reported_facts = False

    def sample(self, tokens: list[int]) -> int:
        return 3 + abs(mix(len(tokens), tokens[-1])) % 400

    def execute(self, step: Any) -> tuple[Any, Any]:
        from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput

        orders: StepOrders = step.orders
        self.loads += orders.loads
        ids, sampled = [], []
        for name, count in step.scheduled.items():
            if name in step.fresh:
                self.tokens[name], self.computed[name] = list(step.fresh[name][0]), step.fresh[name][1]
            sampled.append(self.forward(name, count, step.tables[name], len(step.drafts.get(name, ()))))
            ids.append(name)
        self.copies += [order for order in orders.saves]
        report = RankReport(
            0, orders.step if orders.saves else 0, session=orders.session_number, namespaces=1,
            begun=orders.step if orders.looks else 0,
        )
        if not self.reported_facts:
            report.facts, self.reported_facts = RankFacts(0, host(), "cpu", "", (1,), ("mock",)), True
        output = KVConnectorOutput(kv_connector_worker_meta=Reports([report]))
        self.copy_some(report)
        self.load_some(report, output)
        return ids, ModelRunnerOutput(
            req_ids=ids, req_id_to_index={name: i for i, name in enumerate(ids)}, sampled_token_ids=sampled,
            kv_connector_output=output,
        )

    def forward(self, name: str, count: int, table: list[int], drafts: int) -> list[int]:
        tokens, at = self.tokens[name], self.computed[name]
        true = list(tokens)
        while len(true) < at + count:  # what will have been right, had each draft been
            true.append(self.sample(true))
        wrong_from = at + count - drafts + self.dice.randrange(drafts + 1) if drafts else at + count
        for position in range(at, at + count):
            token = true[position] if position < wrong_from or position < len(tokens) else 1
            before = 0
            if position:
                before = self.pages[table[(position - 1) // BLOCK]][(position - 1) % BLOCK]
            assert table[position // BLOCK] != 0
            self.pages[table[position // BLOCK]][position % BLOCK] = mix(before, token)
        good = min(at + count, max(wrong_from, len(tokens)))
        self.computed[name] = good
        if good < len(tokens):
            return []  # a prompt's chunk
        new = true[len(tokens) : good]
        new.append(self.sample(true[:good]))
        tokens += new
        return new

    def copy_some(self, report: RankReport) -> None:
        """Reads the pages when it gets to it: later than the engine would like to use them again."""
        while self.copies and self.dice.random() < 0.5:
            order = self.copies.pop(0)
            good = len(order.keys) if self.dice.random() < 0.9 else self.dice.randrange(len(order.keys))
            for key, put, page in zip(order.keys[:good], order.put_ids[0], order.pages[0], strict=False):
                self.store.puts[put] = (key, tuple(self.pages[page]))
            report.saves.append(SaveReport(0, order.id, good))

    def load_some(self, report: RankReport, output: Any) -> None:
        while self.loads and self.dice.random() < 0.6:
            order = self.loads.pop(0)
            good = len(order.keys) if self.dice.random() < 0.7 else self.dice.randrange(len(order.keys))
            for key, page in zip(order.keys[:good], order.pages[0], strict=False):
                self.pages[page] = list(self.store.blocks[key])
            bad = tuple(order.pages[0][good:])
            report.loads.append(LoadReport(0, order.id, good, bad_pages=bad))
            output.finished_recving = {*(output.finished_recving or ()), order.request}
            output.invalid_block_ids |= set(bad)


def make_scheduler(
    model: Path, monkeypatch: pytest.MonkeyPatch, store: DictionaryStore, policy: str = "recompute"
) -> tuple[Any, Any]:
    import torch
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    monkeypatch.setattr(coordinator_module, "Connection", lambda logger, starter=None: StoreConnection(store))
    import cistern.vllm

    cistern.vllm.register()
    config = EngineArgs(
        model=str(model), skip_tokenizer_init=True, dtype="float32", enforce_eager=True, max_model_len=256,
        max_num_seqs=6, max_num_batched_tokens=64, kv_cache_memory_bytes=1 << 20,
        kv_transfer_config={
            **transfer_config(socket="/nowhere", start_node=False, max_pages_share=0.5, min_load_tokens=1),
            "kv_load_failure_policy": policy,
        },
        speculative_config={"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 2},
    ).create_engine_config()
    config.scheduler_config.async_scheduling = True
    config.cache_config.block_size = BLOCK
    config.cache_config.num_gpu_blocks = PAGES
    spec = FullAttentionSpec(block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv = KVCacheConfig(num_blocks=PAGES, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
    made = AsyncScheduler(
        vllm_config=config, kv_cache_config=kv, block_size=BLOCK, hash_block_size=BLOCK, log_stats=False,
        structured_output_manager=SimpleNamespace(accept_tokens=lambda *_: True),
    )
    function = get_hash_fn_by_name("sha256")
    init_none_hash(function)
    return made, get_request_block_hasher(BLOCK, function)


def execute(scheduler: Any, worker: Any, out: Any, requests: dict[str, Any]) -> Any:
    """The worker's output of a step that was scheduled, in which new and resumed requests bring all their tokens."""
    starts = {one.req_id: one.num_computed_tokens for one in out.scheduled_new_reqs}
    cached = out.scheduled_cached_reqs
    starts |= {n: c for n, c in zip(cached.req_ids, cached.num_computed_tokens, strict=True)
               if n in cached.resumed_req_ids}
    _, output = worker.execute(SimpleNamespace(
        orders=out.kv_connector_metadata.orders, scheduled=dict(out.num_scheduled_tokens),
        drafts=dict(out.scheduled_spec_decode_tokens),
        fresh={n: (list(requests[n].all_token_ids), c) for n, c in starts.items()},
        tables={n: list(scheduler.kv_cache_manager.get_block_ids(n)[0]) for n in out.num_scheduled_tokens},
    ))
    return output


def content_of(tokens: list[int]) -> list[int]:
    content, before = [], 0
    for token in tokens:
        before = mix(before, token)
        content.append(before)
    return content


def run(small: Path, monkeypatch: pytest.MonkeyPatch, seed: int, plant: Any = None) -> tuple[int, int, int]:
    """Counts of wrong blocks among the published, of preemptions, and of loads."""
    from vllm import SamplingParams
    from vllm.v1.request import Request, RequestStatus

    dice, store = random.Random(seed), DictionaryStore()
    scheduler, hasher = make_scheduler(small, monkeypatch, store)
    assert isinstance(scheduler.connector, CisternConnector)
    if plant is not None:
        plant(scheduler.connector.coordinator)
    worker = MockWorker(dice, store)
    requests: dict[str, Any] = {}
    flight: deque[tuple[Any, Any]] = deque()
    loads = 0
    for turn in range(900):
        if turn < 500 and len(requests) < 40 and dice.random() < 0.15:
            name = f"r{len(requests)}"
            tokens = [dice.randrange(3, 9) for _ in range(dice.randrange(5, 90))]
            if requests and dice.random() < 0.5:  # goes on where an earlier one was, or ended
                earlier = list(dice.choice(list(requests.values())).all_token_ids)
                tokens = [*earlier[: dice.randrange(len(earlier) + 1)], *tokens][:150]
            chosen = SamplingParams(max_tokens=ANSWER, temperature=0, ignore_eos=True, detokenize=False)
            requests[name] = Request(
                request_id=name, prompt_token_ids=tokens, sampling_params=chosen, pooling_params=None,
                block_hasher=hasher,
            )
            scheduler.add_request(requests[name])
        if dice.random() < 0.01 and scheduler.running:
            scheduler.finish_requests(dice.choice(scheduler.running).request_id, RequestStatus.FINISHED_ABORTED)
        if len(flight) < 2 and scheduler.has_requests():
            out = scheduler.schedule()
            loads += len(out.kv_connector_metadata.orders.loads)
            flight.append((out, execute(scheduler, worker, out, requests)))
        if flight and (len(flight) == 2 or dice.random() < 0.3 or not scheduler.has_requests()):
            scheduler.update_from_output(*flight.popleft())
        if turn >= 500 and not scheduler.has_requests() and not flight:
            break
    expected = {}
    for request in requests.values():
        content = content_of(list(request.all_token_ids))
        for number, key in enumerate(request.block_hashes):
            expected[bytes(key)] = tuple(content[number * BLOCK : (number + 1) * BLOCK])
    assert len(store.blocks) > 20
    wrong = sum(expected.get(key) != content for key, content in store.blocks.items())
    if plant is None:
        finished = [one for one in requests.values() if one.status == RequestStatus.FINISHED_LENGTH_CAPPED]
        assert len(finished) > 10
        assert scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == PAGES - 1
    return wrong, sum(one.num_preemptions for one in requests.values()), loads


def test_published_blocks_hold_their_keys_content(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [run(small, monkeypatch, seed) for seed in range(12)]
    assert [wrong for wrong, _, _ in runs] == [0] * len(runs)
    assert sum(preempted for _, preempted, _ in runs) > 10 and sum(loads for _, _, loads in runs) > 10


def uncomputed(side: Any) -> None:
    """Planted bug: every hashed token counts as computed."""
    side._plan.frontier = lambda tokens, **more: tokens


def unreferenced(side: Any) -> None:
    """Planted bug: pages may be reused while they are copied."""
    pool = side._pool
    side._pool = SimpleNamespace(pages_of=pool.pages_of, reference=lambda pages: None, release=lambda pages: None)


@pytest.mark.parametrize("plant", [uncomputed, unreferenced])
def test_planted_bug_found(small: Path, monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    """The test above can fail."""
    assert sum(run(small, monkeypatch, seed, plant)[0] for seed in range(4)) > 0


# ---------------------------------------------------------------------------- a reset in the middle


def test_reset_of_running_requests_while_they_are_saved(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM raises where a block is still in use after all requests were preempted. Late copies show nowhere."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    store = DictionaryStore()
    scheduler, hasher = make_scheduler(small, monkeypatch, store)
    scheduler.connector.coordinator._options = SimpleNamespace(
        **{**scheduler.connector.coordinator._options.__dict__, "load": False}
    )
    worker = MockWorker(random.Random(1), store)
    monkeypatch.setattr(worker, "copy_some", lambda report: None)
    chosen = SamplingParams(max_tokens=ANSWER, temperature=0, ignore_eos=True, detokenize=False)
    request = Request(
        request_id="r", prompt_token_ids=[3 + i % 5 for i in range(60)], sampling_params=chosen, pooling_params=None,
        block_hasher=hasher,
    )
    scheduler.add_request(request)

    def one_step() -> Any:
        out = scheduler.schedule()
        scheduler.update_from_output(out, execute(scheduler, worker, out, {"r": request}))
        return out

    while not worker.copies:
        one_step()
    assert scheduler.reset_prefix_cache(reset_running_requests=True) is True
    late = [worker.copies.pop(0) for _ in range(len(worker.copies))]
    report = RankReport(0, 0, session=1, namespaces=1)
    for order in late:
        for key, put in zip(order.keys, order.put_ids[0], strict=True):
            store.puts[put] = (key, (0,) * BLOCK)
        report.saves.append(SaveReport(0, order.id, len(order.keys)))
    scheduler.connector.coordinator.handle_reports([report], set())
    assert not store.blocks and not store.puts
    monkeypatch.undo()
    while scheduler.has_unfinished_requests():
        one_step()
    expected = content_of(list(request.all_token_ids))
    for number, key in enumerate(request.block_hashes):
        found = store.blocks.get(bytes(key))
        assert found is None or found == tuple(expected[number * BLOCK : (number + 1) * BLOCK])
    assert store.blocks


@pytest.mark.parametrize(("asked", "prompt"), [(True, 13 * BLOCK), (False, 13 * BLOCK), (True, 15 * BLOCK)])
def test_no_request_preempted_or_kept_waiting_for_pages_that_saves_of_another_keep(
    small: Path, monkeypatch: pytest.MonkeyPatch, asked: bool, prompt: int
) -> None:
    """Copies never end. `asked`: not where vLLM does not ask the connector; then it preempts. `prompt`: of a request
    for which there is room at first, or none at all."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    monkeypatch.setattr(coordinator_module.Coordinator.makes_room, "__defaults__", (0.0,))
    monkeypatch.setattr(coordinator_module, "WAITING_ROOM_S", 0.0)
    store = DictionaryStore()
    scheduler, hasher = make_scheduler(small, monkeypatch, store)
    if not asked:
        monkeypatch.setattr(scheduler.connector, "has_pending_block_frees", lambda: False)
    worker = MockWorker(random.Random(1), store)
    monkeypatch.setattr(worker, "copy_some", lambda report: None)
    requests: dict[str, Any] = {}

    def begin(name: str, first: int, tokens: int, answer: int) -> None:
        chosen = SamplingParams(max_tokens=answer, temperature=0, ignore_eos=True, detokenize=False)
        requests[name] = Request(
            request_id=name, prompt_token_ids=[first + i % 5 for i in range(tokens)], sampling_params=chosen,
            pooling_params=None, block_hasher=hasher,
        )
        scheduler.add_request(requests[name])

    def until_the_end() -> None:
        for _ in range(300):
            if not scheduler.has_unfinished_requests() or any(one.num_preemptions for one in requests.values()):
                return
            out = scheduler.schedule()
            scheduler.update_from_output(out, execute(scheduler, worker, out, requests))
        raise AssertionError("the engine is stuck")

    begin("ended", 3, 12 * BLOCK, 1)
    until_the_end()
    assert worker.copies
    begin("runs", 103, prompt, min(ANSWER, 250 - prompt))
    until_the_end()
    assert (requests["runs"].num_preemptions == 0) is asked


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_load_failure_policy_fail_said_at_start(
    small: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, policy: str
) -> None:
    import logging

    logger = logging.getLogger("vllm.cistern")
    logger.addHandler(caplog.handler)
    try:
        make_scheduler(small, monkeypatch, DictionaryStore(), policy)
    finally:
        logger.removeHandler(caplog.handler)
    said = {one.levelname for one in caplog.records if "kv_load_failure_policy" in one.getMessage()}
    assert said == ({"ERROR"} if policy == "fail" else set())
