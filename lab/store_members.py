#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What members of a cell with free room and no engines give, on a trace.

Engine nodes compute what no member has, keep it under least recently used, and read from each other; what leaves one
goes to a member without engines, which its branch chooses, with what it stands on (docs/decisions/0028-copies.md).
Prints a table: the hit rate without such members, with them, and where the engine nodes had their room instead.
Python's standard library only.

    lab/store_members.py TRACE.jsonl --nodes 4
"""

from __future__ import annotations

import argparse
import json
import random
from collections import OrderedDict
from dataclasses import dataclass


@dataclass
class Outcome:
    """Of a run, in blocks."""

    asked: int = 0
    local: int = 0
    of_engines: int = 0
    of_stores: int = 0
    given: int = 0
    given_and_read: int = 0

    @property
    def rate(self) -> float:
        """Hits of all that was asked for."""
        return (self.local + self.of_engines + self.of_stores) / self.asked


class Member:
    """Blocks by least recent use; a request touches its chain leaf to root, so leaves go first."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def depth(self, chain: list[int]) -> int:
        """Blocks of the chain that are here, from its first on."""
        for at, block in enumerate(chain):
            if block not in self.blocks:
                return at
        return len(chain)

    def use(self, chain: list[int]) -> list[int]:
        """All of the chain is here then; what left for it."""
        for block in reversed(chain):
            self.blocks[block] = None
            self.blocks.move_to_end(block)
        gone = []
        while len(self.blocks) > self.room:
            gone.append(self.blocks.popitem(last=False)[0])
        return gone


def run(
    requests: list[list[int]], nodes: int, room: int, stores: int, store_room: int, sticky: bool, at_once: bool
) -> Outcome:
    """Requests go to nodes at random, or all with the same second block to one (`sticky`)."""
    dice = random.Random(1)
    engines = [Member(room) for _ in range(nodes)]
    keepers = [Member(store_room) for _ in range(stores)]
    chains: dict[int, list[int]] = {}  # of a block: what it stands on, itself too
    fresh: set[int] = set()  # given, and not read yet
    said = Outcome()

    def give(block: int) -> None:
        chain = chains[block]
        branch = chain[1] if len(chain) > 1 else chain[0]
        keeper = keepers[branch % len(keepers)]
        new = [one for one in chain if one not in keeper.blocks]
        said.given += len(new)
        fresh.update(new)
        for gone in keeper.use(chain):
            fresh.discard(gone)

    for chain in requests:
        key = chain[min(1, len(chain) - 1)]
        engine = engines[key % nodes if sticky else dice.randrange(nodes)]
        for at, block in enumerate(chain):
            if block not in chains:
                chains[block] = chain[: at + 1]
        here = engine.depth(chain)
        others = max((other.depth(chain) for other in engines), default=0)
        stored, keeper = max(((one.depth(chain), one) for one in keepers), key=lambda pair: pair[0], default=(0, None))
        said.asked += len(chain)
        said.local += here
        said.of_engines += max(0, others - here)
        if keeper is not None and stored > max(others, here):
            read = chain[max(others, here) : stored]
            said.of_stores += len(read)
            said.given_and_read += len(fresh.intersection(read))
            fresh.difference_update(read)
            keeper.use(chain[:stored])
        gone = engine.use(chain)
        if keepers and at_once:
            give(chain[-1])
        elif keepers:
            for block in gone:
                give(block)
    return said


def read(path: str) -> list[list[int]]:
    """The requests' blocks; the last of a prompt is partial and nobody's but its own, unless it is whole."""
    requests = []
    with open(path, encoding="utf-8") as trace:
        for line in trace:
            said = json.loads(line)
            whole = said["hash_ids"][: said["input_length"] // 512]
            if whole:
                requests.append(whole)
    return requests


def main() -> int:
    """Exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("trace")
    parser.add_argument("--nodes", type=int, default=4)
    arguments = parser.parse_args()
    requests = read(arguments.trace)
    unique = len({block for chain in requests for block in chain})
    asked = sum(len(chain) for chain in requests)
    print(f"{len(requests)} requests, {asked} blocks, {unique} different: {1 - unique / asked:.1%} may hit")
    print("room of all engine nodes and of stores, in parts of the different blocks")
    print("router  room  stores  without  with   as room of engines  when it is put | given, blocks  of it read")
    for sticky in (False, True):
        for share in (0.05, 0.1, 0.2, 0.4):
            for times in (1, 4):
                room = int(unique * share / arguments.nodes)
                free = int(unique * share * times)
                plain = run(requests, arguments.nodes, room, 0, 0, sticky, False)
                stored = run(requests, arguments.nodes, room, 1, free, sticky, False)
                larger = run(requests, arguments.nodes, room + free // arguments.nodes, 0, 0, sticky, False)
                at_once = run(requests, arguments.nodes, room, 1, free, sticky, True)
                print(
                    f"{'branch' if sticky else 'random'}  {share:4.2f}  {share * times:6.2f}  {plain.rate:7.1%}  "
                    f"{stored.rate:5.1%}  {larger.rate:18.1%}  {at_once.rate:13.1%} | {stored.given:13}  "
                    f"{stored.given_and_read / max(1, stored.given):10.1%}",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
