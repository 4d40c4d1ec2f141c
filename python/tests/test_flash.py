# SPDX-License-Identifier: Apache-2.0
"""Blocks that left the node's memory for its flash: matched, read, leased and loaded as if they had not, or refused
by name."""

from __future__ import annotations

import asyncio
import pathlib
import random
import tempfile
from collections.abc import Iterator

import pytest
from conftest import FOREVER_US, TIMEOUT_S, Node

import cistern
from cistern import Code, aio

SPEC = cistern.NamespaceSpec({"model": "flash"})
BLOCK_BYTES = 1 << 20
BLOCKS = 128
"""Twice what the node's memory holds."""
KEYS = [i.to_bytes(32, "big") for i in range(BLOCKS)]
NO_KEY = b"\xff" * 32


def body(number: int) -> bytes:
    return random.Random(number).randbytes(BLOCK_BYTES)


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with (
        tempfile.TemporaryDirectory(prefix="cistern-flash-", dir=pathlib.Path.cwd()) as disk,
        tempfile.TemporaryDirectory(prefix="cistern-flash-") as path,
    ):
        made = Node(pathlib.Path(path), "64MiB", "--flash", f"{disk}:512MiB", "--flash-read-ahead", "0B")
        with made.connect() as store:
            namespace = store.attach(SPEC)
            for number, key in enumerate(KEYS):
                store.put(namespace, key, body(number), parent=KEYS[number - 1] if number else None)
                while store.status()["store"]["written_down"] <= number:  # pytest-timeout, or the suite's, ends it
                    pass
        yield made
        made.kill()


@pytest.fixture
def store(node: Node) -> Iterator[cistern.Store]:
    with node.connect() as connected:
        yield connected


@pytest.fixture
def namespace(store: cistern.Store) -> cistern.Namespace:
    return store.attach(SPEC)


def on_flash(store: cistern.Store, namespace: cistern.Namespace, count: int) -> list[int]:
    """Numbers of blocks that are not in memory now."""
    numbers = []
    into = bytearray(16)
    for number, key in enumerate(KEYS):
        if store.read(namespace, [key], [into], worth_us=0, touch=False).outcomes[0] == Code.TOO_LATE:
            numbers.append(number)
    assert len(numbers) >= count
    return numbers[:count]


def test_match_of_blocks_on_flash_counts_and_locates_them(store: cistern.Store, namespace: cistern.Namespace) -> None:
    for found in (store.match(namespace, KEYS), store.match(namespace, KEYS, hold_us=1_000_000)):
        assert found.blocks == sum(run.blocks for run in found.runs) == BLOCKS
        assert {run.where for run in found.runs} == {"memory", "flash"}
        assert all((run.ready_in_us > 0) == (run.where == "flash") for run in found.runs)


def test_read_of_blocks_on_flash_is_bit_exact(store: cistern.Store, namespace: cistern.Namespace) -> None:
    into = [bytearray(BLOCK_BYTES) for _ in KEYS]
    result = store.read(namespace, KEYS, into, deadline_us=FOREVER_US)
    assert result.leading_hits == BLOCKS and result.outcomes == bytes(BLOCKS)
    assert all(got == body(number) for number, got in enumerate(into))


def test_get_and_views_of_blocks_on_flash(store: cistern.Store, namespace: cistern.Namespace) -> None:
    first, second = on_flash(store, namespace, 2)
    assert store.get(namespace, KEYS[first]) == body(first)
    with store.acquire(namespace, [KEYS[second], NO_KEY, KEYS[first]], lease_us=60_000_000) as lease:
        assert [view and view.tobytes() for view in lease] == [body(second), None, body(first)]


def test_read_not_worth_its_wait_is_refused(store: cistern.Store, namespace: cistern.Namespace) -> None:
    numbers = on_flash(store, namespace, 3)
    into = [bytearray(BLOCK_BYTES) for _ in range(4)]
    keys = [KEYS[number] for number in numbers]
    result = store.read(namespace, [*keys, NO_KEY], into, worth_us=0)
    assert list(result.outcomes) == [Code.TOO_LATE] * 3 + [Code.MISS]
    with pytest.raises(cistern.TooLate, match="would not be ready in time"):
        store.acquire(namespace, keys, worth_us=0)
    assert list(store.read(namespace, keys, into[:3]).outcomes) == [Code.OK] * 3


def test_load_of_blocks_on_flash_into_pages(store: cistern.Store, namespace: cistern.Namespace) -> None:
    numbers = on_flash(store, namespace, 40)
    memory = bytearray(len(numbers) * BLOCK_BYTES)
    pages = cistern.Pages.over([memory], [(0, 0, BLOCK_BYTES, BLOCK_BYTES)], pages=len(numbers))
    with cistern.Transfers(store) as transfers:
        keys = [KEYS[number] for number in numbers]
        transfers.submit_load(namespace, keys, pages, range(len(numbers)), deadline_us=FOREVER_US)
        (done,) = transfers.wait(TIMEOUT_S)
    assert done.outcomes == bytes(len(numbers)), done.message
    assert all(pages.gather(page) == body(number) for page, number in enumerate(numbers))


def test_node_in_this_process_finds_on_flash_what_its_memory_lost() -> None:
    with tempfile.TemporaryDirectory(prefix="cistern-flash-", dir=pathlib.Path.cwd()) as disk:
        for boot in ("first", "second"):  # with the first one's memory gone
            with (
                tempfile.TemporaryDirectory(prefix="cistern-flash-") as memory,
                cistern.Store.open(memory_bytes=64 << 20, memory_dir=memory, flash=[(disk, 128 << 20)]) as store,
            ):
                namespace = store.attach(SPEC)
                if boot == "first":
                    store.put(namespace, KEYS[0], body(0))
                    while store.status()["store"]["written_down"] == 0:
                        pass
                assert store.get(namespace, KEYS[0]) == body(0), boot


def test_coroutines_await_blocks_on_flash_at_once(
    node: Node, store: cistern.Store, namespace: cistern.Namespace
) -> None:
    numbers = on_flash(store, namespace, 24)

    async def work() -> None:
        async with await aio.connect(node.socket) as other:
            theirs = await other.attach(SPEC)
            into = [bytearray(BLOCK_BYTES) for _ in numbers]
            reads = [
                other.read(theirs, [KEYS[number]], [into[at]], deadline_us=FOREVER_US)
                for at, number in enumerate(numbers)
            ]
            for result in await asyncio.gather(*reads):
                assert result.leading_hits == 1
            assert all(into[at] == body(number) for at, number in enumerate(numbers))
            # In several turns, through less memory than it takes.
            whole = [bytearray(BLOCK_BYTES) for _ in KEYS]
            assert (await other.read(theirs, KEYS, whole, deadline_us=FOREVER_US)).leading_hits == BLOCKS
            assert all(got == body(number) for number, got in enumerate(whole))
            with await other.acquire(theirs, [KEYS[numbers[0]]]) as lease:
                assert lease[0] is not None and lease[0].tobytes() == body(numbers[0])
            assert await other.get(theirs, KEYS[numbers[1]]) == body(numbers[1])

    asyncio.run(asyncio.wait_for(work(), TIMEOUT_S))
