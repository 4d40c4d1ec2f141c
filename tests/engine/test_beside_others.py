# SPDX-License-Identifier: Apache-2.0
"""KV that another connector of the engine brought: another engine may have computed it, and nothing of it is saved."""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from harness import transfer_config
from scheduler_side import FACTS, SIZE, OneConnection, add, ready
from test_fields import SMALL, Folder, groups

from cistern.engine.coordinator import Coordinator
from cistern.engine.facts import ConfigurationError
from cistern.vllm import versions
from cistern.vllm.facts import read_facts

BESIDE = replace(FACTS, beside_others=True)


def saved(side: Coordinator, name: str, cached: int, computed: int) -> int:
    """Blocks that are saved of a request's first step, which computes one: the engine's prefix cache had so many of it,
    and so many count as computed. Requests of one first letter have the same blocks."""
    return saved_of(side, name, cached * SIZE, computed * SIZE)


def saved_of(side: Coordinator, name: str, cached: int, computed: int) -> int:
    """The same in tokens."""
    add(side, name)
    side.match(name, cached)
    side._requests[name].request.computed_tokens = computed  # type: ignore[misc]
    orders = side.step_orders({name: SIZE}).saves
    return sum(len(order.keys) for order in orders)


@pytest.fixture
def side(connection: OneConnection) -> Coordinator:
    made = ready(BESIDE)
    connection.store.blocks = 0
    return made


def test_what_another_connector_brought_is_not_saved(side: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
    assert saved(side, "a", 0, 2) == 0 and "another connector brought" in caplog.text
    assert saved(side, "b", 0, 0) == 1 and saved(side, "b2", 1, 1) == 1  # its own


def test_what_stands_on_it_in_the_engines_cache_is_not_saved(side: Coordinator) -> None:
    assert saved(side, "a", 0, 2) == 0
    assert saved(side, "again", 1, 1) == 0
    assert side._requests["again"].planned.may_load


def test_of_less_than_a_block_is_not_saved_either(side: Coordinator) -> None:
    """As of a prompt that came whole: vLLM computes its last token."""
    assert saved_of(side, "a", 0, SIZE - 1) == 0
    assert saved(side, "again", 1, 1) == 0
    assert saved(side, "b", 0, 0) == 1
    assert saved_of(side, "behind", SIZE, 2 * SIZE - 1) == 0
    assert saved(side, "beyond", 2, 2) == 0


def test_what_was_brought_in_place_of_its_own_is_not_saved(side: Coordinator) -> None:
    """The engine's cache had let go of what was computed here."""
    assert saved(side, "a", 0, 0) == 1
    assert saved(side, "again", 0, 1) == 0
    assert saved(side, "another", 1, 1) == 0


def test_what_was_brought_for_a_request_that_ends_unscheduled_is_not_saved(side: Coordinator) -> None:
    assert saved(side, "a", 0, 0) == 1
    add(side, "again")
    side.match("again", 0)
    side._requests["again"].request.computed_tokens = 2 * SIZE  # type: ignore[misc]
    side.end_request("again", ([],))
    assert saved(side, "another", 1, 1) == 0


def test_blocks_of_which_nothing_is_known_are_not_saved_on(side: Coordinator) -> None:
    assert saved(side, "a", 0, 0) == 1
    for letter in "bcdefghij":
        for _ in range(FACTS.pages // 8):
            side._own._add([f"{letter}{_}".encode()])  # type: ignore[union-attr]
    assert saved(side, "again", 1, 1) == 0


def test_its_own_is_saved_anew_once_the_cache_was_emptied(side: Coordinator) -> None:
    assert saved(side, "a", 0, 2) == 0
    side.prefix_cache_emptied()
    side._changes.asks = False  # the ranks have answered
    assert saved(side, "again", 0, 0) == 1
    assert saved(side, "another", 1, 1) == 1


def test_what_this_side_has_loaded_is_its_own(connection: OneConnection) -> None:
    side = ready(BESIDE)
    side.begin_load("first", ([*range(1, 4)],), 3 * SIZE)
    side.step_orders({})
    side._requests["first"].planned.load = None  # it has come
    side._requests["first"].request.computed_tokens = 3 * SIZE  # type: ignore[misc]
    assert [len(order.keys) for order in side.step_orders({"first": SIZE}).saves] == [1]


def test_engine_with_this_connector_alone_saves_all(connection: OneConnection) -> None:
    alone = ready()
    connection.store.blocks = 0
    assert saved(alone, "a", 0, 2) == 3


def test_connectors_that_keep_what_this_engine_computed_bring_nothing_foreign(tmp_path: Any) -> None:
    small, ours = Folder(tmp_path / "small", SMALL), transfer_config(socket="/nowhere", start_node=False)

    def told(*children: dict[str, Any]) -> bool:
        config = small.config()
        config.kv_transfer_config = SimpleNamespace(
            engine_id="e", kv_connector="MultiConnector", kv_connector_extra_config={"connectors": [*children, ours]}
        )
        return read_facts(config, groups()).engine.beside_others

    assert not read_facts(small.config(kv_transfer_config=ours), groups()).engine.beside_others
    offloading = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"cpu_bytes_to_use": 1}}
    assert not told() and not told(offloading)
    assert told({"kv_connector": "NixlConnector"}) and told(offloading, {"kv_connector": "LMCacheConnectorV1"})
    assert told({"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {"spec_name": "Shared"}})


class Wrapper:
    """vLLM's MultiConnector, as far as its children see it: each has a configuration with its own part alone."""

    def __init__(self, vllm_config: Any, make: Any) -> None:
        self._vllm_config = vllm_config
        own = copy.copy(vllm_config)
        own.kv_transfer_config = transfer_config(socket="/nowhere", start_node=False)
        self.made = make(own)


def test_child_finds_the_engines_configuration(tmp_path: Any) -> None:
    config = Folder(tmp_path / "small", SMALL).config()
    config.kv_transfer_config = SimpleNamespace(
        engine_id="e", kv_connector="MultiConnector", kv_load_failure_policy="recompute",
        kv_connector_extra_config={"connectors": [{"kv_connector": "NixlConnector"}, {"kv_connector": "Cistern"}]},
    )

    class MultiConnector(Wrapper): ...

    assert MultiConnector(config, lambda own: read_facts(own, groups())).made.engine.beside_others
    assert MultiConnector(config, versions.engine_transfer_config).made is config.kv_transfer_config


def test_vllm_hands_its_children_a_configuration_of_their_own() -> None:
    """What the search for the engine's own rests on."""
    from vllm.distributed.kv_transfer.kv_connector.v1.multi_connector import MultiConnector

    source = inspect.getsource(MultiConnector.__init__)
    assert source.index("super().__init__(") < source.index("_get_connector_classes_and_configs")
    assert "temp_config.kv_transfer_config = " in inspect.getsource(MultiConnector._get_connector_classes_and_configs)


def test_answers_of_what_vllm_computed_alone_run_without_it(tmp_path: Any) -> None:
    config = Folder(tmp_path / "small", SMALL).config(kv_transfer_config=transfer_config(socket="/nowhere"))
    config.aux_output_config = SimpleNamespace(enabled=True)
    with pytest.raises(ConfigurationError, match="routed experts"):
        read_facts(config, groups())
