# SPDX-License-Identifier: Apache-2.0
"""The calls as coroutines: the same answers, many at once, and none that blocks the loop."""

from __future__ import annotations

import asyncio
import os
import pathlib
import threading
from collections.abc import Coroutine
from typing import Any

import pytest
from conftest import FOREVER_US, TIMEOUT_S, Node

import cistern
from cistern import aio

SPEC = cistern.NamespaceSpec({"model": "aio"})
KEYS = [bytes([i]) * 32 for i in range(64)]


def go(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, TIMEOUT_S))


def test_every_call_answers_as_its_blocking_one(node: Node) -> None:
    async def work() -> None:
        async with await aio.connect(node.socket) as store:
            namespace = await store.attach(SPEC)
            assert (await store.match(namespace, KEYS)).blocks == 0
            written = await store.write(namespace, KEYS[:4], [b"data"] * 4)
            assert written.outcomes == bytes(4)
            assert (await store.match(namespace, KEYS)).blocks == 4
            into = bytearray(4)
            assert (await store.read(namespace, KEYS[:1], [into])).leading_hits == 1 and into == b"data"
            assert list((await store.read(namespace, KEYS[9:10], [into])).outcomes) == [cistern.Code.MISS]
            with await store.acquire(namespace, KEYS[:5]) as lease:
                assert [view and view.tobytes() for view in lease] == [b"data"] * 4 + [None]
            puts = [cistern.new_put_id(), cistern.new_put_id()]
            await store.write(namespace, KEYS[4:6], [b"held"] * 2, parents=[KEYS[3], KEYS[3]], put_ids=puts, held=True)
            assert await store.publish(namespace, puts[:1]) == 1
            assert await store.abandon(namespace, puts[1:]) == 1
            assert await store.touch(namespace, KEYS) == 5
            assert await store.drop(namespace, KEYS[3:4]) == 2
            await store.write(namespace, KEYS[20:22], [b"talk"] * 2, conversation="ann")
            assert await store.touch(namespace, KEYS[20:21], conversation="bob") == 1
            assert await store.end_conversation(namespace, "ann") == 1
            assert await store.drop(namespace, KEYS[20:21]) == 1
            await store.put(namespace, KEYS[10], b"alone")
            assert await store.get(namespace, KEYS[10]) == b"alone"
            assert await store.get(namespace, KEYS[11]) is None
            held = await store.match(namespace, KEYS, hold_us=1_000_000)
            assert held.blocks == 3 and held.hold is not None
            namespace, blocks = await store.drop_namespace(namespace)
            assert blocks == 4 and (await store.match(namespace, KEYS)).blocks == 0
            assert (await store.status())["node"]["pid"] == node.process.pid
            with pytest.raises(cistern.Invalid):
                await store.match(namespace, KEYS, deadline_us=0)

    go(work())


def test_many_calls_are_in_flight_at_once(node: Node) -> None:
    async def work() -> None:
        async with await aio.connect(node.socket) as store:
            namespace = await store.attach(SPEC)
            await store.write(namespace, KEYS, [key * 100 for key in KEYS])
            for _ in range(20):
                touches = [store.touch(namespace, [key]) for key in KEYS]
                leases = [store.acquire(namespace, [key]) for key in KEYS]
                buffers = [bytearray(3200) for _ in KEYS]
                reads = [store.read(namespace, [key], [into]) for key, into in zip(KEYS, buffers, strict=True)]
                assert await asyncio.gather(*touches) == [1] * 64
                for lease, key in zip(await asyncio.gather(*leases), KEYS, strict=True):
                    assert lease[0] is not None and lease[0].tobytes() == key * 100
                    lease.release()
                assert all(result.outcomes == b"\0" for result in await asyncio.gather(*reads))
                assert [bytes(into) for into in buffers] == [key * 100 for key in KEYS]

    go(work())


def test_a_hung_node_holds_no_call_beyond_its_deadline_and_blocks_no_loop(node: Node) -> None:
    async def work() -> None:
        async with await aio.connect(node.socket) as store:
            namespace = await store.attach(SPEC)
            node.stop()
            with pytest.raises(cistern.TooLate):
                await store.touch(namespace, KEYS, deadline_us=300_000)
            given_up = asyncio.ensure_future(store.touch(namespace, KEYS, deadline_us=FOREVER_US))
            for _ in range(1000):
                await asyncio.sleep(0)
            assert not given_up.done()
            given_up.cancel()
            with pytest.raises(asyncio.CancelledError):
                await given_up
            node.go_on()
            assert await store.touch(namespace, KEYS) == 0

    go(work())


