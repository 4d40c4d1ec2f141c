# SPDX-License-Identifier: Apache-2.0
"""Blocks between the store and an engine's KV pages, in C++, without the GIL.

`Pages` says where the pages of one group lie in this process's memory. `Transfers` has two native threads, one
that loads and one that saves, and bounded queues before them; the engine submits, goes on computing, and asks
what is done. Only memory of this host: a device pointer must never be given as an address.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from . import _native
from .store import DEADLINE_US, NO_WORTH_LIMIT, AnyBuffer, Handle, Keys, Namespace, _plain


class Fragment(NamedTuple):
    """The bytes [address + p * stride, + bytes) of each page p."""

    address: int
    """Address of page 0 in this process."""
    stride: int
    """From one page to the next, in bytes; at least `bytes`."""
    bytes: int


class Pages:
    """Places of an engine's KV pages. The part bytes of page p are its fragments, one after the other in the
    order given: one fragment a layer where each layer has a tensor of its own (LBHNC, or K and V apart: two a
    layer), one in all where a page is contiguous (BLHNC). An engine page made of k kernel blocks is k times as
    many fragments, each with k times the stride. Padding is what no fragment covers.

    Immutable; may be shared by any number of Transfers and threads.
    """

    __slots__ = ("_keep", "_native")

    def __init__(
        self,
        fragments: Sequence[tuple[int, int, int]],
        pages: int,
        *,
        first_page: int = 0,
        regions: Sequence[tuple[int, int]] | None = None,
        keep: object = None,
    ) -> None:
        """fragments: (address, stride, bytes) each, 1 to 4,096. pages: how many there are; ids are
        first_page <= id < pages, and another id is refused (first_page=1 where page 0 is the engine's null
        block). regions: (address, bytes) of the memory that the fragments must lie in, every page of them,
        for example each tensor's; None: unchecked. keep: what owns that memory, held while this lives.

        Raises Invalid for a fragment that overlaps itself from page to page, wraps, or leaves the regions; it
        names the fragment.
        """
        kept = None if regions is None else list(regions)
        self._native = _native.Pages.make(list(fragments), pages, first_page, kept)
        self._keep = keep

    @classmethod
    def over(
        cls, buffers: Sequence[AnyBuffer], fragments: Sequence[tuple[int, int, int, int]], pages: int, *,
        first_page: int = 0,
    ) -> Pages:
        """As the constructor, with fragments (buffer's place in `buffers`, offset in it, stride, bytes): of
        writable contiguous buffers, which are held while this lives."""
        native = _native.Pages.over(list(buffers), list(fragments), pages, first_page)
        made = cls.__new__(cls)
        made._native = native
        made._keep = [_held(buffer) for buffer in buffers]
        return made

    @property
    def part_bytes(self) -> int:
        """Bytes of one page, the sum over the fragments: as the namespace's group says of this rank's part."""
        return self._native.part_bytes

    @property
    def pages(self) -> int:
        return self._native.pages

    @property
    def first_page(self) -> int:
        return self._native.first_page

    def gather(self, page: int) -> bytes:
        """A copy of one page's part bytes, as a save would write them; for tests and tools."""
        return self._native.gather(page)


def _held(buffer: AnyBuffer) -> object:
    """An owner that keeps the memory in place: an exported bytearray cannot be resized, nor an mmap closed."""
    try:
        return memoryview(buffer)  # type: ignore[arg-type]
    except TypeError:
        return buffer


PageIds: TypeAlias = "Sequence[int] | AnyBuffer"
"""Numbers; int32 or int64 in a buffer, for example a NumPy array."""


class Done(NamedTuple):
    """One transfer's report."""

    id: int
    kind: Literal["load", "save"]
    outcomes: bytes
    """A Code a block, in the order submitted. Loads: the page of a block that is not Code.OK holds anything.
    Saves that the deadline met or that were cancelled after the node had the bytes: Code.TOO_LATE, and the
    block may have been written all the same (abandon() its put id)."""
    states: bytes
    """Saves: a State a block (held: State.PENDING; State.PRESENT where the block was there already, which
    needs no publish()). Loads: empty."""
    moved_bytes: int
    """Bytes of the blocks that are ok."""
    took_us: int
    """From submit to report."""
    message: str
    """Message of the first block that is not ok and has one; otherwise empty."""

    @property
    def ok(self) -> bool:
        """Every block is Code.OK."""
        return not any(self.outcomes)


class Transfers:
    """Loads and saves in the background.

    Every id that submit_load() or submit_save() returned is reported exactly once, by poll() or wait(), and by
    its deadline, even if the node is gone or hung; a load's deadline is met to within one batch of blocks (at
    most 4 MiB) that is being copied. After a transfer was reported nothing of it touches the pages any more.
    Transfers of one kind begin in the order submitted. Calls may come from any thread. A context manager that
    closes itself.
    """

    __slots__ = ("__weakref__", "_closed", "_native")

    def __init__(self, store: Handle, *, queue: int = 1024, max_bytes_per_s: int = 0) -> None:
        """queue: transfers of each kind that may be submitted and not yet reported, 1 to 65,536; past it
        submit raises Busy. max_bytes_per_s: of each kind; 0: no limit."""
        self._native = _native.Transfers(store._native, queue, max_bytes_per_s)
        # At the latest when the interpreter ends: the pages go with it.
        self._closed = weakref.finalize(self, self._native.close)

    def submit_load(
        self,
        namespace: Namespace,
        keys: Keys,
        pages: Pages,
        page_ids: PageIds,
        *,
        group: int = 0,
        part: int = 0,
        deadline_us: int = DEADLINE_US,
        worth_us: int = NO_WORTH_LIMIT,
        touch: bool = True,
    ) -> int:
        """Starts to read part `part` of each block straight into its page, each byte checked; returns the
        transfer's id, from 1 on. One page id a key; the same page twice is refused.

        A load that has not begun after worth_us (from submit) is not begun: Code.TOO_LATE. Raises Busy where
        the queue is full, Invalid for wrong counts, a page id out of bounds or a part whose size is not
        pages.part_bytes (each named): then nothing was started.
        """
        return self._native.submit_load(
            namespace._native, _plain(keys), pages, page_ids, group, part, deadline_us, worth_us, touch
        )

    def submit_save(
        self,
        namespace: Namespace,
        keys: Keys,
        pages: Pages,
        page_ids: PageIds,
        *,
        put_ids: Sequence[bytes] | None = None,
        parent: bytes | None = None,
        parents: Sequence[bytes | None] | None = None,
        group: int = 0,
        part: int = 0,
        held: bool = True,
        ttl_s: int = 0,
        conversation: str = "",
        deadline_us: int = DEADLINE_US,
    ) -> int:
        """Starts to copy each page to the store as part `part` of its block; returns the transfer's id, from
        1 on. Arguments as of Store.write(); the pages must not change until the transfer has left them (see
        wait_pages()) or was reported. Raises as submit_load()."""
        return self._native.submit_save(
            namespace._native, _plain(keys), pages, page_ids, put_ids, parent, parents, group, part, held, ttl_s,
            conversation, deadline_us,
        )

    def poll(self) -> list[Done]:
        """Reports since the last poll() or wait(), oldest first; does not block. Under a microsecond
        where nothing is."""
        return [Done(*done) for done in self._native.poll()]

    def wait(self, timeout_s: float) -> list[Done]:
        """As poll(), but where nothing is done yet and something is in flight, waits until something is; an
        empty list after `timeout_s`, or where nothing is in flight."""
        return [Done(*done) for done in self._native.wait(timeout_s)]

    def wait_pages(self, ids: Sequence[int] | None = None, timeout_s: float = 10.0) -> bool:
        """Waits until none of these transfers (None: none at all that was submitted before) touches its pages
        any more: a load is complete, a save has taken its copy, though the node may not have answered yet.
        Reports nothing. False after `timeout_s`. An id that is not in flight counts as done."""
        return self._native.wait_pages(None if ids is None else list(ids), timeout_s)

    def cancel(self, id: int) -> bool:
        """Asks a transfer to end early; it is reported like any other, its remaining blocks Code.TOO_LATE.
        False where it is not in flight."""
        return self._native.cancel(id)

    @property
    def in_flight(self) -> int:
        """Submitted and not yet given out by poll() or wait()."""
        return self._native.in_flight()

    def is_in_flight(self, id: int) -> bool:
        """Whether this one is: its report is still to be given out."""
        return self._native.is_in_flight(id)

    def event_fd(self) -> int:
        """Readable while poll() has something to give, and at times when it has nothing; for epoll and asyncio.
        Owned by this object."""
        return self._native.event_fd()

    def close(self) -> None:
        """Cancels what is in flight, waits until nothing touches the pages any more, and ends the threads.
        What was not reported yet can still be polled; a submit raises Gone. Again does nothing."""
        self._closed()

    def __enter__(self) -> Transfers:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
