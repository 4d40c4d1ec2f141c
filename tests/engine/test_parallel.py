# SPDX-License-Identifier: Apache-2.0
"""Several ranks of one engine, with two batches in flight where there are stages: parts of a block come from
different processes, and one rank's trouble is everybody's."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from harness import Engine, Node, prompt, transfer_config

BLOCK = 128
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


def ranks(small: Path, node: Node, **parallel: Any) -> Engine:
    return Engine(
        small, transfer_config(node, load_timeout_s=5.0, save_timeout_s=25.0), {"VLLM_CPU_OMP_THREADS_BIND": "0|1"},
        processes=True, engine=parallel, kv_bytes=60_000_000, max_model_len=2048,
    )


def answers(engine: Engine) -> tuple[list[list[int]], list[int]]:
    got = engine.generate(PROMPTS)
    return [one["tokens"] for one in got], [one["cached"] for one in got]


@pytest.mark.parametrize("parallel", [{"tensor_parallel_size": 2}, STAGES], ids=["TP2", "PP2"])
def test_ranks_share_and_survive_their_node(small: Path, node: Node, parallel: dict[str, Any]) -> None:
    want = right(small)
    with ranks(small, node, **parallel) as first:
        tokens, cached = answers(first)
        assert tokens == want and cached == [0] * 4
        blocks = node.wait_blocks(sum(FULL) // BLOCK)
    with ranks(small, node, **parallel) as second:
        assert answers(second) == (want, FULL)
        assert second.ask("reset") is True
        node.signal(signal.SIGSTOP)
        assert answers(second)[0] == want
        node.signal(signal.SIGCONT)
        assert second.ask("reset") is True
        node.kill()
        assert answers(second)[0] == want
        node.start()
        assert node.wait_blocks(blocks) == blocks  # what lay in memory is there again
        assert second.ask("reset") is True
        assert answers(second)[0] == want
