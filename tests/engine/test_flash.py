# SPDX-License-Identifier: Apache-2.0
"""Blocks that left the node's memory for its flash, loaded from there: the same tokens, and the client is told."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path

from harness import BY_SOURCE, PATIENT, WATCHDOG_S, Engine, Node, prompt, transfer_config

from cistern.vllm import versions

BLOCK = 128
PROMPTS = [prompt(number, 900 + 300 * number) for number in range(3)]


def written_down(node: Node) -> int:
    count = node.status()["store"]["written_down"]
    assert isinstance(count, int)
    return count


def test_blocks_on_flash_survive_a_reboot(small: Path) -> None:
    blocks = sum((len(one) - 1) // BLOCK for one in PROMPTS)
    with (
        tempfile.TemporaryDirectory(prefix="cistern-flash-", dir=Path.cwd()) as disk,
        Node("64MiB", "--flash", f"{disk}:256MiB", "--flash-read-ahead", "0B") as node,
    ):
        with Engine(small, transfer_config(node, **PATIENT)) as first:
            computed = first.generate(PROMPTS)
            counted = first.ask("counted")
            assert counted["published_blocks"] == blocks, f"{counted}\n{first.log()[-6000:]}"
        end = time.monotonic() + WATCHDOG_S
        while (written := written_down(node)) < blocks:
            assert time.monotonic() < end, f"{written} blocks of {blocks} are on flash"
        node.kill()
        shutil.rmtree(node.folder / "memory")
        node.start()
        with Engine(small, transfer_config(node, min_load_tokens=1, **PATIENT)) as second:
            loaded = second.generate(PROMPTS)
            sources = second.run(BY_SOURCE)
    assert sources == ({"disk": blocks * BLOCK} if versions.hit_sources() else {})
    for was, now, asked in zip(computed, loaded, PROMPTS, strict=True):
        assert now["tokens"] == was["tokens"]
        assert now["cached"] == (len(asked) - 1) // BLOCK * BLOCK
        assert now["params"]["cistern.where"] == "flash"
