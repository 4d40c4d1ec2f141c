# SPDX-License-Identifier: Apache-2.0
"""Several ranks of one engine, with two batches in flight where there are stages: parts of a block come from
different processes, and one rank's trouble is everybody's."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest
from harness import NAMESPACE, WATCHDOG_S, Engine, Node, prompt, stored, transfer_config
from test_races import ABORTS, ANSWER, BLOCKS, PAGE, REQUESTS

BLOCK = 128
SLOW = 750_000
"""Bytes a second: three pages, while the engine fills hundreds."""
PROMPTS = [prompt(number, 900 + 100 * number) for number in range(4)]
FULL = [(len(one) - 1) // BLOCK * BLOCK for one in PROMPTS]

ORACLE: dict[str, list[list[int]]] = {}


def right(small: Path) -> list[list[int]]:
    if not ORACLE:
        with Engine(small, None) as oracle:
            ORACLE["right"] = [oracle.generate([one])[0]["tokens"] for one in PROMPTS]
    return ORACLE["right"]


# Without a warm-up the second stage of a vLLM on CPUs does not run, and an eager engine has none.
STAGES = {
    "pipeline_parallel_size": 2, "enforce_eager": False, "compilation_config": {"mode": 2, "backend": "eager"},
}


PARALLEL = pytest.mark.parametrize("parallel", [{"tensor_parallel_size": 2}, STAGES], ids=["TP2", "PP2"])
NOTE_SAVES = """
side.noted, save = [], side.save
def note(orders):
    side.noted += [key.hex() for order in orders.saves for key in order.keys]
    save(orders)
side.save = note
"""
STRIKE_WHEN_LOADING = """
import os, signal
start = side._start_load
def strike(transfers, running, order):
    side._start_load = start
    if side._rank == 1:
        os.kill({pid}, signal.SIGKILL)
    start(transfers, running, order)
side._start_load = strike
"""
"""The second rank kills the node when it begins its next load; the first may have its part by then, or not."""


def ranks(small: Path, node: Node, parallel: dict[str, Any], kv_bytes: int = 60_000_000, model_len: int = 2048,
          engine: dict[str, Any] | None = None, **extra: Any) -> Engine:
    """Waits are long: the ranks share two cores with each other and with whatever else the machine does."""
    patient = {"match_timeout_s": 5.0, "load_timeout_s": 20.0, "save_timeout_s": 25.0, "start_timeout_s": 300.0}
    return Engine(
        small, transfer_config(node, **{**patient, **extra}), {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        processes=True, engine={**parallel, **(engine or {})}, kv_bytes=kv_bytes, max_model_len=model_len,
    )


def answers(engine: Engine) -> tuple[list[list[int]], list[int]]:
    got = engine.generate(PROMPTS)
    return [one["tokens"] for one in got], [one["cached"] for one in got]


@PARALLEL
def test_ranks_share_and_survive_their_node(small: Path, node: Node, parallel: dict[str, Any]) -> None:
    want = right(small)
    with ranks(small, node, parallel) as first:
        assert answers(first) == (want, [0] * 4)
        blocks = node.wait_blocks(sum(FULL) // BLOCK)
    with ranks(small, node, parallel, match_timeout_s=0.5, load_timeout_s=5.0) as second:
        assert answers(second) == (want, FULL)

        def right_afresh() -> list[int]:
            assert second.ask("reset") is True
            tokens, cached = answers(second)
            assert tokens == want
            return cached

        def restart() -> None:
            node.kill()
            node.start()
            assert node.wait_blocks(blocks) == blocks  # what lay in memory is there again
            end = time.monotonic() + WATCHDOG_S
            while right_afresh() != FULL:
                assert time.monotonic() < end, "the engine does not find its node again"

        node.signal(signal.SIGSTOP)
        right_afresh()
        node.signal(signal.SIGCONT)
        right_afresh()
        node.kill()
        right_afresh()
        restart()
        assert node.process is not None
        second.on_ranks(STRIKE_WHEN_LOADING.replace("{pid}", str(node.process.pid)))
        right_afresh()
        assert node.process.wait(WATCHDOG_S) == -signal.SIGKILL
        restart()


@PARALLEL
def test_pages_reused_while_ranks_copy_them(small: Path, parallel: dict[str, Any]) -> None:
    """The test of test_races.py with two ranks: compared with blocks that the same ranks save with time and room for
    all. One page is on its way at a time, for long: ranks that share two cores compute hardly faster than they copy."""
    import numpy as np

    found = []
    for slow in (True, False):
        tight: dict[str, Any] = {
            "kv_bytes": BLOCKS * PAGE // 2 + 1000, "max_bytes_per_s": SLOW, "max_pages_share": 0.1,
        }
        with Node() as node, ranks(
            small, node, parallel, model_len=640, engine={"max_num_seqs": 5, "max_num_batched_tokens": 640},
            **(tight if slow else {}),
        ) as engine:
            engine.on_ranks(NOTE_SAVES)
            if slow:
                given = engine.ask("serve", requests=REQUESTS, aborts=ABORTS, max_tokens=ANSWER)
                counted = engine.ask("metrics")
                assert counted["vllm:num_preemptions"] > 0 and counted["vllm:cistern_left_out"] > 0
            else:
                for name, tokens in given.items():
                    (alone,) = engine.generate([REQUESTS[name]], max_tokens=ANSWER)
                    assert alone["tokens"] == tokens
                # Of requests that were aborted, some may have been saved the other time, and none are now.
                whole = [[*REQUESTS[name], *tokens] for name, tokens in given.items()]
                node.wait_blocks(len({tuple(one[:end]) for one in whole for end in range(BLOCK, len(one), BLOCK)}))
            keys = {bytes.fromhex(key) for key in engine.on_ranks("answer = side.noted")[0]}
            namespace = engine.on_ranks(NAMESPACE)[0]
            engine.close()  # and all that it saves is published, or never
            found.append(stored(node, keys=sorted(keys), **namespace))
    there, right_ones = found
    assert there.keys() & right_ones.keys()  # how many are saved in so little time is the host's
    for key in there.keys() & right_ones.keys():
        here, good = (np.frombuffer(one[key], dtype=np.float32) for one in (there, right_ones))
        assert np.allclose(here, good, rtol=1e-3, atol=1e-3), key.hex()
