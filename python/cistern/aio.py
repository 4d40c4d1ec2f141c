# SPDX-License-Identifier: Apache-2.0
"""The store's calls as coroutines.

    store = await cistern.aio.connect()
    result = await store.read(namespace, keys, buffers)

Each does what the call of that name in `cistern.Store` says. What the node answers is awaited on the store's
event descriptor; what moves bytes runs in the loop's default executor, without the GIL. A store belongs to the
event loop that made it. A task that is cancelled gives up the answer, not the call: its buffers are held until
the call has let go of them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from . import _native
from . import store as blocking
from .errors import Invalid
from .hints import Hints
from .namespace import NamespaceSpec
from .store import (
    DEADLINE_US,
    NO_WORTH_LIMIT,
    AnyBuffer,
    Data,
    Handle,
    Into,
    Keys,
    Lease,
    MatchResult,
    Namespace,
    ReadResult,
    WriteResult,
)
from .transfers import Done
from .transfers import Transfers as BlockingTransfers

_T = TypeVar("_T")

_LOOK_AGAIN_S = 0.05
"""Pause between looks at a call past its deadline, of whose buffers the node may still be letting go, and at one that
is under way when its store is closed."""


async def connect(
    socket: str | os.PathLike[str] | None = None,
    *,
    tenant: str = "default",
    owner: bytes | None = None,
    staging_bytes: int = 0,
    deadline_us: int = 5_000_000,
    node_user: int | str | None = None,
    engine_name: str = "",
) -> Store:
    """As cistern.Store.connect()."""
    native = await asyncio.to_thread(
        blocking._connect, socket, tenant, owner, staging_bytes, deadline_us, node_user, engine_name
    )
    return Store(native)


async def open(**options: Any) -> Store:
    """As cistern.Store.open()."""
    opened = await asyncio.to_thread(lambda: blocking.Store.open(**options))
    opened._closed.detach()
    return Store(opened._native)


class Store(Handle):
    """A node of this host, or in this process; see the module. An asynchronous context manager."""

    __slots__ = ("_fd", "_listens", "_loop", "_waiting")

    def __init__(self, native: _native.Store) -> None:
        """Use connect() or open(), in a running loop."""
        super().__init__(native)
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._fd = native.event_fd()
        self._listens = True
        """Until it is closed: the descriptor's number may be another one's then."""
        self._loop.add_reader(self._fd, self._arrived)

    async def close(self) -> None:
        if self._listens:
            self._listens = False
            self._loop.remove_reader(self._fd)
            for future in self._waiting.values():  # calls under way look for themselves
                if not future.done():
                    future.set_result(None)
        await asyncio.to_thread(self._closed)

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def _arrived(self) -> None:
        ready = self._native.poll()
        for id in ready:
            future = self._waiting.pop(id, None)
            if future is not None and not future.done():
                future.set_result(None)
        # A session that has ended stays readable: nobody waits for it any more.
        if not ready and not self._waiting:
            self._loop.remove_reader(self._fd)

    async def _wait(self, pending: _native.Pending[_T], deadline_us: int) -> None:
        """Waits until the answer is there, or will not come."""
        if self._listens:
            self._loop.add_reader(self._fd, self._arrived)
        look_in_s = deadline_us / 1e6
        while not pending.ready():
            future = self._waiting[pending.id] = self._loop.create_future()
            try:
                await asyncio.wait_for(future, look_in_s if self._listens else _LOOK_AGAIN_S)
            except TimeoutError:
                look_in_s = _LOOK_AGAIN_S
            finally:
                self._waiting.pop(pending.id, None)

    async def _ask(self, pending: _native.Pending[_T], deadline_us: int) -> _T:
        await self._wait(pending, deadline_us)
        return pending.finish()

    async def _move(self, begin: Callable[[], _native.Pending[_T]], deadline_us: int) -> _T:
        """The answer of a call that copies bytes when it begins, and may when it finishes."""
        pending = await asyncio.to_thread(begin)
        if pending.ready() and pending.id == 0:  # answered at once
            return pending.finish()
        await self._wait(pending, deadline_us)
        return await asyncio.to_thread(pending.finish)

    async def attach(self, spec: NamespaceSpec, *, deadline_us: int = DEADLINE_US) -> Namespace:
        return Namespace(await asyncio.to_thread(self._native.attach, spec, deadline_us), spec)

    async def match(
        self, namespace: Namespace, keys: Keys, *, hold_us: int = 0, hints: Hints | None = None,
        deadline_us: int = DEADLINE_US,
    ) -> MatchResult:
        pending = self._native.begin_match(namespace._native, blocking._plain(keys), hold_us, hints, deadline_us)
        return blocking._match_result(await self._ask(pending, deadline_us))

    async def acquire(
        self,
        namespace: Namespace,
        keys: Keys,
        *,
        group: int = 0,
        lease_us: int = 1_000_000,
        deadline_us: int = DEADLINE_US,
        worth_us: int = NO_WORTH_LIMIT,
    ) -> Lease:
        pending = self._native.begin_acquire(
            namespace._native, blocking._plain(keys), group, lease_us, deadline_us, worth_us
        )
        return Lease(await self._ask(pending, deadline_us))

    async def read(
        self,
        namespace: Namespace,
        keys: Keys,
        into: Sequence[Into],
        *,
        group: int = 0,
        part: int = 0,
        deadline_us: int = DEADLINE_US,
        worth_us: int = NO_WORTH_LIMIT,
        touch: bool = True,
    ) -> ReadResult:
        plain = blocking._plain(keys)
        answer = await self._move(
            lambda: self._native.begin_read(
                namespace._native, plain, into, group, part, deadline_us, worth_us, touch
            ),
            deadline_us,
        )
        return ReadResult(*answer)

    async def write(
        self,
        namespace: Namespace,
        keys: Keys,
        data: Sequence[Data],
        *,
        parent: bytes | None = None,
        parents: Sequence[bytes | None] | None = None,
        group: int = 0,
        part: int = 0,
        put_ids: Sequence[bytes] | None = None,
        held: bool = False,
        ttl_s: int = 0,
        conversation: str = "",
        deadline_us: int = DEADLINE_US,
    ) -> WriteResult:
        plain = blocking._plain(keys)
        answer = await self._move(
            lambda: self._native.begin_write(
                namespace._native, plain, data, parent, parents, group, part, put_ids, held, ttl_s, conversation,
                deadline_us,
            ),
            deadline_us,
        )
        return WriteResult(*answer)

    async def publish(
        self, namespace: Namespace, put_ids: Sequence[bytes], *, deadline_us: int = DEADLINE_US
    ) -> int:
        return await self._ask(self._native.begin_publish(namespace._native, put_ids, deadline_us), deadline_us)

    async def abandon(
        self, namespace: Namespace, put_ids: Sequence[bytes], *, deadline_us: int = DEADLINE_US
    ) -> int:
        return await self._ask(self._native.begin_abandon(namespace._native, put_ids, deadline_us), deadline_us)

    async def touch(
        self, namespace: Namespace, keys: Keys, *, conversation: str = "", deadline_us: int = DEADLINE_US
    ) -> int:
        pending = self._native.begin_touch(namespace._native, blocking._plain(keys), conversation, deadline_us)
        return await self._ask(pending, deadline_us)

    async def end_conversation(
        self, namespace: Namespace, conversation: str, *, deadline_us: int = DEADLINE_US
    ) -> int:
        pending = self._native.begin_end_conversation(namespace._native, conversation, deadline_us)
        return await self._ask(pending, deadline_us)

    async def drop(self, namespace: Namespace, keys: Keys, *, deadline_us: int = DEADLINE_US) -> int:
        pending = self._native.begin_drop(namespace._native, blocking._plain(keys), deadline_us)
        return await self._ask(pending, deadline_us)

    async def drop_namespace(
        self, namespace: Namespace, *, deadline_us: int = DEADLINE_US
    ) -> tuple[Namespace, int]:
        native, blocks = await asyncio.to_thread(self._native.drop_namespace, namespace._native, deadline_us)
        return Namespace(native, namespace.spec), blocks

    async def put(
        self,
        namespace: Namespace,
        key: bytes,
        data: AnyBuffer,
        *,
        parent: bytes | None = None,
        ttl_s: int = 0,
        deadline_us: int = DEADLINE_US,
    ) -> None:
        await asyncio.to_thread(self._native.put, namespace._native, key, data, parent, ttl_s, deadline_us)

    async def get(self, namespace: Namespace, key: bytes, *, deadline_us: int = DEADLINE_US) -> bytes | None:
        return await asyncio.to_thread(self._native.get, namespace._native, key, deadline_us)

    async def status(self, *, deadline_us: int = DEADLINE_US) -> dict[str, Any]:
        return blocking._state(await asyncio.to_thread(self._native.status, deadline_us))


KEPT = 2048
"""Reports that nobody has asked for, at most: twice what a queue has by default."""


class Transfers:
    """Transfers whose reports are awaited one by one. Submit with `transfers`, which must not be polled by
    anybody else.

        done = await reports.of(reports.transfers.submit_load(namespace, keys, pages, page_ids))
    """

    def __init__(self, transfers: BlockingTransfers) -> None:
        """In a running loop."""
        self.transfers = transfers
        self._loop = asyncio.get_running_loop()
        self._reports: dict[int, Done] = {}
        """That nobody awaited when they came, oldest first; KEPT at most."""
        self._waiting: dict[int, asyncio.Future[Done]] = {}
        """Each for all who await that transfer."""
        self._loop.add_reader(transfers.event_fd(), self._arrived)

    def _arrived(self) -> None:
        for done in self.transfers.poll():
            self._reports[done.id] = done
            future = self._waiting.pop(done.id, None)
            if future is not None:
                future.set_result(done)
        while len(self._reports) > KEPT:
            self._reports.pop(next(iter(self._reports)))

    async def of(self, id: int) -> Done:
        """The transfer's report, which it gives once, to all who await it then. Of reports that nobody asked for the
        newest 2,048 are kept. Raises Invalid for an id of which no report comes any more."""
        if id in self._reports:
            return self._reports.pop(id)
        future = self._waiting.get(id)
        if future is None:
            if not self.transfers.is_in_flight(id):
                raise Invalid(
                    f"transfer {id}: no such transfer is in flight, or its report was given or forgotten: await it once"
                )
            future = self._waiting[id] = self._loop.create_future()
        done = await asyncio.shield(future)  # one who gives up gives up nothing of the others
        self._reports.pop(id, None)
        return done

    async def close(self) -> None:
        """Closes the transfers; what was waited for is reported."""
        await asyncio.to_thread(self.transfers.close)
        self._arrived()
        self._loop.remove_reader(self.transfers.event_fd())
