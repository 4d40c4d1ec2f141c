# SPDX-License-Identifier: Apache-2.0
"""What the vLLM connector gives and costs, on a real vLLM with the model of the tests. Once `./dev test engine` has
installed one: `PYTHONPATH=build/release/python ~/.cache/cistern/engine-*/bin/python bench/engine/measure.py --help`.

    first    first token of 4,096 tokens that are known against computing them, median of 5, and out of the engine's
             own cache, which is the limit; the same after kill -9 and restart of node and engine
    peer     the same of tokens that another node's engine has computed: two nodes of a cell, with an etcd, on one host;
             and again once they are in its own node's memory, which is the limit there
    miss, throughput
             a workload in which nothing is known, connector on against off, interleaved pairs in one engine, several
             starts of it: first token, and time for a batch; median of the ratios with its 95 % interval
    saving   step time while blocks are being saved, against no connector, in the same way
    no_node  requests a second on a host on which no node can start (/dev/shm of 4 MiB: in Docker's 64 MiB a small one
             starts), from the second request on, against no connector, in the same way; and what trying to start one
             takes beside
    calibrate
             50 requests of mixed lengths, of which nothing, a part or all is known, in memory or on flash: the first
             token as the connector expects it when it answers, and as it comes; median of the errors
    calls    how long each of the connector's calls takes of the engine's thread, while blocks are being saved
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "engine"))

import model as models  # noqa: E402
from harness import CellNode, Engine, Etcd, Node, prompt, small_tmpfs, transfer_config  # noqa: E402

Work = Callable[[Engine, int], float]
"""The seconds that an engine took for the work of this number; the same number is the same prompts."""

KNOWN_TOKENS = 4096

STEPS = """
import time
from vllm import SamplingParams
engine, taken = llm.llm_engine, []
chosen = SamplingParams(max_tokens=asked["answer"], temperature=0, detokenize=False, ignore_eos=True)
for number, tokens in enumerate(asked["prompts"]):
    engine.add_request(f"{asked['round']}-{number}", {"prompt_token_ids": tokens}, chosen)
while engine.has_unfinished_requests():
    begun = time.perf_counter()
    engine.step()
    taken.append(time.perf_counter() - begun)
answer = taken[:-1]
"""


STEADY = {"VLLM_CPU_OMP_THREADS_BIND": "0"}
"""It computes on one core. Left alone, vLLM keeps one core free, with a connector two, and where there are no more than
that none: with two cores an engine with a connector would compute on twice as many."""

SWITCH = """
from vllm.distributed.kv_transfer import kv_transfer_state
core = llm.llm_engine.engine_core.engine_core
scheduler = core.scheduler
while scheduler.has_requests():
    core.step_fn()
if not hasattr(scheduler, "sides"):
    scheduler.sides = scheduler.connector, kv_transfer_state._KV_CONNECTOR_AGENT
    scheduler.connector._stepped_by_caller = False
scheduler.connector, kv_transfer_state._KV_CONNECTOR_AGENT = scheduler.sides if asked["on"] else (None, None)
answer = None
"""
"""Takes both sides of the connector out of an engine or puts them back; vLLM's own profiling does the same. Two engines
differ for as long as they live, by where their memory happens to lie: by up to a quarter was seen, whichever had the
connector. One engine, asked with and without it in turn, differs by the connector alone. What is still to be saved
after the last answer is stepped to its end here, as an engine core with a process of its own does."""


BESIDE = """
import os, resource, time
used, tick = 0.0, os.sysconf("SC_CLK_TCK")
for task in os.listdir("/proc/self/task"):
    name, _, rest = open(f"/proc/self/task/{task}/stat").read().partition(") ")
    if "(cistern" in name:
        used += sum(int(one) for one in rest.split()[11:13]) / tick
