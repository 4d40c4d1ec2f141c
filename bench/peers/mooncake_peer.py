# SPDX-License-Identifier: Apache-2.0
"""Blocks of another process over TCP by Mooncake's transfer engine, beside those of another node of a cell.

Each round reads the same bytes in blocks of the same size, as many a call and as many calls under way as
`cistern bench --only cell-read`, which runs in turn with it. Mooncake's blocks are not checked on arrival.

    pip install mooncake-transfer-engine-non-cuda
    python bench/peers/mooncake_peer.py --cistern build/release/bin/cistern --rounds 5
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import mmap
import multiprocessing
import multiprocessing.synchronize
import os
import random
import statistics
import subprocess
import sys
import time

HELD_BYTES = 1 << 30
SLOT_BYTES = 512 << 20
ROUND_BYTES = 1 << 30
CALLS_UNDER_WAY = 6
ROWS = {"cell_read_8x64KiB": (64 << 10, 8), "cell_read_2MiB": (2 << 20, 1)}


def start_engine(size: int) -> tuple[object, int, object]:
    """An engine with so many bytes of touched, registered memory: the engine, their address, their owner."""
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # it tells of each transfer
    from mooncake.engine import TransferEngine

    engine = TransferEngine()
    if engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") != 0:
        sys.exit("mooncake_peer: the transfer engine does not start")
    memory = mmap.mmap(-1, size)
    owner = (ctypes.c_char * size).from_buffer(memory)
    address = ctypes.addressof(owner)
    ctypes.memset(address, 1, size)
    if engine.register_memory(address, size) != 0:
        sys.exit(f"mooncake_peer: {size} bytes cannot be registered")
    return engine, address, (memory, owner)


def serve(where: multiprocessing.Queue[tuple[int, int]], ends: multiprocessing.synchronize.Event) -> None:
    engine, address, _owner = start_engine(HELD_BYTES)
    where.put((engine.get_rpc_port(), address))
    ends.wait()
    os._exit(0)  # its threads would go on


class Reader:
    def __init__(self, port: int, remote: int) -> None:
        self.engine, self.local, self.owner = start_engine(SLOT_BYTES)
        self.peer = f"127.0.0.1:{port}"
        self.remote = remote
        self.draw = random.Random(7)

    def round(self, block: int, at_once: int) -> float:
        """GB/s of random blocks, the oldest call awaited first."""
        slots, slot, asked = SLOT_BYTES // block, 0, 0
        under_way: collections.deque[int] = collections.deque()
        began = time.perf_counter()
        while asked < ROUND_BYTES or under_way:
            while asked < ROUND_BYTES and len(under_way) < CALLS_UNDER_WAY:
                to = [self.local + (slot + i) % slots * block for i in range(at_once)]
                of = [self.remote + self.draw.randrange(HELD_BYTES // block) * block for _ in range(at_once)]
                slot = (slot + at_once) % slots
                asked += at_once * block
                under_way.append(self.engine.batch_transfer_async_read(self.peer, to, of, [block] * at_once))
            if self.engine.get_batch_transfer_status([under_way.popleft()]) != 0:
                sys.exit("mooncake_peer: a transfer failed")
        return ROUND_BYTES / (time.perf_counter() - began) / 1e9


def ours(cistern: str) -> dict[str, float]:
    """GB/s of one round of a cell of two nodes, by row."""
    command = [cistern, "bench", "--only", "cell-read", "--rounds", "1", "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return {row["name"]: row["value"] for row in json.loads(done.stdout)["rows"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cistern", default="build/release/bin/cistern", help="the program beside cisternd")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    asked = parser.parse_args()

    spawn = multiprocessing.get_context("spawn")
    where: multiprocessing.Queue[tuple[int, int]] = spawn.Queue()
    ends = spawn.Event()
    server = spawn.Process(target=serve, args=(where, ends))
    server.start()
    reader = Reader(*where.get(timeout=60))
    theirs: dict[str, list[float]] = {name: [] for name in ROWS}
    own: dict[str, list[float]] = {name: [] for name in ROWS}
    for block, at_once in ROWS.values():
        reader.round(block, at_once)  # opens connections
    for _ in range(asked.rounds):
        for name, (block, at_once) in ROWS.items():
            theirs[name].append(reader.round(block, at_once))
        measured = ours(asked.cistern)
        for name in ROWS:
            own[name].append(measured[name])
    ends.set()
    server.join()

    rows = []
    for name in ROWS:
        ratios = [a / b for a, b in zip(own[name], theirs[name], strict=True)]
        rows.append({
            "name": f"{name}_against_mooncake_tcp",
            "value": statistics.median(own[name]),
            "unit": "GB/s",
            "limit": "Mooncake's transfer engine over TCP",
            "limit_value": statistics.median(theirs[name]),
            "ratio": statistics.median(ratios),
            "ratio_low": min(ratios),
            "ratio_high": max(ratios),
        })
    if asked.json:
        print(json.dumps({"rows": rows}))
    else:
        for row in rows:
            print(f"{row['name']:<36} {row['value']:6.2f} GB/s  "
                  f"{'Mooncake over TCP':<22} {row['limit_value']:6.2f} GB/s  "
                  f"{row['ratio']:5.1f} x ({row['ratio_low']:.1f} to {row['ratio_high']:.1f})")
    sys.stdout.flush()
    os._exit(0)  # the engine's threads would go on


if __name__ == "__main__":
    main()
