# SPDX-License-Identifier: Apache-2.0
"""Engines on nodes of one cell: what one computed the other loads from its neighbour, and computes itself where the
neighbour dies meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from harness import (
    BY_SOURCE,
    NAMESPACE,
    PATIENT,
    CellNode,
    Engine,
    Etcd,
    namespace_spec,
    prompt,
    stored,
    transfer_config,
)

from cistern.vllm import versions

BLOCK = 128
PROMPTS = [prompt(100 + number, 900 + 700 * number) for number in range(3)]
LOST = prompt(200, 6_000)
SLOW = ("--cell-bandwidth", "1MiB/s")
"""Of a node: four blocks of these a second, so that the last one of LOST leaves it ten seconds after the first."""

NOTE_LOADED = """
side = connector(llm).coordinator
side.noted, lease = [], side._leases.take
def note(order, keys):
    side.noted += [key.hex() for key in order.keys]
    lease(order, keys)
side._leases.take = note
"""
ASK_UNTIL_ALL_IS_FOUND = """
matches = connector(llm).coordinator._matches
matches.take_once = take = matches.take
def take_all(match):
    taken = take(match)
    if taken and match.found < match.keys:
        match.forget()
        return False
    return taken
matches.take = take_all
"""
"""A node waits 40 ms for what another one answers: on a busy host the engine may have to ask again."""
HOWEVER_LONG_IT_TAKES = "connector(llm).coordinator._pace.compute_s = lambda tokens, begin: 0.0"
"""A load is not given up for what computing would take."""
ASK_ONCE_FROM_THE_LOAD_ON = """
side = connector(llm).coordinator
side.loads, lease = [], side._leases.take
def once(order, keys):
    side._matches.take = side._matches.take_once
    side.loads.append(order.where)
    lease(order, keys)
side._leases.take = once
"""
"""What is lost is not found again."""


def full(tokens: list[int]) -> int:
    return (len(tokens) - 1) // BLOCK * BLOCK


def asked_of_the_cell(
    node: CellNode, fields: list[list[list[str]]], shapes: list[dict[str, Any]], block_tokens: int, keys: list[bytes]
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Who has the first prompt, as a router asks, and why a key is not found that nobody has."""
    from cistern import Store

    with Store.connect(node.socket) as store:
        namespace = store.attach(namespace_spec(fields, shapes, block_tokens))
        chain = keys[: full(PROMPTS[0]) // BLOCK]
        return store.cell_holders(namespace, chain), store.cell_explanation(namespace, [*chain, bytes(32)])


@pytest.fixture(scope="module")
def cell(small: Path) -> dict[str, Any]:
    """Engine A on the first node computes; B, on the second, is asked the same. Then the first node dies in the middle
    of a load."""
    if shutil.which("etcd") is None:
        pytest.skip("Debian's etcd-server is not installed")
    found: dict[str, Any] = {}
    with Etcd() as etcd, CellNode(etcd, "one", *SLOW) as one, CellNode(etcd, "two") as two:
        with Engine(small, transfer_config(one, **PATIENT)) as first:
            found["first"] = first.generate(PROMPTS)
            found["lost first"] = first.generate([LOST])
        one.wait_blocks(sum(full(tokens) // BLOCK for tokens in [*PROMPTS, LOST]))
        samples = one.status()["cell"]["samples"]
        two.wait_status(lambda status: status["cell"]["index_samples"] == samples > 0)
        with Engine(small, transfer_config(two, min_load_tokens=1, load_timeout_s=300, **PATIENT)) as second:
            second.run(HOWEVER_LONG_IT_TAKES)
            second.run(NOTE_LOADED)
            second.run(ASK_UNTIL_ALL_IS_FOUND)
            found["second"] = second.generate(PROMPTS)
            found["counted"], found["sources"] = second.ask("counted"), second.run(BY_SOURCE)
            keys = [bytes.fromhex(key) for key in second.run("answer = connector(llm).coordinator.noted")]
            spec = second.run(f"side = connector(llm).coordinator\n{NAMESPACE}")
            where = (spec["fields"], spec["shapes"], spec["block_tokens"], keys)
            found["keys"], found["of one"], found["of two"] = keys, stored(one, *where), stored(two, *where)
            found["read"] = two.status()["cell"]["peer_read_blocks"]
            found["holders"], found["explanation"] = asked_of_the_cell(two, *where)
            second.run(ASK_ONCE_FROM_THE_LOAD_ON)
            second.begin("generate", prompts=[LOST])
            two.wait_status(lambda status: status["cell"]["peer_read_blocks"] > found["read"])
            one.kill()
            found["lost second"] = second.end()
            found["lost from"] = second.run("answer = connector(llm).coordinator.loads")
            found["lost read"] = two.status()["cell"]["peer_read_blocks"] - found["read"]
            found["lost counted"] = second.ask("counted")
            # Alone from now on: what was computed in the place of what was lost is loaded from here.
            second.run("llm.reset_prefix_cache()")
            found["third"] = second.generate([LOST])
    return found


def test_what_another_node_has_is_loaded_and_answers_the_same(cell: dict[str, Any]) -> None:
    assert [one["tokens"] for one in cell["second"]] == [one["tokens"] for one in cell["first"]]
    assert [one["cached"] for one in cell["first"]] == [0] * len(PROMPTS)
    assert [one["cached"] for one in cell["second"]] == [full(tokens) for tokens in PROMPTS]
    assert [one["params"]["cistern.where"] for one in cell["second"]] == ["peer"] * len(PROMPTS)
    assert "failed_loads" not in cell["counted"]
    assert cell["sources"] == ({"p2p": sum(map(full, PROMPTS))} if versions.hit_sources() else {})


def test_every_block_that_came_is_byte_equal(cell: dict[str, Any]) -> None:
    blocks = sum(full(tokens) for tokens in PROMPTS) // BLOCK
    assert len(set(cell["keys"])) == blocks == cell["read"]
    assert len(cell["of two"]) == blocks and cell["of two"] == cell["of one"]


def test_a_router_is_told_who_has_a_prompt(cell: dict[str, Any]) -> None:
    blocks = full(PROMPTS[0]) // BLOCK
    found = {(one["member"], one["self"]): (one["blocks"], one["memory"], one["exact"]) for one in cell["holders"]}
    assert found == {("one", False): (blocks, blocks, True), ("two", True): (blocks, blocks, True)}
    assert cell["explanation"]["finding"] == "unknown"


def test_an_engine_computes_what_had_not_come_where_the_node_dies_in_the_middle_of_a_load(cell: dict[str, Any]) -> None:
    assert cell["lost from"][0] == "peer" and 0 < cell["lost read"] < full(LOST) // BLOCK
    assert cell["lost second"][0]["tokens"] == cell["lost first"][0]["tokens"] == cell["third"][0]["tokens"]
    assert cell["lost counted"]["failed_loads"] == 1, (cell["lost counted"], cell["lost read"])
    assert cell["third"][0]["cached"] == full(LOST) and cell["third"][0]["params"]["cistern.where"] == "memory"
