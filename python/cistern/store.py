# SPDX-License-Identifier: Apache-2.0
"""The store's calls, blocking. `cistern.aio` has the same as coroutines.

All calls: times end in their unit (`deadline_us` counts from the call, in microseconds); a deadline that passes
raises TooLate; a bound that is reached raises Busy at once; a wrong argument raises Invalid, which names it and
its value; after the node went away every call raises Gone; a handle used in a forked child raises Denied. A block
that is not here is a value, not an exception. Calls may come from any number of threads; the GIL is not held while
bytes move or while a call waits.

Keys are `bytes` of 1 to 32 (16 to 32 unless the namespace says trusted_keys), in chain order wherever a call
takes several; give them as a list, or as a Chain where the same keys are used more than once.

Buffers are whatever lies in this host's memory, contiguous: anything with the buffer protocol (bytes, bytearray,
memoryview, NumPy arrays), and CPU tensors by __dlpack__ (PyTorch). They are held until the call has ended.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, overload

from . import _native
from .errors import LeaseLapsed
from .hints import Hints
from .namespace import NamespaceSpec

if TYPE_CHECKING:
    import numpy.typing as npt
    from typing_extensions import Buffer

    from ._arrays import LeasedArray


class SupportsDlpack(Protocol):
    """A CPU tensor, for example PyTorch's."""

    def __dlpack__(self, *, stream: None = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


AnyBuffer: TypeAlias = "Buffer | SupportsDlpack"

DEADLINE_US = 10_000_000
"""Deadline of a call that gives none, for people and batch jobs; an engine gives its own."""
NO_WORTH_LIMIT = (1 << 63) - 1
MAX_LEASE_US = 60_000_000


class Chain:
    """Keys of consecutive blocks from block 0 on, converted once; wherever keys are taken, it may stand.

    Remembers what the last match() of it in a namespace answered, for `max_age_us`. Not thread-safe.
    """

    __slots__ = ("_native",)

    def __init__(self, keys: Sequence[bytes] = ()) -> None:
        """Copies the keys. Raises Invalid for one that has not 1 to 32 bytes, with its place."""
        self._native = _native.Chain()
        self._native.extend(keys)

    @classmethod
    def from_buffer(cls, keys: AnyBuffer, key_bytes: int) -> Chain:
        """Keys of `key_bytes` each (1 to 32), one after the other; copied. Raises Invalid for a buffer whose
        size is no multiple."""
        chain = cls()
        chain._native.extend_buffer(keys, key_bytes)
        return chain

    def extend(self, keys: Sequence[bytes]) -> None:
        """Appends further blocks' keys. What was remembered stays where it ended before the old end."""
        self._native.extend(keys)

    def __len__(self) -> int:
        return len(self._native)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> list[bytes]: ...
    def __getitem__(self, at: int | slice) -> bytes | list[bytes]:
        if isinstance(at, slice):
            return [self._native.key(i) for i in range(*at.indices(len(self)))]
        index = at + len(self) if at < 0 else at
        if not 0 <= index < len(self):
            raise IndexError(f"key {at} of a chain of {len(self)}")
        return self._native.key(index)

    def __iter__(self) -> Iterator[bytes]:
        return (self._native.key(i) for i in range(len(self)))


Keys: TypeAlias = "Sequence[bytes] | Chain"


class Namespace:
    """A namespace as attached by one store; cheap, immutable, and good for that store only. After
    drop_namespace() its calls miss: use the one which that returned."""

    __slots__ = ("_native", "spec")

    def __init__(self, native: _native.Namespace, spec: NamespaceSpec) -> None:
        self._native = native
        self.spec = spec

    @property
    def incarnation(self) -> int:
        """Changes with each drop_namespace; never repeated by a node."""
        return self._native.incarnation


class MatchRun(NamedTuple):
    blocks: int
    where: str
    """"memory", or where else they lie, from near to far: "flash", "peer", "object" (the last: no node yet)."""
    ready_in_us: int
    """About how long until all of them could be in memory, if asked for now; 0 for those that are."""


class MatchResult(NamedTuple):
    blocks: int
    """The longest prefix of the chain that can be read, over all groups together. A hint, unless held."""
    runs: tuple[MatchRun, ...]
    """From block 0 on; their counts add up to `blocks`."""
    hold: Lease | None
    """The lease of the matched blocks and their ancestors, with hold_us. It has no views."""


class ReadResult(NamedTuple):
    leading_hits: int
    """Blocks before the first that was not a hit."""
    outcomes: bytes
    """A Code a block: OK, MISS, INVALID; of blocks in a lower tier also TOO_LATE, and BUSY where there was no room to
    fetch them into. Where it is not Code.OK the destination holds anything."""


class WriteResult(NamedTuple):
    outcomes: bytes
    """A Code a part."""
    states: bytes
    """A State a part."""
    message: str
    """Message of the first part that is not ok; otherwise empty."""


class Range:
    """`into` receives as many bytes as it has, from `offset` on of part `part`. Reads of several ranges of one
    block come all from one and the same record, or none."""

    __slots__ = ("into", "offset", "part")

    def __init__(self, into: AnyBuffer, *, part: int = 0, offset: int = 0) -> None:
        self.into = into
        self.part = part
        self.offset = offset


Into: TypeAlias = "AnyBuffer | Sequence[AnyBuffer] | Sequence[Range]"
Data: TypeAlias = "AnyBuffer | Sequence[AnyBuffer]"


class View:
    """One block's bytes (of one group, all parts in order) where they lie, read-only, without a copy.

    It holds its lease: that ends by release(), its deadline or its session, never because the Lease object
    went away first. The memory under it stays mapped as long as anything refers to it, so a use after the
    lease's end never crashes; but the bytes may be another block's by then: whoever computed with them asks
    `lease.check()` afterwards, or uses `with`, which does.
    """

    __slots__ = ("_native", "lease")

    def __init__(self, lease: Lease, native: _native.View) -> None:
        self.lease = lease
        self._native = native

    @property
    def nbytes(self) -> int:
        return self._native.nbytes

    def memoryview(self) -> memoryview:
        """A read-only memoryview of bytes. Raises LeaseLapsed once the lease ended; one that was taken before
        is released by Lease.release() (its further use raises ValueError), unless something exports it."""
        view = memoryview(self._native)
        self.lease._given.append(weakref.ref(view))
        return view

    def numpy(self, dtype: npt.DTypeLike = "uint8", shape: tuple[int, ...] | None = None) -> LeasedArray:
        """A read-only NumPy array over the block's bytes (needs NumPy), which raises LeaseLapsed when it is
        indexed or computed with after the lease's end. What takes its memory as such asks no lease: np.array(),
        np.asarray(), bytes(), memoryview(); its copy() does. `shape` defaults to one dimension. Raises Invalid where
        the bytes are no whole number of items, or not the shape's."""
        from . import _arrays

        return _arrays.leased(self._native, self.lease, dtype, shape)

    def tobytes(self) -> bytes:
        """A copy. Raises LeaseLapsed where the lease ended before the copy was complete."""
        copy = bytes(memoryview(self._native))
        self.lease.check()
        return copy


class Lease:
    """A right to find blocks unmoved until a deadline. A context manager: at the end of `with` it raises
    LeaseLapsed if it had ended before (what was read through it must be discarded), and releases.

        with store.acquire(namespace, keys) as lease:
            for view in lease:
                if view is not None: use(view.memoryview())
    """

    __slots__ = ("_given", "_native", "_views")

    def __init__(self, native: _native.Lease) -> None:
        self._native = native
        self._views = native.views()
        self._given: list[weakref.ref[memoryview]] = []

    def __len__(self) -> int:
        return len(self._views)

    def __getitem__(self, at: int) -> View | None:
        """The view of the block asked for at that place; None where it was not here."""
        native = self._views[at]
        return None if native is None else View(self, native)

    def __iter__(self) -> Iterator[View | None]:
        return (self[at] for at in range(len(self)))

    @property
    def good(self) -> bool:
        """Whether everything that was read through it so far counts."""
        return self._native.good()

    def check(self) -> None:
        """Raises LeaseLapsed unless `good`."""
        if not self._native.good():
            raise LeaseLapsed("the lease has ended: discard what was read through it since it was last good")

    def release(self) -> None:
        """Ends it; again does nothing. Its memoryviews are released, as far as nothing exports them."""
        self._native.release()
        for given in self._given:
            view = given()
            try:
                if view is not None:
                    view.release()
            except BufferError:  # an array stands on it: it keeps the memory, and sees that the lease ended
                continue
        self._given.clear()

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        good = self._native.good()
        self.release()
        if kind is None and not good:
            raise LeaseLapsed("the lease ended before its use did: discard what was read through it")


def new_put_id() -> bytes:
    """A random id, 16 bytes, for one put: the same for all parts of a block, whoever writes them."""
    return os.urandom(16)


def _plain(keys: Keys) -> Sequence[bytes] | _native.Chain:
    return keys._native if isinstance(keys, Chain) else keys


def _connect(
    socket: str | os.PathLike[str] | None,
    tenant: str,
    owner: bytes | None,
    staging_bytes: int,
    deadline_us: int,
    node_user: int | str | None,
    engine_name: str,
) -> _native.Store:
    path, user = "" if socket is None else socket, "" if node_user is None else str(node_user)
    return _native.connect(path, tenant, owner, staging_bytes, deadline_us, user, engine_name)


def _match_result(answer: _native.MatchAnswer) -> MatchResult:
    blocks, runs, hold = answer
    return MatchResult(blocks, tuple(MatchRun(*run) for run in runs), None if hold is None else Lease(hold))


def _state(text: str) -> dict[str, Any]:
    state = json.loads(text)
    assert isinstance(state, dict)
    return state


class PendingMatch:
    """A match that was begun: Store.begin_match(). One that goes away before its answer gives up the answer."""

    __slots__ = ("_native",)

    def __init__(self, native: _native.Pending[_native.MatchAnswer]) -> None:
        self._native = native

    def ready(self) -> bool:
        """Whether result() would not wait. Does not block."""
        return self._native.ready()

    def result(self) -> MatchResult:
        """The answer, once; waits for it, at most until the match's deadline, and raises as match() does."""
        return _match_result(self._native.finish())


class Handle:
    """The common part of a Store and a cistern.aio.Store."""

    __slots__ = ("__weakref__", "_closed", "_native")

    def __init__(self, native: _native.Store) -> None:
        """Use connect() or open()."""
        self._native = native
        # At the latest when the interpreter ends, because threads of a node must not outlive it.
        self._closed = weakref.finalize(self, native.close)

    @property
    def owner(self) -> bytes:
        """This engine's token (16 bytes), for its other processes."""
        return self._native.owner()


class Store(Handle):
    """A node in this process (open) or the node of this host (connect): the same calls, the same guarantees.

    A context manager that closes itself. Leases, transfers and calls under way keep what they need.
    """

    __slots__ = ()

    @classmethod
    def connect(
        cls,
        socket: str | os.PathLike[str] | None = None,
        *,
        tenant: str = "default",
        owner: bytes | None = None,
        staging_bytes: int = 0,
        deadline_us: int = 5_000_000,
        node_user: int | str | None = None,
        engine_name: str = "",
    ) -> Store:
        """Connects to the node of this host.

        socket: None is the one that a node of this user listens at. owner: another process's `owner` token
        (16 bytes), to use its leases and publish what it wrote; None: become an owner. staging_bytes: at
        connect, more on demand; 0: 1 MiB. node_user: whose node it may be beside this user's and root's, a user's
        number, or "any" where only the node's operator can put a socket there. engine_name: what the engine that this
        process belongs to is called in status and logs, and where its reads or writes are switched off (`cistern admin
        reads off --engine`): 1 to 64 visible ASCII characters, the same in each of its processes and after a restart;
        it shares nothing. Raises Gone (nobody listens),
        Mismatch (another protocol), Denied (another user, tenant or owner), Busy (no room for a further session),
        TooLate, Invalid.
        """
        return cls(_connect(socket, tenant, owner, staging_bytes, deadline_us, node_user, engine_name))

    @classmethod
    def open(
        cls,
        *,
        memory_bytes: int = 0,
        memory_dir: str | os.PathLike[str] = "",
        tenant: str = "default",
        alignment: int = 4096,
        max_blocks: int = 0,
        movers: int = 1,
        poll_us: int = 50,
        loop: str = "auto",
        flash: Sequence[tuple[str | os.PathLike[str], int]] = (),
        journal_dir: str | os.PathLike[str] = "",
        flash_write: str = "through",
        flash_admit: str = "worth",
        flash_promote: str = "worth",
        flash_budget_bytes_a_day: int = 0,
        flash_read_ahead_bytes: int = 16 << 20,
        discard_foreign: bool = False,
        scrub_bytes_per_s: int = 8 << 20,
    ) -> Store:
        """Starts a node inside this process; the next open of the same directory is warm.

        memory_bytes: 0 is a quarter of the cgroup's or the host's, or what the file system of memory_dir has room for.
        memory_dir: "" is /dev/shm/cistern-UID. alignment: of records, 512 or 4096, fixed when the arena is created.
        max_blocks: 0 is what fits. poll_us: how long core and movers poll before they sleep. loop: auto, io_uring or
        epoll. A wrong value raises Invalid that names it; a directory that another node has, Busy.

        flash: as a lower tier, a directory and how many bytes of it, or a block device and 0 for all of it, each.
        The other options are those of flash, as docs/flash.md has them: a budget or read-ahead of 0 is none.
        """
        return cls(
            _native.open(
                memory_bytes,
                memory_dir,
                tenant,
                alignment,
                max_blocks,
                movers,
                poll_us,
                loop,
                flash,
                journal_dir,
                flash_write,
                flash_admit,
                flash_promote,
                flash_budget_bytes_a_day,
                flash_read_ahead_bytes,
                discard_foreign,
                scrub_bytes_per_s,
            )
        )

    def close(self) -> None:
        """Lets go of the store; every later call of it raises Gone. A node that open() started ends when
        nothing uses it any more; this waits for that."""
        self._closed()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def attach(self, spec: NamespaceSpec, *, deadline_us: int = DEADLINE_US) -> Namespace:
        """Raises Mismatch where the spec's name is stored with another list (the message has the differing
        field and both values), Invalid for a list that is not allowed."""
        return Namespace(self._native.attach(spec, deadline_us), spec)

    def match(
        self,
        namespace: Namespace,
        keys: Keys,
        *,
        hold_us: int = 0,
        max_age_us: int = 0,
        hints: Hints | None = None,
        deadline_us: int = DEADLINE_US,
    ) -> MatchResult:
        """The longest prefix of the chain that can be read, over all groups together: a hint, read() proves. What
        lies on flash or at another node of the cell counts; its runs say so. Flash is read ahead into memory, as far
        as the node does that; what another node has can be read or acquired for a minute.

        hold_us: over 0, what matched is leased that long (at most MAX_LEASE_US); the answer's `hold` has it.
        max_age_us: with a Chain, an answer that it remembers of this namespace and that is not older may be
        given again without looking; 0 looks. Not with hold_us.
        hints: of the prompt whose chain this is; taken in with the first write of what did not match.
        """
        return _match_result(
            self._native.match(namespace._native, _plain(keys), hold_us, max_age_us, hints, deadline_us)
        )

    def begin_match(
        self, namespace: Namespace, keys: Keys, *, hold_us: int = 0, hints: Hints | None = None,
        deadline_us: int = DEADLINE_US,
    ) -> PendingMatch:
        """As match(), for a thread that must not wait: the node reads ahead from flash meanwhile."""
        return PendingMatch(
            self._native.begin_match(namespace._native, _plain(keys), hold_us, hints, deadline_us)
        )

    def acquire(
        self,
        namespace: Namespace,
        keys: Keys,
        *,
        group: int = 0,
        lease_us: int = 1_000_000,
        deadline_us: int = DEADLINE_US,
        worth_us: int = NO_WORTH_LIMIT,
    ) -> Lease:
        """Leases views of a group's blocks, without a copy; None in place of a block that is not here (all of
        them, where none is: then there is no lease to end). At most 20,000 keys a call.

        Blocks that lie on flash, or were matched at another node, are fetched into memory first, all beside each
        other. worth_us: one that would be ready later is None, as is one that was not ready by then or by the deadline,
        or that there was no room to fetch into. Where that leaves none, TooLate or Busy is raised; Busy at once where
        the owner has its share of leases already."""
        return Lease(self._native.acquire(namespace._native, _plain(keys), group, lease_us, deadline_us, worth_us))

    def read(
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
        """Copies blocks, each byte checked, into the caller's buffers: one `into` a key.

        into: a writable buffer (receives the part's first bytes, as many as it has), a sequence of writable
        buffers (one after the other from the part's begin: scatter), or a sequence of Range. A range past the
        part's end is Code.INVALID for that block. What lies on flash, or was matched at another node, is fetched into
        memory first, all beside each other. worth_us: where that would be ready later, it is not fetched but
        Code.TOO_LATE (0: only what is in memory). touch: count as a use for eviction. Raises Invalid where the counts
        differ, or for a buffer that is read-only, not contiguous, or not in this host's memory.
        """
        return ReadResult(
            *self._native.read(namespace._native, _plain(keys), into, group, part, deadline_us, worth_us, touch)
        )

    def write(
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
        """Writes one part of each block, parents before children; returns when the node has let go of the
        bytes. `data` is one a key: a buffer, or a sequence of buffers that together are the part (gather).

        parent: of the first key (None: it is block 0), the others being each the next one's parent.
        parents: instead, each key's own. put_ids: 16 bytes a key, the same for all parts of a block; needed
        where a group has several parts, or with `held`. held: stays pending until publish() or abandon() by
        this owner. ttl_s: a hard limit from the put; 0: none. conversation: whose blocks these are, at most
        256 bytes; see end_conversation(). At most 4,096 keys a call.
        """
        return WriteResult(
            *self._native.write(
                namespace._native, _plain(keys), data, parent, parents, group, part, put_ids, held, ttl_s,
                conversation, deadline_us,
            )
        )

    def publish(self, namespace: Namespace, put_ids: Sequence[bytes], *, deadline_us: int = DEADLINE_US) -> int:
        """Makes what was written `held` under these put ids by this owner visible (with its parents, once they
        are); returns how many puts. Denied for another owner's."""
        return self._native.publish(namespace._native, put_ids, deadline_us)

    def abandon(self, namespace: Namespace, put_ids: Sequence[bytes], *, deadline_us: int = DEADLINE_US) -> int:
        """Drops what was written `held` and not published; returns how many puts."""
        return self._native.abandon(namespace._native, put_ids, deadline_us)

    def touch(
        self, namespace: Namespace, keys: Keys, *, conversation: str = "", deadline_us: int = DEADLINE_US
    ) -> int:
        """Counts as a use of the blocks, in the order given, before it returns; returns how many were here.
        With a conversation it is that one's use: the blocks, and their ancestors, stay when another is ended."""
        return self._native.touch(namespace._native, _plain(keys), conversation, deadline_us)

    def end_conversation(
        self, namespace: Namespace, conversation: str, *, deadline_us: int = DEADLINE_US
    ) -> int:
        """Removes, as drop() does, the blocks that a conversation wrote and of which this is the last to have written,
        built on or touched them that has not ended, and what descends from them; never one that more than 8 have.
        Returns how many blocks, 0 for a conversation that is not known. Who touched what is known since the node's
        last start only. The node remembers 262,144 blocks of conversations, and forgets first those of the ones that
        are quiet for longest. To be asked again after Busy."""
        return self._native.end_conversation(namespace._native, conversation, deadline_us)

    def drop(self, namespace: Namespace, keys: Keys, *, deadline_us: int = DEADLINE_US) -> int:
        """Removes blocks and all that descends from them; returns, when that is durable and nothing of it can
        be read any more, how many blocks were removed. At a member of a cell this, end_conversation() and
        drop_namespace() are the cell's: they return when every member has done so, with the count of this node, and
        raise Unavailable, with nothing dropped, where etcd cannot be reached."""
        return self._native.drop(namespace._native, _plain(keys), deadline_us)

    def drop_namespace(self, namespace: Namespace, *, deadline_us: int = DEADLINE_US) -> tuple[Namespace, int]:
        """Removes all of a namespace. Returns the namespace as it is attached from now on, and how many blocks
        were removed; the old one's calls miss."""
        native, blocks = self._native.drop_namespace(namespace._native, deadline_us)
        return Namespace(native, namespace.spec), blocks

    def put(
        self,
        namespace: Namespace,
        key: bytes,
        data: AnyBuffer,
        *,
        parent: bytes | None = None,
        ttl_s: int = 0,
        deadline_us: int = DEADLINE_US,
    ) -> None:
        """For people at a prompt: one block of one group with one part. Raises Missed where the block waits
        for a parent that is not here."""
        self._native.put(namespace._native, key, data, parent, ttl_s, deadline_us)

    def get(self, namespace: Namespace, key: bytes, *, deadline_us: int = DEADLINE_US) -> bytes | None:
        """For people at a prompt: what put() put, or None where it is not here. Raises Busy where there was no room
        to fetch it into."""
        return self._native.get(namespace._native, key, deadline_us)

    def report(
        self, *, promised_tokens: int = 0, delivered_tokens: int = 0, saved_us: int = 0, spent_us: int = 0
    ) -> None:
        """Adds to what this engine reported of its use: tokens that matches promised and those whose KV came, prefill
        that was saved by its own estimate, time that requests waited for what was loaded. In the node's metrics it
        says whether the cache pays. Nobody is asked, and it costs next to nothing."""
        self._native.report(promised_tokens, delivered_tokens, saved_us, spent_us)

    def cell_holders(
        self, namespace: Namespace, chain: Keys, *, deadline_us: int = DEADLINE_US
    ) -> list[dict[str, Any]]:
        """Which member of the node's cell has how much of a prompt's chain, for who routes requests: most of it
        first. docs/commands.md names the fields, as `cistern cell who` has them. Members of which something of it is
        known are asked, all at once. Raises Missed where the node is in no cell."""
        members = _state(self._native.cell_holders(namespace._native, _plain(chain), deadline_us))["members"]
        assert isinstance(members, list)
        return members

    def cell_explanation(self, namespace: Namespace, chain: Keys, *, deadline_us: int = DEADLINE_US) -> dict[str, Any]:
        """Why the last block of a chain, or a block alone, is not found at this node or was refused here, as `cistern
        cell explain` says it. Raises Missed where the node is in no cell."""
        return _state(self._native.cell_explanation(namespace._native, _plain(chain), deadline_us))

    def status(self, *, deadline_us: int = DEADLINE_US) -> dict[str, Any]:
        """The node's state; docs/metrics.md names its fields."""
        return _state(self._native.status(deadline_us))
