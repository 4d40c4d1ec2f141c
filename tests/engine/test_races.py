# SPDX-License-Identifier: Apache-2.0
"""The copier is late, and the engine's few pages are used again and again: what is stored must still be what was
computed under that key."""

from __future__ import annotations

from pathlib import Path

from harness import NAMESPACE, Engine, Node, prompt, stored, transfer_config

PAGE = 262_144
BLOCKS = 10
REQUESTS = {f"r{number}": [*prompt(7, 140), *prompt(number + 10, 80 + 60 * (number % 5))] for number in range(14)}
ABORTS = {"5": ["r1"], "40": ["r4", "r5"], "90": ["r8"]}
ANSWER = 140

COUNT_PREEMPTIONS = """
scheduler = core(llm).scheduler
scheduler.noted, preempt = 0, scheduler._preempt_request
def note(*given, **more):
    scheduler.noted += 1
    return preempt(*given, **more)
scheduler._preempt_request = note
"""
LATE = """
side, due = rank(), []
save = side.save
def late(orders):
    side._unsaved = None
    due.append(orders)
    while len(due) > asked["steps"] or (due and not orders.computes):
        save(due.pop(0))
side.save = late
"""
"""Copies begin so many steps after the one that they were ordered with, however fast this host is."""
UNREFERENCED = """
class Careless:
    def __init__(self, pool): self.pool = pool
    def __getattr__(self, name): return getattr(self.pool, name)
    def reference(self, pages): pass
    def release(self, pages): pass
side = connector(llm).coordinator
side._pool = Careless(side._pool)
"""


def differing(small: Path, tmp_path: Path, careless: bool) -> tuple[int, int, dict[str, int]]:
    """Counts of stored blocks that were compared, and of answers and blocks that differ from those of an engine without
    a connector and with room for all; and the connector's counters."""
    import numpy as np

    with Node() as node:
        with Engine(
            small, transfer_config(node, max_pages_share=0.4, save_timeout_s=25),
            kv_bytes=BLOCKS * PAGE + 1000, max_model_len=640, engine={"max_num_seqs": 5, "max_num_batched_tokens": 640},
        ) as engine:
            engine.run(COUNT_PREEMPTIONS)
            engine.run(LATE, steps=40)
            if careless:
                engine.run(UNREFERENCED)
            answers = engine.ask("serve", requests=REQUESTS, aborts=ABORTS, max_tokens=ANSWER)
            namespace = engine.run("side = connector(llm).coordinator" + NAMESPACE)
            counted = engine.ask("counted")
            counted["preemptions"] = engine.run("answer = core(llm).scheduler.noted")
            assert engine.run("answer = core(llm).scheduler.kv_cache_manager.block_pool.get_num_free_blocks()") > 0
        with Engine(small, None, max_model_len=640, kv_bytes=200 * PAGE) as oracle:
            full = [[*REQUESTS[name], *answer] for name, answer in answers.items()]
            alone = [oracle.generate([REQUESTS[name]], max_tokens=ANSWER)[0]["tokens"] for name in answers]
            wrong = sum(one != answer for one, answer in zip(alone, answers.values(), strict=True))
            for one in full:
                oracle.generate([one], max_tokens=1)
            oracle.ask("pages", into=str(tmp_path / "pages.npz"))
        right = {name: body for name, body in np.load(tmp_path / "pages.npz").items()}
        found = stored(node, keys=[bytes.fromhex(name.split("/")[0]) for name in right], **namespace)
    for key, body in found.items():
        here = np.frombuffer(body, dtype=np.float32)
        there = right[f"{key.hex()}/0"].view(np.float32)
        wrong += not np.allclose(here, there, rtol=1e-3, atol=1e-3)
    return len(found), wrong, counted


def test_pages_reused_during_copy_stored_right(small: Path, tmp_path: Path) -> None:
    compared, wrong, counted = differing(small, tmp_path, careless=False)
    assert wrong == 0
    assert compared >= 10 and counted["left_out"] > 0 and counted["preemptions"] > 0


def test_pages_reused_without_references_found_wrong(small: Path, tmp_path: Path) -> None:
    """The same with a planted bug: the test above can fail."""
    _, wrong, _ = differing(small, tmp_path, careless=True)
    assert wrong > 0
