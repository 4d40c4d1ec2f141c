# SPDX-License-Identifier: Apache-2.0
"""A model with full and sliding-window attention: two KV cache groups, pages of one behind the window."""

from __future__ import annotations

from pathlib import Path

from harness import Engine, Node, prompt, transfer_config
from test_crossing import BLOCK, NOTE_LOADED
from test_failures import DROP_WHEN_LOADING

PROMPTS = [prompt(number, 600 + 700 * number) for number in range(4)]


def test_a_hybrid_model_crosses(hybrid: Path, node: Node) -> None:
    with Engine(hybrid, transfer_config(node)) as first:
        assert first.run("answer = len(core(llm).scheduler.kv_cache_config.kv_cache_groups)") == 2
        answers = first.generate(PROMPTS, max_tokens=16)
        pages = first.ask("pages")
    with Engine(hybrid, transfer_config(node)) as second:
        second.run(NOTE_LOADED.replace('"/0" for key in order.keys',
                   'f"/{g}" for g, ps in enumerate(order.pages) for key, p in zip(order.keys, ps) if p'))
        again = second.generate(PROMPTS, max_tokens=16)
        assert [one["tokens"] for one in again] == [one["tokens"] for one in answers]
        assert [one["cached"] for one in again] == [(len(one) - 1) // BLOCK * BLOCK for one in PROMPTS]
        loaded, mine = second.run("answer = connector(llm).coordinator.noted"), second.ask("pages")
        assert {name[-2:] for name in loaded} == {"/0", "/1"}
        assert [name for name in loaded if name in mine and mine[name] != pages[name]] == []
        # A load that fails names the request, since pages of groups are not told apart by number.
        assert second.ask("reset") is True
        second.run(DROP_WHEN_LOADING, block=3)
        assert second.generate([PROMPTS[3]], max_tokens=16)[0]["tokens"] == answers[3]["tokens"]
        assert second.ask("counted")["failed_loads"] == 1
        assert second.ask("reset") is True
        (last,) = second.generate([PROMPTS[3]], max_tokens=16)
        assert last["tokens"] == answers[3]["tokens"] and last["cached"] > 0
