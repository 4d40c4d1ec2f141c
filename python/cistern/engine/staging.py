# SPDX-License-Identifier: Apache-2.0
"""The page mover for a device: pages pass through pinned staging memory.

torch copies between the two, on a stream of its own: a call a fragment within the device, for all pages of an order
together, and one call between device and host. All that the device copies from or to on the host is pinned, so that
no call of torch waits for the device; a thread of the mover's own moves transfers on, so that they do not wait for the
engine's next step. An address of a device is never given to anything that would look at it.

Memory is taken once, when the engine registers its pages (Staging): later a device may have none left, and what asks
for some in the middle of a step could take it from the engine.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import TYPE_CHECKING, Any, Literal, Protocol

from .. import Code, Done, Pages, Store, Transfers
from .layout import Fragment, Layout
from .mover import Batch, UnknownDevice, submit_load, submit_save

if TYPE_CHECKING:
    import torch

Kind = Literal["load", "save"]
LOOK_AGAIN_S = 0.0002
"""Pause of the mover's thread between looks at what is under way."""


class Streams(Protocol):
    """Streams of a device, as StagedMover needs them."""

    def staging(self, size_bytes: int) -> torch.Tensor:
        """Host memory that the device copies from and to without stopping."""
        ...

    def scratch(self, size_bytes: int) -> torch.Tensor:
        """Memory of the device."""
        ...

    def computed(self) -> Any:
        """An event behind everything that the calling thread has queued so far: the engine's."""
        ...

    def queue(self, kind: Kind, work: Callable[[], object], after: Any) -> Any:
        """Queues work behind an event of computed() and behind earlier work of its kind, beside all other. Returns an
        event behind the work. Where the work raises, nothing of it is under way any more when this does."""
        ...

    def reached(self, event: Any) -> bool: ...
    def wait(self, event: Any) -> None: ...


class TorchStreams:
    """torch's streams and events of one device type. Saves wait for the step that computes them; loads have a stream of
    their own, so that they do not."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = getattr(torch, device)
        self._streams: dict[Kind, Any] = {"load": self._device.Stream(), "save": self._device.Stream()}

    def staging(self, size_bytes: int) -> torch.Tensor:
        return self._torch.empty(size_bytes, dtype=self._torch.uint8, pin_memory=True)

    def scratch(self, size_bytes: int) -> torch.Tensor:
        return self._torch.empty(size_bytes, dtype=self._torch.uint8, device=self._device.current_device())

    def computed(self) -> Any:
        event = self._device.Event()
        event.record(self._device.current_stream())
        return event

    def queue(self, kind: Kind, work: Callable[[], object], after: Any) -> Any:
        stream = self._streams[kind]
        stream.wait_event(after)
        try:
            with self._device.stream(stream):
                work()
                event = self._device.Event()
                event.record(stream)
        except BaseException:
            stream.synchronize()
            raise
        return event

    def reached(self, event: Any) -> bool:
        return bool(event.query())

    def wait(self, event: Any) -> None:
        event.synchronize()


@dataclass
class _Transfer:
    """A load or save as asked for, and how far it is."""

    number: int
    kind: Kind
    batch: Batch
    began: float
    computed: Any
    """The engine's event behind which its pages may be touched."""
    pieces: int
    """Not done yet."""
    outcomes: bytearray
    states: bytearray
    moved_bytes: int = 0
    message: str = ""

    @property
    def passed_us(self) -> int:
        return int((time.monotonic() - self.began) * 1e6)


@dataclass
class _Piece:
    """Neighbouring blocks of a transfer, which go through staging together."""

    transfer: _Transfer
    first: int
    batch: Batch
    first_slot: int = 0
    event: Any = None
    done: Done | None = None


