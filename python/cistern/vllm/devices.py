# SPDX-License-Identifier: Apache-2.0
"""The page mover: the same few calls, whether an engine's pages lie in this host's memory or on a device.

Host memory: the native Transfers read and write the pages themselves. A device: pages pass through pinned staging
memory; torch copies between the two, on a stream of its own: a call a fragment within the device, for all pages of an
order together, and one call between device and host. An address of a device is never given to anything that would
look at it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from .. import Busy, Code, Done, Namespace, Pages, Store, Transfers
from .layout import Fragment, Layout

if TYPE_CHECKING:
    import torch

HOST = "cpu"
THROUGH_TORCH = ("cuda", "xpu")


class UnknownDevice(RuntimeError):
    """KV lies on a device that this connector has no way to."""


@dataclass(frozen=True)
class Batch:
    """Blocks of one group and part, and the pages they belong in."""

    namespace: Namespace
    group: int
    part: int
    keys: Sequence[bytes]
    pages: Sequence[int]
    deadline_us: int
    worth_us: int = 0
    parents: Sequence[bytes | None] = ()
    put_ids: Sequence[bytes] = ()
    ttl_s: int = 0
    conversation: str = ""


class Mover(Protocol):
    """Each started number is reported exactly once, by its deadline."""

    def load(self, batch: Batch) -> int: ...
    def save(self, batch: Batch) -> int: ...
    def poll(self) -> list[Done]: ...
    def wait(self, timeout_s: float) -> list[Done]: ...
    def close(self) -> None: ...
    @property
    def in_flight(self) -> int: ...


def check_device(name: str) -> None:
    """Raises UnknownDevice where there is no way to a device of this type."""
    if name != HOST and name not in THROUGH_TORCH:
        raise UnknownDevice(
            f"KV lies on a {name} device; this connector knows {HOST}, {', '.join(THROUGH_TORCH)}"
        )


def make_mover(store: Store, device: str, layouts: Sequence[Layout], max_bytes_per_s: int) -> Mover:
    check_device(device)
    if device == HOST:
        return HostMover(store, layouts, max_bytes_per_s)
    return StagedMover(store, layouts, TorchStreams(device), max_bytes_per_s)


def host_pages(layout: Layout) -> Pages:
    return Pages(
        [(one.address, one.stride, one.bytes) for one in layout.fragments],
        layout.pages,
        first_page=1,
        regions=sorted(set(layout.regions)),
        keep=layout.tensors,
    )


def _submit_load(transfers: Transfers, batch: Batch, pages: Pages, page_ids: Sequence[int]) -> int:
    more: dict[str, Any] = {"worth_us": batch.worth_us} if batch.worth_us else {}
    return transfers.submit_load(
        batch.namespace, batch.keys, pages, page_ids, group=batch.group, part=batch.part,
        deadline_us=batch.deadline_us, **more,
    )


def _submit_save(transfers: Transfers, batch: Batch, pages: Pages, page_ids: Sequence[int]) -> int:
    return transfers.submit_save(
        batch.namespace, batch.keys, pages, page_ids, put_ids=batch.put_ids, parents=batch.parents,
        group=batch.group, part=batch.part, held=True, ttl_s=batch.ttl_s,
        conversation=batch.conversation, deadline_us=batch.deadline_us,
    )


class HostMover:
    """Pages in this host's memory: C++ moves them, without the GIL."""

    def __init__(self, store: Store, layouts: Sequence[Layout], max_bytes_per_s: int) -> None:
        self._pages = [host_pages(layout) for layout in layouts]
        self._transfers = Transfers(store, max_bytes_per_s=max_bytes_per_s)

    def load(self, batch: Batch) -> int:
        return _submit_load(self._transfers, batch, self._pages[batch.group], batch.pages)

    def save(self, batch: Batch) -> int:
        return _submit_save(self._transfers, batch, self._pages[batch.group], batch.pages)

    def poll(self) -> list[Done]:
        return self._transfers.poll()

    def wait(self, timeout_s: float) -> list[Done]:
        return self._transfers.wait(timeout_s)

    def close(self) -> None:
        self._transfers.close()

    @property
    def in_flight(self) -> int:
        return self._transfers.in_flight


# ---------------------------------------------------------------------------- through torch


class Streams(Protocol):
    """What StagedMover needs of a device."""

    def staging(self, size_bytes: int) -> torch.Tensor:
        """Host memory that the device copies from and to without stopping."""
        ...

    def after_compute(self, work: Callable[[], object]) -> Any:
        """Queues work behind all that the engine has queued so far, beside what it queues from now on. Returns
        an event that stands behind the work."""
        ...

    def reached(self, event: Any) -> bool: ...
    def wait(self, event: Any) -> None: ...


class TorchStreams:
    """torch's streams and events of one device type."""

    def __init__(self, device: str) -> None:
        import torch

        self._torch = torch
        self._device = getattr(torch, device)
        self._stream = self._device.Stream()

    def staging(self, size_bytes: int) -> torch.Tensor:
        return self._torch.empty(size_bytes, dtype=self._torch.uint8, pin_memory=True)

    def after_compute(self, work: Callable[[], object]) -> Any:
        computed = self._device.Event()
        computed.record(self._device.current_stream())
        self._stream.wait_event(computed)
        with self._device.stream(self._stream):
            work()
            event = self._device.Event()
            event.record(self._stream)
        return event

    def reached(self, event: Any) -> bool:
        return bool(event.query())

    def wait(self, event: Any) -> None:
        event.synchronize()


@dataclass
class _Staged:
    number: int
    batch: Batch
    first_slot: int
    event: Any = None
    done: Done | None = None

    @property
    def slots(self) -> range:
        return range(self.first_slot, self.first_slot + len(self.batch.keys))


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


