# SPDX-License-Identifier: Apache-2.0
"""Other weights, other KV, whatever their names: no old KV, and no neighbour flushed."""

from __future__ import annotations

import shutil
from pathlib import Path

import model as models
import pytest
from harness import Engine, Node, prompt, transfer_config

PROMPT = prompt(3, 1000)
FULL = 896


def asked(engine: Engine) -> tuple[int, list[int]]:
    (answer,) = engine.generate([PROMPT])
    return answer["cached"], answer["tokens"]


def test_the_same_path_with_other_weights(tmp_path: Path, node: Node) -> None:
    config = {**models.LLAMA, **models.SMALL}
    path = models.write(tmp_path / "model", config, seed=1)
    with Engine(path, transfer_config(node)) as engine:
        cached, first = asked(engine)
        assert cached == 0
    elsewhere = tmp_path / "the same, renamed"
    shutil.copytree(path, elsewhere)
    models.write(path, config, seed=2)
    with Engine(path, transfer_config(node)) as engine:
        cached, other = asked(engine)
        assert cached == 0 and other != first
    with Engine(elsewhere, transfer_config(node)) as engine:
        assert asked(engine) == (FULL, first)
    with Engine(elsewhere, transfer_config(node), dtype="bfloat16") as engine:
        assert asked(engine)[0] == 0


def test_a_reset_moves_this_engine_and_no_neighbour(small: Path, node: Node) -> None:
    with Engine(small, transfer_config(node)) as one, Engine(small, transfer_config(node)) as neighbour:
        cached, answer = asked(one)
        assert cached == 0
        assert one.ask("reset", connector=True) is True
        assert asked(one) == (0, answer)  # what was stored before is of other weights, for all it knows
        assert one.ask("reset") is True
        assert asked(one) == (FULL, answer)  # the fresh generation fills
        assert asked(neighbour) == (FULL, answer)  # and the neighbour has what it had
    with Engine(small, transfer_config(node, on_reset="ignore")) as third:
        assert third.ask("reset", connector=True) is True
        assert asked(third)[0] == FULL
    with Engine(small, transfer_config(node, on_reset="drop")) as fourth:
        assert asked(fourth)[0] == FULL
        assert fourth.ask("reset", connector=True) is True
        assert asked(fourth)[0] == 0
    with Engine(small, transfer_config(node)) as fifth:
        assert asked(fifth)[0] == 0  # dropped for everybody


RELOAD = """
worker = core(llm).model_executor.driver_worker.worker
runner = worker.model_runner
"""


@pytest.mark.parametrize("how", ["reload_weights", "load_weights", "by hand"])
def test_weights_changed_without_a_word_leave_the_neighbours_alone(
    small: Path, tmp_path: Path, node: Node, how: str
) -> None:
    other = models.write(tmp_path / "other", {**models.LLAMA, **models.SMALL}, seed=2)
    change = {
        "reload_weights": f"worker.reload_weights(weights_path={str(other)!r})",
        "load_weights": f"""
from safetensors.torch import load_file
held = {{name for name, one in runner.model.named_parameters() if one.numel()}}  # a CPU's kernels pack linear ones
tensors = load_file({str(other / 'model.safetensors')!r}).items()
runner.model.load_weights([(name, one) for name, one in tensors if name in held])
""",
        "by hand": "for one in runner.model.parameters(): one.data.mul_(0.5)",
    }[how]
    with Engine(small, transfer_config(node)) as engine:
        cached, before = asked(engine)
        assert cached == 0
        engine.run(RELOAD + change)
        assert engine.ask("reset") is True  # plain: no word to the connector
        cached, after = asked(engine)
        assert cached == 0 and after != before
        assert engine.ask("reset") is True
        assert asked(engine) == (FULL, after)
    with Engine(small, transfer_config(node)) as neighbour:
        assert asked(neighbour) == (FULL, before)