class _Slots:
    """Runs of neighbouring slots, first fit."""

    def __init__(self, count: int) -> None:
        self._free = [(0, count)]

    def take(self, count: int) -> int | None:
        for i, (first, size) in enumerate(self._free):
            if size >= count:
                self._free[i : i + 1] = [(first + count, size - count)] if size > count else []
                return first
        return None

    def give(self, first: int, count: int) -> None:
        runs: list[tuple[int, int]] = []
        for begin, size in sorted([*self._free, (first, count)]):
            if runs and runs[-1][0] + runs[-1][1] == begin:
                runs[-1] = (runs[-1][0], runs[-1][1] + size)
            else:
                runs.append((begin, size))
        self._free = runs


STAGING_BYTES = 256 << 20
"""Of the host."""
PIECES = 4
"""Pieces that staging has room for: the device copies one while the store has the others. The device has room for one
of each direction, 128 MiB together."""
LANES = 4
"""Threads that load, at most: one alone copies at a fifth of the bus's pace, while a request waits."""
CPUS_A_LANE = 4
"""The engine and the node need theirs."""


class NoStaging(RuntimeError):
    """There is no memory for what pages pass through."""


class Staging:
    """What pages of these layouts pass through: slots of pinned host memory, and memory of the device for a piece of
    each direction. Shared by the movers of one session after another, of which the former may still be at work. Any
    thread."""

    def __init__(self, layouts: Sequence[Layout], streams: Streams, host_bytes: int = STAGING_BYTES) -> None:
        """Raises NoStaging, and UnknownDevice for pages that are in none of their tensors."""
        import torch

        self.streams = streams
        self.layouts = list(layouts)
        self._torch = torch
        rows = [[_rows_of(layout, one) for one in layout.fragments] for layout in layouts]
        self._words = [_word_of(views) for views in rows]
        """What each group is copied by within the device."""
        self._views = [[one.view(word) for one in views] for views, word in zip(rows, self._words, strict=True)]
        self._slot_bytes = max(layout.page_bytes for layout in layouts)
        slots = max(1, host_bytes // self._slot_bytes)
        self.piece_blocks = max(1, slots // PIECES)
        try:
            self._host = streams.staging(slots * self._slot_bytes)
            self._host_numbers = streams.staging(slots * 8).view(torch.int64)
            self._pages: dict[Kind, torch.Tensor] = {}
            self._numbers: dict[Kind, torch.Tensor] = {}
            for kind in ("load", "save"):
                self._pages[kind] = streams.scratch(self.piece_blocks * self._slot_bytes)
                self._numbers[kind] = streams.scratch(self.piece_blocks * 8).view(torch.int64)
        except (RuntimeError, MemoryError) as error:
            raise NoStaging(
                f"no memory for what pages pass through ({slots * self._slot_bytes >> 20} MiB of the host, pinned, and "
                f"{2 * self.piece_blocks * self._slot_bytes >> 20} MiB of the device): {error}"
            ) from error
        self._slots = _Slots(slots)
        self._lock = threading.Lock()
        self._turn: dict[Kind, threading.Lock] = {"load": threading.Lock(), "save": threading.Lock()}
        """Of a direction's memory on the device, while work that uses it is queued: its stream does one after the
        other."""

    def take(self, count: int) -> int | None:
        """The first of so many neighbouring slots; None: they are in use."""
        with self._lock:
            return self._slots.take(count)

    def give(self, first: int, count: int) -> None:
        with self._lock:
            self._slots.give(first, count)

    def host_pages(self, group: int, first: int, count: int) -> Pages:
        """These slots as the store's transfers see them."""
        rows = self._rows(group, first, count)
        return Pages([(rows.data_ptr(), rows.shape[1], rows.shape[1])], count, keep=self._host)

    def gather(self, group: int, first: int, pages: Sequence[int], after: Any) -> Any:
        """Queues the copies of pages into slots; the event behind them."""
        rows, size = self._rows(group, first, len(pages)), self.layouts[group].page_bytes
        numbers = self._page_numbers(first, pages)
        taken = self._pages["save"][: len(pages) * size].view(len(pages), size)
        there = self._numbers["save"][: len(pages)]

        def work() -> None:
            there.copy_(numbers, non_blocking=True)
            for view, part in self._parts(group, taken):
                self._torch.index_select(view, 0, there, out=part)
            rows.copy_(taken, non_blocking=True)

        return self._queue("save", work, after)

    def scatter(self, group: int, first: int, pages: Sequence[int], after: Any) -> Any:
        """Queues the copies of slots into pages; the event behind them."""
        rows, size = self._rows(group, first, len(pages)), self.layouts[group].page_bytes
        numbers = self._page_numbers(first, pages)
        taken = self._pages["load"][: len(pages) * size].view(len(pages), size)
        there = self._numbers["load"][: len(pages)]

        def work() -> None:
            there.copy_(numbers, non_blocking=True)
            taken.copy_(rows, non_blocking=True)
            for view, part in self._parts(group, taken):
                view.index_copy_(0, there, part)

        return self._queue("load", work, after)

    def _queue(self, kind: Kind, work: Callable[[], object], after: Any) -> Any:
        with self._turn[kind]:
            return self.streams.queue(kind, work, after)

    def _rows(self, group: int, first: int, count: int) -> torch.Tensor:
        """Slots, one row a block: without gaps, since a copy between device and host that has any goes through memory
        that is not pinned."""
        size = self.layouts[group].page_bytes
        return self._host[first * self._slot_bytes :][: count * size].view(count, size)

    def _page_numbers(self, first: int, pages: Sequence[int]) -> torch.Tensor:
        """The numbers of pages, where the device can copy them from."""
        numbers = self._host_numbers[first : first + len(pages)]
        numbers.copy_(self._torch.tensor(list(pages), dtype=self._torch.int64))
        return numbers

    def _parts(self, group: int, taken: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each fragment of all pages, and what of the rows is its."""
        first, words = 0, taken.view(self._words[group])
        for view in self._views[group]:
            yield view, words[:, first : first + view.shape[1]]
            first += view.shape[1]


class StagedMover:
    """Pages on a device, moved through staging: save = device to slots, then slots to the store; load = the store to
    slots, then slots to the device. A transfer larger than staging goes in pieces, one after the other; a piece waits
    for room until its deadline. A piece of a load of which not every block came counts as none: nothing of it was
    copied to the device. A piece that the device refuses is reported as failed, like any other."""

    def __init__(self, store: Store, staging: Staging, max_bytes_per_s: int) -> None:
        self._staging = staging
        self._streams = staging.streams
        # A limit of bytes is one thread's.
        lanes = 1 if max_bytes_per_s else max(1, min(LANES, len(os.sched_getaffinity(0)) // CPUS_A_LANE))
        self._lanes = [Transfers(store, max_bytes_per_s=max_bytes_per_s) for _ in range(lanes)]
        """Pieces of loads take turns. Saves go through the first alone: a block's parent is written before it."""
        self._turn = cycle(self._lanes)
        self._piece_blocks = staging.piece_blocks
        self._slots: set[tuple[int, int]] = set()
        """Of staging, that this mover has: first and count."""
        self._loads: deque[_Piece] = deque()
        self._saves: deque[_Piece] = deque()
        self._to_host: deque[_Piece] = deque()
        self._to_device: deque[_Piece] = deque()
        self._inner: dict[tuple[Transfers, int], _Piece] = {}
        """By the lane, and its number there."""
        self._done: list[Done] = []
        self._next = 1
        self._broken = ""
        """Why nothing is moved any more."""
        self._ending = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="cistern-staging", daemon=True)
        self._thread.start()

    @property
    def in_flight(self) -> int:
        with self._changed:
            return len(self._loads) + len(self._saves) + self._moving + len(self._done)

    def load(self, batch: Batch) -> int:
        return self._ask("load", batch, self._loads)

    def save(self, batch: Batch) -> int:
        return self._ask("save", batch, self._saves)

    def poll(self) -> list[Done]:
        with self._changed:
            done, self._done = self._done, []
        return done

    def wait(self, timeout_s: float) -> list[Done]:
        with self._changed:
            self._changed.wait_for(lambda: self._done or not self._under_way, timeout_s)
        return self.poll()

    def close(self) -> None:
        with self._changed:
            self._ending = True
            self._changed.notify_all()
        self._thread.join()
        for piece in (*self._to_host, *self._to_device):
            self._streams.wait(piece.event)
        for lane in self._lanes:
            lane.close()
        with self._changed:
            broken = bool(self._broken)
            self._break("the mover was closed")
            # What a device that failed still moves nobody knows.
            for first, count in () if broken else self._slots:
                self._staging.give(first, count)

    # -- the thread

    def _run(self) -> None:
        with self._changed:
            while not self._ending:
                try:
                    self._advance()
                except Exception as error:  # a device's own: no transfer must stay without its report
                    self._break(f"the device: {error}")
                if self._done or not self._under_way:
                    self._changed.notify_all()
                self._changed.wait(LOOK_AGAIN_S if self._under_way else None)

    @property
    def _moving(self) -> int:
        return len(self._to_host) + len(self._to_device) + len(self._inner)

    @property
    def _under_way(self) -> bool:
        return bool(self._moving or self._loads or self._saves)

    def _advance(self) -> None:
        while self._to_host and self._streams.reached(self._to_host[0].event):
            self._start_inner(self._to_host.popleft(), self._lanes[0], submit_save)
        for lane in self._lanes:
            for done in lane.poll():
                self._inner_done(self._inner.pop((lane, done.id)), done)
        while self._to_device and self._streams.reached(self._to_device[0].event):
            self._finish(self._to_device.popleft())
        self._begin()

    def _break(self, why: str) -> None:
        """Ends everything. Slots stay taken, since what still moves may use them."""
        self._broken = why
        pieces = (*self._loads, *self._saves, *self._to_host, *self._to_device, *self._inner.values())
        for waiting in (self._loads, self._saves, self._to_host, self._to_device):
            waiting.clear()
        self._inner.clear()
        for piece in pieces:
            piece.done = None
            self._report(piece, self._broken)

    # -- inside

    def _ask(self, kind: Kind, batch: Batch, waiting: deque[_Piece]) -> int:
        """Called by the engine's thread, behind what it has queued."""
        count, size = len(batch.keys), self._piece_blocks
        computed = self._streams.computed()
        with self._changed:
            if self._broken:
                raise RuntimeError(self._broken)
            transfer = _Transfer(
                self._next, kind, batch, time.monotonic(), computed, pieces=-(-count // size),
                outcomes=bytearray([Code.TOO_LATE]) * count, states=bytearray(count if kind == "save" else 0),
            )
            self._next += 1
            waiting.extend(
                _Piece(transfer, first, _part(batch, first, first + size)) for first in range(0, count, size)
            )
            self._changed.notify_all()
        return transfer.number

    def _begin(self) -> None:
        """Starts pieces while there is room. Loads go first: requests wait for them."""
        for waiting in (self._loads, self._saves):
            for piece in [one for one in waiting if one.transfer.passed_us >= one.batch.deadline_us]:
                waiting.remove(piece)
                self._report(piece, "staging had no room until the deadline")
        for waiting, start in ((self._loads, self._start_load), (self._saves, self._start_save)):
            while waiting:
                first = self._staging.take(len(waiting[0].batch.keys))
                if first is None:
                    return
                piece = waiting.popleft()
                piece.first_slot = first
                self._slots.add((first, len(piece.batch.keys)))
                start(piece)

    def _start_load(self, piece: _Piece) -> None:
        self._start_inner(piece, next(self._turn), submit_load)

    def _start_save(self, piece: _Piece) -> None:
        self._queue(piece, self._staging.gather, self._to_host)

    def _queue(
        self, piece: _Piece, copy: Callable[[int, int, Sequence[int], Any], Any], moving: deque[_Piece]
    ) -> None:
        batch = piece.batch
        try:
            piece.event = copy(batch.group, piece.first_slot, batch.pages, piece.transfer.computed)
        except Exception as error:  # the device's own
            piece.done = None
            self._finish(piece, f"the device: {error}")
            return
        moving.append(piece)

    def _start_inner(
        self, piece: _Piece, lane: Transfers, submit: Callable[[Transfers, Batch, Pages, Sequence[int]], int]
    ) -> None:
        passed_us, batch = piece.transfer.passed_us, piece.batch
        left = replace(
            batch, deadline_us=max(1, batch.deadline_us - passed_us),
            worth_us=max(1, batch.worth_us - passed_us) if batch.worth_us else 0,
        )
        pages = self._staging.host_pages(batch.group, piece.first_slot, len(batch.keys))
        try:
            number = submit(lane, left, pages, range(len(batch.keys)))
        except Exception as error:  # reported, like any other end
            self._finish(piece, str(error))
            return
        self._inner[lane, number] = piece

    def _inner_done(self, piece: _Piece, done: Done) -> None:
        if done.kind == "load" and any(done.outcomes):
            self._finish(piece, done.message)
            return
        piece.done = done
        if done.kind == "save":
            self._finish(piece)
            return
        self._queue(piece, self._staging.scatter, self._to_device)

    def _finish(self, piece: _Piece, message: str = "") -> None:
        self._slots.discard((piece.first_slot, len(piece.batch.keys)))
        self._staging.give(piece.first_slot, len(piece.batch.keys))
        self._report(piece, message)

    def _report(self, piece: _Piece, message: str = "") -> None:
        """A piece has ended, with or without its transfer's answer; the last piece's end is the transfer's."""
        transfer, done = piece.transfer, piece.done
        if done is not None:
            end = piece.first + len(piece.batch.keys)
            transfer.outcomes[piece.first : end] = done.outcomes
            transfer.moved_bytes += done.moved_bytes
            message = done.message
            if transfer.kind == "save":
                transfer.states[piece.first : end] = done.states
        transfer.message = transfer.message or message
        transfer.pieces -= 1
        if transfer.pieces == 0:
            self._done.append(
                Done(
                    transfer.number, transfer.kind, bytes(transfer.outcomes), bytes(transfer.states),
                    transfer.moved_bytes, transfer.passed_us, transfer.message,
                )
            )


def _part(batch: Batch, first: int, end: int) -> Batch:
    """These blocks of the batch."""
    return replace(
        batch, keys=batch.keys[first:end], pages=batch.pages[first:end], parents=batch.parents[first:end],
        put_ids=batch.put_ids[first:end],
    )


def _rows_of(layout: Layout, fragment: Fragment) -> torch.Tensor:
    """One fragment of all pages as rows of bytes, a view of the tensor that it lies in."""
    import torch

    last = fragment.address + (layout.pages - 1) * fragment.stride + fragment.bytes
    for tensor, (begin, size) in zip(layout.tensors, layout.regions, strict=True):
        if begin <= fragment.address and last <= begin + size:
            whole = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())
            return torch.as_strided(
                whole, (layout.pages, fragment.bytes), (fragment.stride, 1), fragment.address - begin
            )
    raise UnknownDevice("a fragment lies in none of its tensors")


def _word_of(views: Sequence[torch.Tensor]) -> torch.dtype:
    """The longest number that all of these rows are made of: kernels that gather rows take one at a time, and bytes at
    the pace of the bus instead of the memory's."""
    import torch

    unit = math.gcd(*(number for one in views for number in (one.storage_offset(), one.stride(0), one.shape[1])))
    return next(word for word in (torch.int64, torch.int32, torch.int16, torch.uint8) if unit % word.itemsize == 0)