class StagedMover:
    """Pages on a device, moved through slots of pinned host memory: save = device to slots, then slots to the
    store; load = the store to slots, then slots to the device. A load of which not every block came is reported
    as none: nothing of it was copied to the device."""

    def __init__(
        self, store: Store, layouts: Sequence[Layout], streams: Streams, max_bytes_per_s: int,
        staging_bytes: int = STAGING_BYTES,
    ) -> None:
        import torch

        self._torch = torch
        self._streams = streams
        self._layouts = list(layouts)
        self._transfers = Transfers(store, max_bytes_per_s=max_bytes_per_s)
        self._views = [[_rows_of(layout, one) for one in layout.fragments] for layout in layouts]
        slot_bytes = max(layout.page_bytes for layout in layouts)
        slots = max(1, staging_bytes // slot_bytes)
        self._staging = streams.staging(slots * slot_bytes).view(slots, slot_bytes)
        base = self._staging.data_ptr()
        self._slot_pages = [
            Pages([(base, slot_bytes, layout.page_bytes)], slots, keep=self._staging) for layout in layouts
        ]
        self._slots = _Slots(slots)
        self._to_host: deque[_Staged] = deque()
        self._to_device: deque[_Staged] = deque()
        self._inner: dict[int, _Staged] = {}
        self._done: list[Done] = []
        self._next = 1

    @property
    def in_flight(self) -> int:
        return len(self._to_host) + len(self._to_device) + len(self._inner) + len(self._done)

    def load(self, batch: Batch) -> int:
        staged = self._stage(batch)
        pages = self._slot_pages[batch.group]
        self._inner_start(staged, lambda: _submit_load(self._transfers, batch, pages, list(staged.slots)))
        return staged.number

    def save(self, batch: Batch) -> int:
        staged = self._stage(batch)
        host = self._host_rows(staged)
        views = self._views[batch.group]

        def gather() -> None:
            rows = self._torch.tensor(list(batch.pages), dtype=self._torch.int64).to(views[0].device)
            taken = [view.index_select(0, rows) for view in views]
            host.copy_(taken[0] if len(taken) == 1 else self._torch.cat(taken, dim=1), non_blocking=True)

        staged.event = self._streams.after_compute(gather)
        self._to_host.append(staged)
        return staged.number

    def poll(self) -> list[Done]:
        while self._to_host and self._streams.reached(self._to_host[0].event):
            self._save_from_slots(self._to_host.popleft())
        for done in self._transfers.poll():
            self._inner_done(done)
        while self._to_device and self._streams.reached(self._to_device[0].event):
            self._finish(self._to_device.popleft())
        done_now, self._done = self._done, []
        return done_now

    def wait(self, timeout_s: float) -> list[Done]:
        done = self.poll()
        if done or not self.in_flight:
            return done
        if self._to_host:
            self._streams.wait(self._to_host[0].event)
        elif self._to_device:
            self._streams.wait(self._to_device[0].event)
        else:
            for inner in self._transfers.wait(timeout_s):
                self._inner_done(inner)
        return self.poll()

    def close(self) -> None:
        for staged in (*self._to_host, *self._to_device):
            self._streams.wait(staged.event)
        self._transfers.close()

    # -- inside

    def _stage(self, batch: Batch) -> _Staged:
        first = self._slots.take(len(batch.keys))
        if first is None:
            raise Busy(f"staging: no {len(batch.keys)} pages in a row are free")
        staged = _Staged(self._next, batch, first)
        self._next += 1
        return staged

    def _host_rows(self, staged: _Staged) -> torch.Tensor:
        size = self._layouts[staged.batch.group].page_bytes
        return self._staging[staged.first_slot : staged.first_slot + len(staged.batch.keys), :size]

    def _inner_start(self, staged: _Staged, start: Callable[[], int]) -> None:
        try:
            self._inner[start()] = staged
        except BaseException:
            self._slots.give(staged.first_slot, len(staged.batch.keys))
            raise

    def _save_from_slots(self, staged: _Staged) -> None:
        pages = self._slot_pages[staged.batch.group]
        try:
            self._inner_start(staged, lambda: _submit_save(self._transfers, staged.batch, pages, list(staged.slots)))
        except Exception as error:  # reported, like any other end
            self._done.append(_all_failed(staged, "save", str(error)))

    def _inner_done(self, done: Done) -> None:
        staged = self._inner.pop(done.id)
        staged.done = done._replace(id=staged.number)
        if done.kind == "save":
            self._finish(staged)
            return
        if any(done.outcomes):
            staged.done = _all_failed(staged, "load", done.message)
            self._finish(staged)
            return
        host, batch = self._host_rows(staged), staged.batch
        layout, views = self._layouts[batch.group], self._views[batch.group]

        def scatter() -> None:
            rows = self._torch.tensor(list(batch.pages), dtype=self._torch.int64).to(views[0].device)
            taken, first = host.to(views[0].device, non_blocking=True), 0
            for view, fragment in zip(views, layout.fragments, strict=True):
                view.index_copy_(0, rows, taken[:, first : first + fragment.bytes])
                first += fragment.bytes

        staged.event = self._streams.after_compute(scatter)
        self._to_device.append(staged)

    def _finish(self, staged: _Staged) -> None:
        assert staged.done is not None
        self._slots.give(staged.first_slot, len(staged.batch.keys))
        self._done.append(staged.done)


def _all_failed(staged: _Staged, kind: Any, message: str) -> Done:
    outcomes = bytes([Code.TOO_LATE]) * len(staged.batch.keys)
    return Done(staged.number, kind, outcomes, bytes(len(outcomes)) if kind == "save" else b"", 0, 0, message)


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