def test_a_node_that_is_killed_ends_every_call(node: Node) -> None:
    async def work() -> None:
        async with await aio.connect(node.socket) as store:
            namespace = await store.attach(SPEC)
            node.stop()
            calls = [asyncio.ensure_future(store.touch(namespace, KEYS)) for _ in range(10)]
            await asyncio.sleep(0)
            node.kill()
            for result in await asyncio.gather(*calls, return_exceptions=True):
                assert isinstance(result, cistern.Gone)
            with pytest.raises(cistern.Gone):
                await store.touch(namespace, KEYS)

    go(work())


def test_a_node_in_this_process_and_transfers_that_are_awaited(directory: pathlib.Path) -> None:
    async def work() -> None:
        async with await aio.open(memory_bytes=64 << 20, memory_dir=directory / "memory") as store:
            namespace = await store.attach(SPEC)
            pool = bytearray(b"page" * 1000)
            pages = cistern.Pages.over([pool], [(0, 0, 400, 400)], 10)
            reports = aio.Transfers(cistern.Transfers(store))
            moving = reports.transfers
            save = await reports.of(moving.submit_save(namespace, KEYS[:5], pages, range(5), held=False))
            assert save.ok and save.kind == "save"
            loads = [moving.submit_load(namespace, KEYS[:1], pages, [n]) for n in (7, 8, 9)]
            assert all(done.ok for done in await asyncio.gather(*map(reports.of, loads)))
            await reports.close()

    go(work())


class Begins:
    """A store's calls; says when a write has begun."""

    def __init__(self, native: Any) -> None:
        self.native, self.begun = native, threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def begin_write(self, *given: Any) -> Any:
        pending = self.native.begin_write(*given)
        self.begun.set()
        return pending


def test_calls_under_way_when_their_store_is_closed_are_answered_and_nobody_listens_any_more(node: Node) -> None:
    async def work() -> None:
        raised: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: raised.append(what))
        store = await aio.connect(node.socket)
        namespace = await store.attach(SPEC)
        node.stop()
        waits = asyncio.ensure_future(store.match(namespace, KEYS, deadline_us=10 * FOREVER_US))
        store._native = begins = Begins(store._native)  # type: ignore[assignment]
        written = asyncio.ensure_future(store.write(namespace, KEYS[:1], [b"data"], deadline_us=10 * FOREVER_US))
        await asyncio.sleep(0)
        assert begins.begun.wait(TIMEOUT_S)  # the loop has not heard of it
        await store.close()
        node.go_on()
        assert (await waits).blocks == 0 and (await written).outcomes == b"\0"
        assert not raised

    go(work())


def test_closing_a_store_again_leaves_the_number_of_its_descriptor_to_its_new_owner(node: Node) -> None:
    async def work() -> None:
        store = await aio.connect(node.socket)
        number = store._fd
        await store.close()
        read, write = os.pipe()
        os.dup2(read, number)
        arrived = asyncio.Event()
        asyncio.get_running_loop().add_reader(number, arrived.set)
        await store.close()
        os.write(write, b"x")
        await arrived.wait()
        asyncio.get_running_loop().remove_reader(number)
        for descriptor in (read, write, number):
            os.close(descriptor)

    go(work())


def test_promise5_of_reports_that_nobody_awaits_the_newest_are_kept(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "KEPT", 4)

    async def work() -> None:
        async with await aio.connect(node.socket) as store:
            namespace = await store.attach(SPEC)
            pages = cistern.Pages.over([bytearray(4000)], [(0, 0, 400, 400)], 10)
            reports = aio.Transfers(cistern.Transfers(store))
            ids = [reports.transfers.submit_load(namespace, KEYS[:1], pages, [0]) for _ in range(12)]
            while reports.transfers.in_flight:
                await asyncio.sleep(0)
            assert (await reports.of(ids[-1])).id == ids[-1]
            for gone in (ids[0], ids[-1], ids[-1] + 1):  # forgotten, given, and none
                with pytest.raises(cistern.Invalid, match=f"transfer {gone}"):
                    await reports.of(gone)
            await reports.close()

    go(work())


def test_tasks_that_await_one_transfer_all_have_its_report(node: Node) -> None:
    async def work() -> None:
        async with await aio.connect(node.socket) as store:
            namespace = await store.attach(SPEC)
            pages = cistern.Pages.over([bytearray(4000)], [(0, 0, 400, 400)], 10)
            reports = aio.Transfers(cistern.Transfers(store))
            node.stop()
            save = reports.transfers.submit_save(
                namespace, KEYS[:5], pages, range(5), held=False, deadline_us=10 * FOREVER_US
            )
            waiting = [asyncio.ensure_future(reports.of(save)) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[1].cancel()
            await asyncio.wait(waiting[1:2])
            node.go_on()
            first, last = await asyncio.gather(waiting[0], waiting[2])
            assert first == last and first.ok
            await reports.close()

    go(work())