ended = resource.getrusage(resource.RUSAGE_CHILDREN)
answer = time.monotonic(), used + ended.ru_utime + ended.ru_stime
"""
"""Seconds of a processor that the connector's own threads have used so far, and the shells that start nodes; not what
the nodes used that it tried to start, which are no children of an engine."""

FORESEE = """
import time
from vllm import SamplingParams
from cistern.engine.tiers import load_ends
coordinator = connector(llm).coordinator
if not hasattr(coordinator, "foreseen"):
    coordinator.foreseen, answers = [], coordinator.match
    def match(request_id, computed):
        answer = answers(request_id, computed)
        if answer[0] is None or coordinator.foreseen:
            return answer
        tracked, pace = coordinator._requests[request_id], coordinator._pace
        loaded, tail = answer[0], tracked.request.tokens - computed - answer[0]
        ends = load_ends(tracked.match.runs, computed // coordinator._facts.block_tokens) if loaded else []
        ready_s = ends[0][1] if ends else 0.0
        bytes_ = coordinator._rank_bytes(loaded)
        coordinator.foreseen.append((time.perf_counter(), pace.first_token_s(loaded, bytes_, ready_s, computed, tail),
                                     ready_s, pace.beside_s, pace.loads.of(bytes_), pace.steps.parts()))
        return answer
    coordinator.match = match
coordinator.foreseen.clear()
chosen = SamplingParams(max_tokens=1, temperature=0, detokenize=False, ignore_eos=True)
(output,) = llm.generate([{"prompt_token_ids": asked["tokens"]}], chosen, use_tqdm=False)
came = time.perf_counter()
settle(llm)
answer = came - coordinator.foreseen[0][0], *coordinator.foreseen[0][1:], output.kv_transfer_params or {}
"""
"""One request: when its first token came after the connector's answer to the scheduler, and when that was expected."""

TIME_CALLS = """
import time
side = connector(llm)
worker = kv_transfer_state._KV_CONNECTOR_AGENT
noted = llm.noted = {}
def timed(owner, name, label):
    call, taken = getattr(owner, name), noted.setdefault(label, [])
    def wrapped(*given, **more):
        begun = time.perf_counter()
        try:
            return call(*given, **more)
        finally:
            taken.append(time.perf_counter() - begun)
    setattr(owner, name, wrapped)
for name in asked["scheduler"]:
    timed(side, name, "scheduler " + name)
for name in asked["worker"]:
    timed(worker, name, "worker " + name)
answer = None
"""
OF_THE_SCHEDULER = (
    "on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc", "build_connector_meta",
    "update_connector_output", "request_finished_all_groups", "has_pending_push_work", "take_events",
    "get_kv_connector_stats",
)
OF_THE_WORKER = (
    "bind_connector_metadata", "start_load_kv", "wait_for_save", "get_transfer_results",
    "get_block_ids_with_load_errors", "build_connector_worker_meta",
)


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median, and its 95 % interval: the order statistics between which the median of what was drawn lies with that
    probability, whatever its distribution (as many of n coin flips show heads)."""
    ordered, below, outside = sorted(ratios), 0, 0.0
    while (more := outside + math.comb(len(ordered), below) / 2 ** len(ordered)) <= 0.025:
        outside, below = more, below + 1
    return statistics.median(ordered), ordered[below - 1], ordered[-below]


def row(name: str, **values: Any) -> dict[str, Any]:
    words = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()]
    print(f"{name:<40} {'  '.join(words)}", file=sys.stderr, flush=True)
    return {"name": name, **values}


def took(engine: Engine, prompts: list[list[int]], answer: int) -> float:
    """Of prompts that are not known."""
    outputs = engine.generate(prompts, max_tokens=answer)
    assert not any((one["params"] or {}).get("cistern.loaded_tokens") for one in outputs), outputs
    seconds = outputs[0]["took"]
    assert isinstance(seconds, float)
    return seconds


def sooner(name: str, computed: list[float], known: list[float], cached: list[float]) -> dict[str, Any]:
    one, other, limit = (statistics.median(times) for times in (computed, known, cached))
    return row(name, computed_s=one, known_s=other, times_sooner=one / other, own_cache_s=limit)


def all_saved(node: Node, prompts: int) -> None:
    """Of prompts that were just computed: an engine publishes beside its answers."""
    node.wait_blocks(prompts * (KNOWN_TOKENS // 128))


def forget(engine: Engine) -> None:
    """The engine's own prefix cache; while blocks are still being saved it says no."""
    while engine.ask("reset") is not True:
        pass


def long_prompts(count: int) -> list[list[int]]:
    # The last block's last token is always computed: one token more than whole blocks is the fair question.
    return [[*prompt(number, KNOWN_TOKENS, 2000), 5] for number in range(count)]


def measured(
    engine: Engine, asked: list[list[int]], known: bool, where: str = "memory"
) -> tuple[list[float], list[float]]:
    """Seconds to the first token of each, and again out of the engine's own cache, which is the limit. The first
    request after a cache was emptied waits until the ranks have looked at their weights: another one is the first."""
    forget(engine)
    engine.generate([prompt(999, 300, 2000)])
    times, cached = [], []
    for tokens in asked:
        (one,) = engine.generate([tokens], max_tokens=1)
        params = one["params"] or {}
        assert params.get("cistern.loaded_tokens", 0) == (KNOWN_TOKENS if known else 0), one
        assert not known or params["cistern.where"] == where, one
        times.append(one["took"])
        cached += [again["took"] for again in engine.generate([tokens], max_tokens=1)]
    return times, cached


def first(model: Path, rounds: int, dtype: str) -> list[dict[str, Any]]:
    asked = long_prompts(2 * rounds)
    before, after = asked[:rounds], asked[rounds:]
    more = {"processes": True, "dtype": dtype, "kv_bytes": 400_000_000, "max_model_len": 8448}
    rows = []
    with Node(memory="1GiB") as node:
        engine = Engine(model, transfer_config(node), **more).ready()
        cold, _ = measured(engine, before, known=False)
        all_saved(node, rounds)
        rows.append(sooner("first_token_4096", cold, *measured(engine, before, known=True)))
        engine.kill()
        node.kill()
        node.start()
        with Engine(model, transfer_config(node), **more) as engine:
            again = measured(engine, before, known=True)
            cold, _ = measured(engine, after, known=False)  # engines differ by where their memory lies
        rows.append(sooner("first_token_4096_after_kill_9", cold, *again))
    return rows


def peer(model: Path, rounds: int, dtype: str) -> list[dict[str, Any]]:
    asked = long_prompts(2 * rounds)
    more = {"processes": True, "dtype": dtype, "kv_bytes": 400_000_000, "max_model_len": 8448}
    with Etcd() as etcd, CellNode(etcd, "one", memory="2GiB") as one, CellNode(etcd, "two", memory="2GiB") as two:
        with Engine(model, transfer_config(one), **more) as engine:
            measured(engine, asked[:rounds], known=False)
            all_saved(one, rounds)
        samples = one.wait_status(lambda status: status["now"]["pending"] == 0)["cell"]["samples"]
        two.wait_status(lambda status: status["cell"]["index_samples"] == samples)
        computed, known, cached, near = [], [], [], []
        with Engine(model, transfer_config(two), **more) as engine:
            for number in range(rounds):
                times, again = measured(engine, [asked[number]], known=True, where="peer")
                known += times
                cached += again
                near += measured(engine, [asked[number]], known=True)[0]
                computed += measured(engine, [asked[rounds + number]], known=False)[0]
    return [sooner("first_token_4096_of_another_node", computed, known, cached),
            sooner("first_token_4096_of_its_own_node", computed, near, cached)]


def pairs(engine: Engine, count: int, work: Work) -> list[float]:
    """Ratios of the engine with the connector to the same engine without over work of the same size: with, without,
    without, with. Between them it has nothing left to save."""
    ratios = []
    for number in range(count):
        taken = {True: 0.0, False: 0.0}
        for turn, on in enumerate((True, False, False, True)):
            engine.run(SWITCH, on=on)
            forget(engine)
            taken[on] += work(engine, 4 * number + turn)
        ratios.append(taken[True] / taken[False])
    return ratios


def compared(model: Path, starts: int, count: int, works: dict[str, Work], **more: Any) -> list[dict[str, Any]]:
    """A row for each work: the ratios of `count` pairs in each of so many starts of an engine and its node."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for start in range(starts):
        with Node(memory="512MiB") as node:
            with Engine(model, transfer_config(node), STEADY, **more) as engine:
                for name, work in works.items():
                    engine.run(SWITCH, on=True)
                    work(engine, -1)
                    before = node.status()["store"]["published"]
                    ratios = pairs(engine, count, work)
                    found[name] += ratios
                    row(f"{name}, start {start + 1}", median=statistics.median(ratios), least=min(ratios),
                        most=max(ratios))
                    assert node.status()["store"]["published"] > before, "nothing was saved"
    rows = []
    for name, ratios in found.items():
        median, low, high = interval(ratios)
        rows.append(row(name, starts=starts, pairs=len(ratios), median=median, low_95=low, high_95=high))
    return rows


def miss(model: Path, starts: int, count: int, dtype: str) -> list[dict[str, Any]]:
    def first_token(engine: Engine, number: int) -> float:
        return took(engine, [prompt(5_000 + number, 1000, 2000)], 1)

    return compared(
        model, starts, count, {"all_miss_first_token_on_over_off": first_token}, dtype=dtype, kv_bytes=200_000_000,
        max_model_len=4096,
    )


def batches(model: Path, starts: int, count: int, dtype: str) -> list[dict[str, Any]]:
    def throughput(engine: Engine, number: int) -> float:
        return took(engine, [prompt(10_000 + 10 * number + i, 500, 2000) for i in range(4)], 32)

    return compared(
        model, starts, count, {"all_miss_throughput_on_over_off": throughput}, dtype=dtype, kv_bytes=200_000_000,
        max_model_len=4096,
    )


def steps(engine: Engine, number: int) -> list[float]:
    """Seconds of each step of two long prompts in chunks, and of their answers."""
    prompts = [prompt(20_000 + 10 * number + i, 1500, 2000) for i in range(2)]
    taken = engine.run(STEPS, prompts=prompts, answer=24, round=number)
    assert isinstance(taken, list)
    return taken


IN_CHUNKS: dict[str, Any] = {
    "kv_bytes": 200_000_000, "max_model_len": 4096, "engine": {"max_num_batched_tokens": 512}
}


def saving(model: Path, starts: int, count: int, dtype: str) -> list[dict[str, Any]]:
    def mean(engine: Engine, number: int) -> float:
        taken = steps(engine, number)
        return sum(taken) / len(taken)

    return compared(
        model, starts, count, {"step_time_while_saving_on_over_off": mean}, dtype=dtype, **IN_CHUNKS
    )


def no_node(model: Path, starts: int, count: int, dtype: str) -> list[dict[str, Any]]:
    def batch(engine: Engine, number: int) -> float:
        return took(engine, [prompt(30_000 + 100 * number + i, 300, 2000) for i in range(16)], 8)

    ratios: list[float] = []
    shares = []
    for start in range(starts):
        with tempfile.TemporaryDirectory() as folder, Engine(
            model, transfer_config(socket=f"{folder}/socket"), STEADY, small_tmpfs(Path("/dev/shm"), "4m"),
            dtype=dtype, kv_bytes=200_000_000, max_model_len=4096,
        ) as engine:
            asked = 0
            # An engine whose weights are still being read asks for no node yet, and waits for none.
            while "the engine computes until a node is there" not in engine.log():
                asked += 1
                assert asked < 1000, engine.log()[-3000:]
                seconds = took(engine, [prompt(20_000 + asked, 300, 2000)], 1)
                if asked == 1:
                    row(f"no_node_first_request, start {start + 1}", seconds=seconds)
            engine.run(SWITCH, on=True)
            batch(engine, -1)
            began, used = engine.run(BESIDE)
            found = [1 / one for one in pairs(engine, count, batch)]  # of requests a second, not of seconds
            ended, used_then = engine.run(BESIDE)
            shares.append((used_then - used) / (ended - began))
            row(f"no_node_requests_per_s_on_over_off, start {start + 1}", median=statistics.median(found))
            ratios += found
    median, low, high = interval(ratios)
    return [row("no_node_requests_per_s_on_over_off", starts=starts, pairs=len(ratios), median=median, low_95=low,
                high_95=high, share_of_a_processor_beside=statistics.median(shares))]


def calibrate(model: Path, count: int, dtype: str) -> list[dict[str, Any]]:
    dice = random.Random(7)
    lengths = [dice.randrange(256, 2_049) for _ in range(count)]
    asked = [prompt(40_000 + number, tokens, 2000) for number, tokens in enumerate(lengths)]
    # Of each third request nothing is known, of the others some or all; the first of them are pushed out of memory.
    known = [0 if number % 3 == 0 else tokens if number % 3 == 1 else tokens // 2 // 128 * 128
             for number, tokens in enumerate(lengths)]
    errors: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(dir=Path.home()) as flash, \
            Node("512MiB", "--flash", f"{flash}:4GiB") as node, \
            Engine(model, transfer_config(node), STEADY, dtype=dtype, kv_bytes=400_000_000) as engine:
        engine.run(SWITCH, on=True)  # else the last step waits for what is saved
        for number in range(count):
            if known[number]:
                engine.generate([asked[number][: known[number]]], max_tokens=1)
        order = sorted(range(count), key=lambda number: (number % 2, -number))
        for number in order:
            forget(engine)
            came, expected, ready_s, beside_s, load_s, parts, params = engine.run(FORESEE, tokens=asked[number])
            loaded = params.get("cistern.loaded_tokens", 0)
            where = params["cistern.where"] if loaded else "computed"
            error = abs(expected / came - 1)
            errors.setdefault(where, []).append(error)
            row(f"request {number}", tokens=lengths[number], known=known[number], loaded=loaded, where=where,
                expected_ms=expected * 1e3, came_ms=came * 1e3, error=error, ready_ms=ready_s * 1e3,
                beside_ms=beside_s * 1e3, load_ms=load_s * 1e3, took_ms=params.get("cistern.load_ms", 0),
                step_ms=parts[0] * 1e3, token_us=parts[1] * 1e6, square_ns=parts[2] * 1e9)
    rows = [row(f"first_token_error_{where}", count=len(found), median=statistics.median(found))
            for where, found in sorted(errors.items())]
    found = [error for some in errors.values() for error in some]
    return [*rows, row("first_token_error", count=len(found), median=statistics.median(found),
                       worst=max(found))]


def calls(model: Path, dtype: str) -> list[dict[str, Any]]:
    rows = []
    with Node(memory="512MiB") as node, Engine(
        model, transfer_config(node), STEADY, dtype=dtype, **IN_CHUNKS
    ) as engine:
        engine.run(SWITCH, on=True)
        steps(engine, -1)
        engine.run("from vllm.distributed.kv_transfer import kv_transfer_state\n" + TIME_CALLS,
                   scheduler=OF_THE_SCHEDULER, worker=OF_THE_WORKER)
        taken: list[float] = []
        for number in range(5):
            taken += steps(engine, number)
        rows.append(row("step", count=len(taken), median_us=statistics.median(taken) * 1e6, sum_ms=sum(taken) * 1e3))
        for name, times in engine.run("answer = llm.noted").items():
            if times:
                times.sort()
                rows.append(row(name, count=len(times), median_us=statistics.median(times) * 1e6,
                                p99_us=times[len(times) * 99 // 100] * 1e6, most_us=times[-1] * 1e6,
                                share_of_steps=sum(times) / sum(taken)))
    return rows


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("what", nargs="*", help="default: all")
    ask.add_argument("--rounds", type=int, default=5, help="of first and peer; default 5")
    ask.add_argument("--starts", type=int, default=3, help="of the engine, for all with pairs; default 3")
    ask.add_argument("--pairs", type=int, default=20, help="of each start; default 20")
    ask.add_argument("--requests", type=int, default=50, help="of calibrate; default 50")
    ask.add_argument("--dtype", default="float32")
    ask.add_argument("--json", action="store_true", help="one object on standard output")
    given = ask.parse_args()
    measurements: dict[str, Callable[[Path], list[dict[str, Any]]]] = {
        "first": lambda model: first(model, given.rounds, given.dtype),
        "peer": lambda model: peer(model, given.rounds, given.dtype),
        "miss": lambda model: miss(model, given.starts, given.pairs, given.dtype),
        "throughput": lambda model: batches(model, given.starts, given.pairs, given.dtype),
        "saving": lambda model: saving(model, given.starts, given.pairs, given.dtype),
        "no_node": lambda model: no_node(model, given.starts, given.pairs, given.dtype),
        "calibrate": lambda model: calibrate(model, given.requests, given.dtype),
        "calls": lambda model: calls(model, given.dtype),
    }
    for name in given.what:
        if name not in measurements:
            ask.error(f"there is no measurement {name!r}; there are: {', '.join(measurements)}")
    if given.starts * given.pairs < 6:
        ask.error("--starts, --pairs: an interval takes 6 pairs or more")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        users = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        os.environ.setdefault("VLLM_CACHE_ROOT", f"{users}/vllm")
        os.environ["XDG_CACHE_HOME"] = f"{folder}/cache"  # the digests of its model are nobody else's
        model = models.write(Path(folder) / "model", models.LLAMA)
        for name in given.what or measurements:
            rows += measurements[name](model)
    if given.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
