# SPDX-License-Identifier: Apache-2.0
"""What the vLLM connector gives and costs, on a real vLLM with the model of the tests. Once `./dev test engine` has
installed one: `PYTHONPATH=build/release/python .cache/venv-engine/bin/python bench/engine/measure.py --help`.

    first    first token of 4,096 tokens that are known against computing them, median of 5; the same after kill -9
             and restart of node and engine
    miss     a workload in which nothing is known, connector on against off, interleaved pairs: first token and
             throughput, median of the ratios with its 95 % interval
    saving   step time while blocks are being saved, against no connector, interleaved
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "engine"))

import model as models  # noqa: E402
from harness import Engine, Node, prompt, transfer_config  # noqa: E402

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


ON_ONE_CORE = {"VLLM_CPU_OMP_THREADS_BIND": "0"}
"""Where both engines of a comparison compute. Left alone, vLLM keeps one core free, with a connector two, and where
there are no more than that none: with two cores the engine with a connector would compute on twice as many."""


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """The median and its 95 % interval by order statistics (no assumption about the distribution)."""
    ordered, count = sorted(ratios), len(ratios)
    spread = 0.98 * count**0.5
    low, high = max(0, int(count / 2 - spread)), min(count - 1, int(count / 2 + spread))
    return statistics.median(ordered), ordered[low], ordered[high]


def row(name: str, **values: Any) -> dict[str, Any]:
    words = [f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()]
    print(f"{name:<40} {'  '.join(words)}", file=sys.stderr, flush=True)
    return {"name": name, **values}


def took(engine: Engine, prompts: list[list[int]], answer: int) -> float:
    (first, *_) = engine.generate(prompts, max_tokens=answer)
    seconds = first["took"]
    assert isinstance(seconds, float)
    return seconds


def sooner(name: str, computed: list[float], known: list[float]) -> dict[str, Any]:
    one, other = statistics.median(computed), statistics.median(known)
    return row(name, computed_s=one, known_s=other, times_sooner=one / other)


def forget(engine: Engine) -> None:
    """The engine's own prefix cache; while blocks are still being saved it says no."""
    while engine.ask("reset") is not True:
        pass


def first(model: Path, rounds: int, dtype: str) -> list[dict[str, Any]]:
    prompts = [prompt(number, KNOWN_TOKENS, 2000) for number in range(rounds)]
    # The last block's last token is always computed: one token more than whole blocks is the fair question.
    asked = [[*one, 5] for one in prompts]
    more = {"processes": True, "dtype": dtype, "kv_bytes": 400_000_000, "max_model_len": 8448}
    rows = []
    with Node(memory="1GiB") as node:
        def measured(engine: Engine, known: bool) -> list[float]:
            engine.generate([prompt(999, 300, 2000)])
            times = []
            for tokens in asked:
                forget(engine)
                (one,) = engine.generate([tokens], max_tokens=1)
                loaded = (one["params"] or {}).get("cistern.loaded_tokens", 0)
                assert loaded == (KNOWN_TOKENS if known else 0), one
                times.append(one["took"])
            return times

        engine = Engine(model, transfer_config(node), **more).ready()
        cold = measured(engine, known=False)
        warm = measured(engine, known=True)
        rows.append(sooner("first_token_4096", cold, warm))
        engine.kill()
        node.kill()
        node.start()
        with Engine(model, transfer_config(node), **more) as engine:
            again = measured(engine, known=True)
        rows.append(sooner("first_token_4096_after_kill_9", cold, again))
    return rows


def pairs(engines: tuple[Engine, Engine], count: int, work: Callable[[Engine], Callable[[int], float]]) -> list[float]:
    """Ratios of the first engine to the second over work of the same size. Each runs once before and once after the
    other. Who waits is stopped, once it has nothing left to save: an engine polls for a while after its answer, and
    who came second would be half as slow again, with or without a connector."""
    ratios = []
    engines[1].pause()
    for number in range(count):
        taken = [0.0, 0.0]
        for turn, which in enumerate((0, 1, 1, 0)):
            if turn in (1, 3):
                forget(engines[1 - which])
                engines[1 - which].pause()
                engines[which].go_on()
            forget(engines[which])
            taken[which] += work(engines[which])(2 * number + turn // 2)
        ratios.append(taken[0] / taken[1])
    engines[1].go_on()
    return ratios


def miss(model: Path, rounds: int, dtype: str) -> list[dict[str, Any]]:
    more = {"processes": True, "dtype": dtype, "kv_bytes": 200_000_000, "max_model_len": 4096}
    rows = []
    with Node(memory="512MiB") as node:
        with (
            Engine(model, transfer_config(node, min_load_tokens=0), ON_ONE_CORE, **more) as on,
            Engine(model, None, ON_ONE_CORE, **more) as off,
        ):
            for engine in (on, off):
                engine.generate([prompt(5000, 900, 2000)], max_tokens=8)

            def one(engine: Engine) -> Callable[[int], float]:
                return lambda number: took(engine, [prompt(number, 1000, 2000)], 1)

            def batch(engine: Engine) -> Callable[[int], float]:
                return lambda number: took(
                    engine, [prompt(10_000 + 10 * number + i, 500, 2000) for i in range(4)], 32
                )

            for name, work in (("first_token", one), ("throughput", batch)):
                ratios = pairs((on, off), rounds, work)
                median, low, high = interval(ratios)
                rows.append(row(f"all_miss_{name}_on_over_off", pairs=rounds, median=median, low_95=low, high_95=high))
    return rows


def saving(model: Path, rounds: int, dtype: str) -> list[dict[str, Any]]:
    more = {"dtype": dtype, "kv_bytes": 200_000_000, "max_model_len": 4096, "engine": {"max_num_batched_tokens": 512}}
    with Node(memory="512MiB") as node:
        with (
            Engine(model, transfer_config(node, min_load_tokens=0), ON_ONE_CORE, **more) as on,
            Engine(model, None, ON_ONE_CORE, **more) as off,
        ):
            def steps(engine: Engine) -> Callable[[int], float]:
                def work(number: int) -> float:
                    prompts = [prompt(20_000 + 10 * number + i, 1500, 2000) for i in range(2)]
                    taken = engine.run(STEPS, prompts=prompts, answer=24, round=number)
                    return sum(taken) / len(taken)

                return work

            for engine in (on, off):
                steps(engine)(-1)
            ratios = pairs((on, off), rounds, steps)
            saved = on.ask("counted")["published_blocks"]
    median, low, high = interval(ratios)
    name = "step_time_while_saving_on_over_off"
    return [row(name, pairs=rounds, blocks=saved, median=median, low_95=low, high_95=high)]


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ask.add_argument("what", nargs="*", default=["first", "miss", "saving"], help="default: all three")
    ask.add_argument("--rounds", type=int, default=0, help="of each; default 5 for first, 30 pairs for the others")
    ask.add_argument("--dtype", default="float32")
    ask.add_argument("--json", action="store_true", help="one object on standard output")
    given = ask.parse_args()
    work = {"first": (first, 5), "miss": (miss, 30), "saving": (saving, 30)}
    for name in given.what:
        if name not in work:
            ask.error(f"there is no measurement {name!r}; there are: {', '.join(work)}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = models.write(Path(folder) / "model", models.LLAMA)
        for name in given.what:
            measure, rounds = work[name]
            rows += measure(model, given.rounds or rounds, given.dtype)
    if given.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
