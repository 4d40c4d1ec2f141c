# SPDX-License-Identifier: Apache-2.0
"""Blocks that one engine computed and another loads: the same tokens, the same bytes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from harness import WATCHDOG_S, Engine, Node, prompt, transfer_config

BLOCK = 128
ANSWER = 8
PROMPTS = [prompt(number, 1000 + 1000 * number - 30 * number) for number in range(8)]


NOTE_LOADED = """
side = connector(llm).coordinator
side.noted, lease = [], side._leases.take
def note(order, keys):
    side.noted += [key.hex() + "/0" for key in order.keys]
    lease(order, keys)
side._leases.take = note
"""


@pytest.fixture(scope="module")
def crossing(small: Path) -> dict[str, object]:
    """Engine A computes and saves, ends; B, a new process, is asked the same and some more."""
    found: dict[str, object] = {}
    with Node() as node:
        with Engine(small, transfer_config(node)) as first:
            found["first"] = first.generate(PROMPTS)
            found["first_pages"] = first.ask("pages")
            found["counted"] = first.ask("counted")
        with Engine(small, transfer_config(node)) as second:
            second.run(NOTE_LOADED)
            found["second"] = second.generate(PROMPTS)
            found["loaded"] = second.run("answer = connector(llm).coordinator.noted")
            found["second_pages"] = second.ask("pages")
            found["second_counted"] = second.ask("counted")
        found["reported"] = reported(node, found["second_counted"])
        # Other settings of scheduler and allocator, the same KV.
        with Engine(
            small, transfer_config(node), max_model_len=4096, kv_bytes=100_000_000,
            engine={"max_num_seqs": 3, "max_num_batched_tokens": 512, "block_size": BLOCK},
        ) as third:
            found["third"] = third.generate(PROMPTS[:2])
            third.run("llm.reset_prefix_cache()")
            long = PROMPTS[1][: 4 * BLOCK]
            found["exact"] = third.generate([long])
            third.run("llm.reset_prefix_cache()")
            found["one more"] = third.generate([[*long, 7]])
            third.run("llm.reset_prefix_cache()")
            found["less than a block"] = third.generate([long[: BLOCK - 1]])
            third.run("llm.reset_prefix_cache()")
            found["partial"] = third.generate([[*PROMPTS[1][:300], *prompt(99, 300)]])
            third.run("llm.reset_prefix_cache()")
            found["salt"] = third.generate([PROMPTS[1]], salt="another")
            third.run("llm.reset_prefix_cache()")
            found["salt again"] = third.generate([PROMPTS[1]], salt="another")
            third.run("llm.reset_prefix_cache()")
            found["no_load"] = third.generate([PROMPTS[1]], params={"cistern.no_load": True, "other": 1})
            third.run("llm.reset_prefix_cache()")
            unseen = prompt(1234, 500)
            third.generate([unseen], params={"cistern.no_save": True})
            third.run("llm.reset_prefix_cache()")
            found["no_save"] = third.generate([unseen])
    return found


def reported(node: Node, counted: object) -> dict[str, int]:
    """What the node was told by engines, once it is all that this one counted: the node collects it beside its work."""
    assert isinstance(counted, dict)
    end = time.monotonic() + WATCHDOG_S
    while (engines := node.status()["engines"])["delivered_tokens"] < counted["hit_tokens"]:
        assert time.monotonic() < end, f"{engines} of {counted}"
        assert not node.ends_within(0.02), "the node ended"
    return engines


def tokens(answers: object) -> list[list[int]]:
    assert isinstance(answers, list)
    return [one["tokens"] for one in answers]


def cached(answers: object) -> list[int]:
    assert isinstance(answers, list)
    return [one["cached"] for one in answers]


def test_a_new_process_answers_the_same_from_loaded_blocks(crossing: dict[str, object]) -> None:
    assert tokens(crossing["second"]) == tokens(crossing["first"])
    assert cached(crossing["first"]) == [0] * 8
    assert cached(crossing["second"]) == [(len(one) - 1) // BLOCK * BLOCK for one in PROMPTS]


def test_every_loaded_page_is_byte_equal(crossing: dict[str, object]) -> None:
    first, second, loaded = crossing["first_pages"], crossing["second_pages"], crossing["loaded"]
    assert isinstance(first, dict) and isinstance(second, dict) and isinstance(loaded, list)
    assert len(loaded) == sum(cached(crossing["second"])) // BLOCK
    assert [name for name in loaded if first[name] != second[name]] == []


def test_nothing_failed(crossing: dict[str, object]) -> None:
    counted, again = crossing["counted"], crossing["second_counted"]
    assert isinstance(counted, dict) and isinstance(again, dict)
    assert counted["published_blocks"] == sum((len(one) + ANSWER - 1) // BLOCK for one in PROMPTS)
    assert "failed_loads" not in again and again["loads"] == 8 and "abandoned_blocks" not in again


def test_the_node_knows_what_the_cache_saved(crossing: dict[str, object]) -> None:
    counted, engines = crossing["second_counted"], crossing["reported"]
    assert isinstance(counted, dict) and isinstance(engines, dict)
    assert engines["promised_tokens"] == engines["delivered_tokens"] == counted["hit_tokens"]
    assert engines["spent_us"] == counted["load_us"]


def test_engines_that_differ_in_schedule_or_size_share(crossing: dict[str, object]) -> None:
    assert tokens(crossing["third"]) == tokens(crossing["first"])[:2]
    assert cached(crossing["third"]) == cached(crossing["second"])[:2]


def test_a_token_is_left_to_compute(crossing: dict[str, object]) -> None:
    assert cached(crossing["exact"]) == [3 * BLOCK]
    assert cached(crossing["one more"]) == [4 * BLOCK]
    assert cached(crossing["less than a block"]) == [0]


def test_a_shared_prefix_is_shared_as_far_as_it_goes(crossing: dict[str, object]) -> None:
    assert cached(crossing["partial"]) == [2 * BLOCK]


def test_another_salt_shares_nothing(crossing: dict[str, object]) -> None:
    assert cached(crossing["salt"]) == [0]
    assert cached(crossing["salt again"]) == [(len(PROMPTS[1]) - 1) // BLOCK * BLOCK]


def test_a_request_may_opt_out(crossing: dict[str, object]) -> None:
    assert cached(crossing["no_load"]) == [0]
    assert cached(crossing["no_save"]) == [0]


def test_what_was_loaded_is_told_to_the_client(crossing: dict[str, object]) -> None:
    second = crossing["second"]
    assert isinstance(second, list)
    for one, length in zip(second, cached(second), strict=True):
        assert one["params"]["cistern.loaded_tokens"] == length
        assert one["params"]["cistern.where"] == "memory" and one["params"]["cistern.load_ms"] > 0
