# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters: another one, or the same one with other weights, is other KV."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import model as models
import pytest
from harness import PATIENT, Engine, Node, prompt, transfer_config

CONFIG = {**models.LLAMA, **models.SMALL}
PROMPT = prompt(3, 1000)
FULL = 896


PATIENT_LOOKS = """
from cistern.engine import adapted, written
adapted.LOOK_S = written.LOOK_S = 5.0
answer = None
"""


@contextlib.contextmanager
def with_adapters(small: Path, node: Node) -> Iterator[Engine]:
    lora = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
    with Engine(small, transfer_config(node, **PATIENT), engine=lora) as engine:
        engine.run(PATIENT_LOOKS)
        yield engine


def asked(engine: Engine, name: str, path: Path | None = None) -> tuple[int, list[int]]:
    """Number of tokens that another engine would have loaded as well, and the answer."""
    assert engine.ask("reset") is True
    return asked_again(engine, name, path)


def asked_again(engine: Engine, name: str, path: Path | None) -> tuple[int, list[int]]:
    """Number of tokens that were not computed, also where the engine's own prefix cache has them, and the answer."""
    adapter: dict[str, Any] | None = None
    if path is not None:
        adapter = {"lora_name": name, "lora_int_id": len(name), "lora_path": str(path)}
    (answer,) = engine.generate([PROMPT], adapter=adapter)
    return answer["cached"], answer["tokens"]


def load(engine: Engine, path: Path) -> None:
    """Ahead of its requests; in place, where the engine has it."""
    engine.run(AHEAD.format(path=str(path)))


AHEAD = """
from vllm.lora.request import LoRARequest
assert llm.llm_engine.add_lora(LoRARequest("a", 1, {path!r}, load_inplace=True))
"""


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write_adapter(tmp_path_factory.mktemp("adapters") / "one", CONFIG, seed=1)


def test_another_adapter_shares_nothing(small: Path, node: Node, one: Path, tmp_path: Path) -> None:
    other = models.write_adapter(tmp_path / "other", CONFIG, seed=2)
    with with_adapters(small, node) as engine:
        cached, base = asked(engine, "")
        assert cached == 0
        cached, first = asked(engine, "a", one)
        assert cached == 0 and first != base
        cached, second = asked(engine, "bb", other)
        assert cached == 0 and second not in (first, base)
        assert [asked(engine, "", None), asked(engine, "a", one), asked(engine, "bb", other)] == [
            (FULL, base), (FULL, first), (FULL, second)
        ]
    with with_adapters(small, node) as engine:
        assert asked(engine, "a", one) == (FULL, first)
        assert asked(engine, "a", other) == (0, first)  # the engine goes on with what it holds under that number
    with with_adapters(small, node) as engine:
        cached, third = asked(engine, "a", other)
        assert cached == 0 and third != first


def test_an_adapter_loaded_in_place(small: Path, node: Node, tmp_path: Path) -> None:
    """Its engine's own prefix cache has KV of the former files then, which is not to become that of the new ones."""
    path = models.write_adapter(tmp_path / "adapter", CONFIG, seed=1)
    with with_adapters(small, node) as engine, with_adapters(small, node) as neighbour:
        _, old = asked(engine, "a", path)
        assert asked(engine, "a", path) == (FULL, old)
        models.write_adapter(path, CONFIG, seed=2)
        assert asked(engine, "a", path) == (0, old)  # unknown which weights the engine holds: nothing is shared
        load(engine, path)
        assert asked_again(engine, "a", path)[0] == FULL
        cached, new = asked(neighbour, "a", path)
        assert cached == 0 and new != old
        assert asked(neighbour, "a", path) == (FULL, new)
        assert asked(engine, "a", path) == (FULL, new)
        models.write_adapter(path, CONFIG, seed=1)
        load(engine, path)
        assert asked(engine, "a", path) == (FULL, old)  # what it holds now was computed before


def test_an_adapter_loaded_ahead_whose_files_changed_before_it_was_asked_for(
    small: Path, node: Node, tmp_path: Path
) -> None:
    """The engine holds the former; the files say the other one, which the neighbour loads."""
    path = models.write_adapter(tmp_path / "adapter", CONFIG, seed=1)
    with with_adapters(small, node) as engine:
        load(engine, path)
        models.write_adapter(path, CONFIG, seed=2)
        _, held = asked(engine, "a", path)
    with with_adapters(small, node) as engine:
        cached, other = asked(engine, "a", path)
        assert cached == 0 and other != held
        assert asked(engine, "a", path) == (FULL, other)
