# SPDX-License-Identifier: Apache-2.0
"""What people call an engine and its namespaces: the engine's name, and the label of its model."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from harness import transfer_config
from test_fields import FACTS, SMALL, Folder, groups

from cistern.engine import options
from cistern.engine.facts import host
from cistern.engine.identity import Fields
from cistern.engine.orders import RankFacts
from cistern.engine.shared_session import SharedSession
from cistern.vllm.facts import read_facts


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("models") / "small", SMALL)


def test_an_engine_has_its_own_id_as_its_name_unless_it_is_given_one(small: Folder) -> None:
    def name(engine_id: str | None) -> str:
        asked = {**transfer_config(), "engine_id": engine_id}
        return read_facts(small.config(kv_transfer_config=asked), groups()).engine.name

    assert name("decode-3") == "decode-3"
    assert name("d\u00e9code 3\n") == "d_code_3_"
    assert name("x" * 100) == "x" * 64
    made_up = name(None)
    assert 1 <= len(made_up) <= 64 and options._engine_name("engine_name", made_up) == made_up
    for wrong in ("a b", "x" * 65, 5, "caf\u00e9"):
        with pytest.raises(options.WrongOption, match="engine_name"):
            options.read({"engine_name": wrong})
    opened: list[Any] = []
    node = SimpleNamespace(session=None, refusal="", failures=0, start_failure="", open=opened.append)
    facts = replace(FACTS, name="vllm-7", labels=(("model", "llama"),))
    for chosen, expected in ((options.Options(), "vllm-7"), (options.Options(engine_name="mine"), "mine")):
        shared = SharedSession(chosen, facts, lambda: Fields(()), lambda: (), node, lambda: None)  # type: ignore[arg-type]
        shared.add_rank(RankFacts(0, host(), "cpu", "", (1,), ("one",)))
        shared.specify_first()
        assert opened[-1].engine_name == expected
        assert opened[-1].namespace_spec(0).labels == {"model": "llama"}


def test_the_name_that_a_model_is_served_by_is_a_label_and_no_part_of_the_identity(small: Folder) -> None:
    def labels(**asked: Any) -> tuple[tuple[str, str], ...]:
        return read_facts(small.config(**asked), groups()).engine.labels

    assert labels() == (("model", str(small.path)),)
    assert labels(served_model_name="llama") == labels(served_model_name=["llama", "other"]) == (("model", "llama"),)
    assert small.fields(served_model_name="llama") == small.fields(served_model_name="other") == small.fields()
    [(name, value)] = labels(served_model_name="/very/long/path" * 20 + "/end\u00e9")
    assert len((name + value).encode()) <= 127 and value.endswith("/end\u00e9")
