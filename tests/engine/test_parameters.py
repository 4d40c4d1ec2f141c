# SPDX-License-Identifier: Apache-2.0
"""Request parameters (kv_transfer_params) under a real engine: conversations and priorities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness import Engine, Node, prompt, transfer_config

BLOCK = 128
TALK = prompt(31, 700)
BUILT_ON = [*TALK[: 2 * BLOCK], *prompt(32, 450)]
TOUCHED = prompt(33, 700)
FULL = 5 * BLOCK


def of(conversation: str, **more: Any) -> dict[str, Any]:
    return {"cistern.conversation": conversation, **{f"cistern.{name}": value for name, value in more.items()}}


def would_load(engine: Engine, tokens: list[int]) -> int:
    """Number of these tokens that another engine would load. Engines here load whatever is there: what is asked is
    whether it is, and not whether loading pays for a model this small."""
    assert engine.ask("reset") is True
    (answer,) = engine.generate([tokens], params={"cistern.no_save": True}, max_tokens=1)
    assert isinstance(answer["cached"], int)
    return answer["cached"]


def end(engine: Engine, conversation: str) -> None:
    engine.generate([prompt(1, 10)], params=of(conversation, end_conversation=True), max_tokens=1)
    assert engine.run("answer = connector(llm).coordinator.connection.flush(20)") is True


def test_blocks_go_with_the_last_conversation_that_used_them(small: Path, node: Node) -> None:
    with Engine(small, transfer_config(node, min_load_tokens=1)) as engine:
        engine.generate([TALK], params=of("a"))
        engine.generate([BUILT_ON], params=of("b"))
        engine.generate([TOUCHED], params=of("a"))
        assert [would_load(engine, one) for one in (TALK, BUILT_ON, TOUCHED)] == [FULL] * 3
        assert engine.ask("reset") is True
        engine.generate([TOUCHED[: 3 * BLOCK + 9]], params=of("c"))  # writes nothing: all of it is there
        end(engine, "a")
        assert [would_load(engine, one) for one in (TALK, BUILT_ON, TOUCHED)] == [2 * BLOCK, FULL, 3 * BLOCK]
        end(engine, "b")  # the last that wrote or used what both begin with
        assert [would_load(engine, one) for one in (TALK, BUILT_ON, TOUCHED)] == [0, 0, 3 * BLOCK]


def test_ended_conversation_loses_blocks_on_their_way(small: Path, node: Node) -> None:
    """The saves are slow: they come to their end after the request that ends their conversation."""
    with Engine(small, transfer_config(node, max_bytes_per_s=4_000_000, min_load_tokens=1)) as engine:
        engine.generate([prompt(2, 300)])  # from now on a session stands
        engine.run(BOTH_AT_ONCE, tokens=TALK)
        assert engine.run("answer = connector(llm).coordinator.connection.flush(20)") is True
        assert would_load(engine, TALK) == 0
        assert engine.ask("counted")["published_blocks"] == 2 + FULL // BLOCK


BOTH_AT_ONCE = """
from vllm import SamplingParams
engine = llm.llm_engine
def add(name, tokens, params):
    engine.add_request(name, {"prompt_token_ids": tokens}, SamplingParams(
        max_tokens=1, temperature=0, detokenize=False, ignore_eos=True, extra_args={"kv_transfer_params": params}))
add("talk", asked["tokens"], {"cistern.conversation": "a"})
add("end", asked["tokens"][:9], {"cistern.conversation": "a", "cistern.end_conversation": True})
while engine.has_unfinished_requests() or connector(llm).coordinator.pending:
    engine.step()
"""


def test_higher_priority_saved_when_not_all_fit(small: Path, node: Node) -> None:
    """Both requests are over after one step; their saves may hold pages of five blocks only."""
    with Engine(
        small, transfer_config(node, max_pages_share=0.1, min_load_tokens=1), kv_bytes=51 * 262_144, max_model_len=2048,
    ) as engine:
        engine.generate([prompt(2, 300)])
        engine.run(TWO_PRIORITIES, prompts=[TALK, TOUCHED])
        assert [would_load(engine, one) for one in (TALK, TOUCHED)] == [0, FULL]


TWO_PRIORITIES = """
import os
from vllm import SamplingParams
engine = llm.llm_engine
for number, tokens in enumerate(asked["prompts"]):
    engine.add_request(str(number), {"prompt_token_ids": tokens}, SamplingParams(
        max_tokens=1, temperature=0, detokenize=False, ignore_eos=True,
        extra_args={"kv_transfer_params": {"cistern.priority": number}}))
asked_for = [one.match for one in connector(llm).coordinator._requests.values()]
while not all(one.pending is None or one.pending.ready() for one in asked_for):
    os.sched_yield()  # the node's answers, without which either is saved with a later step
while engine.has_unfinished_requests() or connector(llm).coordinator.pending:
    engine.step()
"""
