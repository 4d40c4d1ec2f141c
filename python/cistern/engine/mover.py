# SPDX-License-Identifier: Apache-2.0
"""The page mover: the same few calls, whether an engine's pages lie in this host's memory or on a device.

Host memory: the native Transfers read and write the pages themselves (HostMover). A device: pages pass through staging
memory (staging.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .. import Done, Namespace, Pages, Store, Transfers
from .layout import Layout


class UnknownDevice(RuntimeError):
    """KV lies on a device that this connector cannot reach."""


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
    def close(self) -> None:
        """Nothing touches a page when this returns; poll() still gives the reports that are due."""
        ...

    @property
    def in_flight(self) -> int: ...


def host_pages(layout: Layout) -> Pages:
    return Pages(
        [(one.address, one.stride, one.bytes) for one in layout.fragments],
        layout.pages,
        first_page=1,
        regions=sorted(set(layout.regions)),
        keep=layout.tensors,
    )


def submit_load(transfers: Transfers, batch: Batch, pages: Pages, page_ids: Sequence[int]) -> int:
    more: dict[str, Any] = {"worth_us": batch.worth_us} if batch.worth_us else {}
    return transfers.submit_load(
        batch.namespace, batch.keys, pages, page_ids, group=batch.group, part=batch.part,
        deadline_us=batch.deadline_us, **more,
    )


def submit_save(transfers: Transfers, batch: Batch, pages: Pages, page_ids: Sequence[int]) -> int:
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
        return submit_load(self._transfers, batch, self._pages[batch.group], batch.pages)

    def save(self, batch: Batch) -> int:
        return submit_save(self._transfers, batch, self._pages[batch.group], batch.pages)

    def poll(self) -> list[Done]:
        return self._transfers.poll()

    def wait(self, timeout_s: float) -> list[Done]:
        return self._transfers.wait(timeout_s)

    def close(self) -> None:
        self._transfers.close()

    @property
    def in_flight(self) -> int:
        return self._transfers.in_flight
