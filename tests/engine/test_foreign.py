# SPDX-License-Identifier: Apache-2.0
"""KV that another connector of the engine brought: another engine may have computed it, and nothing of it is saved."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from harness import transfer_config
from scheduler_side import FACTS, SIZE, OneConnection, add, ready
from test_fields import SMALL, Folder, groups

from cistern.engine.coordinator import Coordinator
from cistern.engine.foreign import ForeignBlocks
from cistern.vllm.facts import read_facts

BESIDE = replace(FACTS, beside_others=True)


def saved(side: Coordinator, name: str, cached: int, computed: int) -> int:
    """Blocks that are saved of a request's first step, which computes one: the engine's prefix cache had so many of it,
    and so many count as computed. Requests of one first letter have the same blocks."""
    add(side, name)
    side.match(name, cached * SIZE)
    side._requests[name].request.computed_tokens = computed * SIZE  # type: ignore[misc]
    orders = side.step_orders({name: SIZE}).saves
    return sum(len(order.keys) for order in orders)


@pytest.fixture
def side(connection: OneConnection) -> Coordinator:
    made = ready(BESIDE)
    connection.store.blocks = 0
    return made


def test_what_another_connector_brought_is_not_saved(side: Coordinator, caplog: pytest.LogCaptureFixture) -> None:
    assert saved(side, "a", 0, 2) == 0 and "another connector brought" in caplog.text
    assert saved(side, "b", 0, 0) == 1 and saved(side, "c", 1, 1) == 2  # its own


def test_what_stands_on_it_in_the_engines_cache_is_not_saved(side: Coordinator) -> None:
    assert saved(side, "a", 0, 2) == 0
    assert saved(side, "again", 1, 1) == 0
    assert side._requests["again"].planned.may_load
    assert saved(side, "another", 0, 0) == 1  # computed from its first token on


def test_what_stands_on_it_is_saved_once_the_cache_was_emptied(side: Coordinator) -> None:
    assert saved(side, "a", 0, 2) == 0
    side.prefix_cache_emptied()
    side._changes.asks = False  # the ranks have answered
    assert saved(side, "again", 1, 1) == 2


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


def test_blocks_that_were_not_used_for_long_are_forgotten() -> None:
    known = ForeignBlocks(2)
    assert known.stands_on([b"a"], 0, 0, 1) and known.stands_on([b"b"], 0, 0, 1)
    assert known.stands_on([b"a", b"own"], 2, 2, 2) and known.stands_on([b"c"], 0, 0, 1)
    assert known.stands_on([b"a"], 1, 1, 1) and not known.stands_on([b"b"], 1, 1, 1)


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
