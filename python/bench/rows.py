# SPDX-License-Identifier: Apache-2.0
"""Costs of the package's calls from Python, against a node of its own: rows.py [--json]

Each row's limit is measured in the same run: an empty call for the calls, memcpy (NumPy) for the bytes. Nothing
here asserts a time.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

import cistern

ROUNDS = 400
LAYERS, FRAGMENT, PAGES = 32, 64 << 10, 128
PART = LAYERS * FRAGMENT
BLOCKS = 64


@dataclass
class Row:
    name: str
    value: float
    unit: str
    limit: str
    limit_value: float
    ratio: float
    p50_us: float
    p99_us: float


def times_us(call: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begun) * 1e6)
    return sorted(taken)


def quantile(times: list[float], at: float) -> float:
    return times[min(int(at * len(times)), len(times) - 1)]


def call_row(name: str, call: Callable[[], object], limit: Callable[[], object]) -> Row:
    ours, least = times_us(call), times_us(limit)
    p50, least_p50 = quantile(ours, 0.5), quantile(least, 0.5)
    return Row(name, p50, "us", "an empty call", least_p50, p50 / least_p50, p50, quantile(ours, 0.99))


def match_rows(store: cistern.Store) -> list[Row]:
    namespace = store.attach(cistern.NamespaceSpec({"bench": "match"}))
    draw = random.Random(1)
    keys = [draw.randbytes(32) for _ in range(8192)]
    for at in range(0, len(keys), 4096):
        parent = keys[at - 1] if at else None
        store.write(namespace, keys[at : at + 4096], [b"x" * 64] * 4096, parent=parent)
    chain, unknown = cistern.Chain(keys), [*keys[:256], *(draw.randbytes(32) for _ in range(256))]
    no_keys: list[bytes] = []

    def empty() -> object:
        return store.match(namespace, no_keys)

    return [
        call_row("python_match_512", lambda: store.match(namespace, keys[:512]), empty),
        call_row("python_match_512_half_there", lambda: store.match(namespace, unknown), empty),
        call_row("python_match_8192", lambda: store.match(namespace, keys), empty),
        call_row("python_match_8192_chain", lambda: store.match(namespace, chain), empty),
        call_row("python_match_8192_again", lambda: store.match(namespace, chain, max_age_us=60_000_000), empty),
    ]


def page_rows(store: cistern.Store) -> list[Row]:
    group = cistern.Group("all", part_bytes=[PART])
    namespace = store.attach(cistern.NamespaceSpec({"bench": "pages"}, groups=[group]))
    draw = random.Random(2)
    keys = [draw.randbytes(32) for _ in range(BLOCKS)]
    pool = np.random.default_rng(1).integers(0, 255, (LAYERS, PAGES, FRAGMENT), np.uint8)
    pages = cistern.Pages.over(
        [pool], [(0, layer * PAGES * FRAGMENT, FRAGMENT, FRAGMENT) for layer in range(LAYERS)], PAGES
    )
    to = np.zeros_like(pool)
    rates: list[tuple[float, float]] = []
    took: list[float] = []
    with cistern.Transfers(store) as transfers:
        transfers.submit_save(namespace, keys, pages, range(BLOCKS), held=False)
        assert all(done.ok for done in transfers.wait(60))
        for _ in range(12):
            ids = draw.sample(range(PAGES), BLOCKS)
            begun = time.perf_counter()
            transfers.submit_load(namespace, keys, pages, ids)
            assert all(done.ok for done in transfers.wait(60))
            loaded = time.perf_counter()
            # A page at a time: NumPy copies its pieces of 64 KiB, as large as the row's, without going back to
            # Python for each.
            for page in ids:
                to[:, page] = pool[:, page]
            copied = time.perf_counter()
            rates.append((BLOCKS * PART / (loaded - begun) / 1e9, BLOCKS * PART / (copied - loaded) / 1e9))
            took.append((loaded - begun) * 1e6)
    ours, theirs = sorted(rates[2:]), sorted(copy for _, copy in rates[2:])
    ratio = sorted(load / copy for load, copy in rates[2:])[len(ours) // 2]
    value, limit = ours[len(ours) // 2][0], theirs[len(theirs) // 2]
    took.sort()
    return [Row("python_load_pages_32x64KiB", value, "GB/s", "NumPy copies", limit, ratio, took[6], took[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description="What the package's calls cost from Python.")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cistern-bench-", dir="/dev/shm") as name:
        directory = pathlib.Path(name)
        node = subprocess.Popen(
            [cistern.cisternd_path(), "--memory", "1GiB", "--memory-dir", str(directory / "memory"),
             "--socket", str(directory / "socket")],
            stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            assert node.stderr is not None
            node.stderr.readline()
            with cistern.Store.connect(directory / "socket") as store:
                rows = [*match_rows(store), *page_rows(store)]
        finally:
            node.kill()
            node.wait()
    if options.json:
        print(json.dumps({"rows": [asdict(row) for row in rows]}))
        return
    for row in rows:
        print(f"{row.name:32} {row.value:10.2f} {row.unit:5} {row.limit:>14} {row.limit_value:8.2f} "
              f"{row.ratio:7.2f}  p50 {row.p50_us:9.1f} us  p99 {row.p99_us:9.1f} us")  # fmt: skip


if __name__ == "__main__":
    main()
