# SPDX-License-Identifier: Apache-2.0
"""The extension module: positional arguments, plain values. store.py and transfers.py say what each does."""

import os
from collections.abc import Sequence
from typing import Generic, Literal, TypeVar

from .hints import Hints
from .namespace import NamespaceSpec
from .store import AnyBuffer, Data, Into
from .transfers import PageIds
from .transfers import Pages as PythonPages

__version__: str

class Chain:
    def __init__(self) -> None: ...
    def extend(self, keys: Sequence[bytes]) -> None: ...
    def extend_buffer(self, keys: AnyBuffer, key_bytes: int) -> None: ...
    def key(self, at: int) -> bytes: ...
    def __len__(self) -> int: ...

def plan_load(
    runs: Sequence[tuple[int, int]],
    sources: Sequence[tuple[float, float, float]],
    prefill: tuple[float, float, int, int, float, bool],
) -> tuple[list[tuple[int, int, int, bool]], float, float, float]: ...

class Namespace:
    @property
    def incarnation(self) -> int: ...

class View:
    @property
    def nbytes(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Lease:
    def views(self) -> list[View | None]: ...
    def good(self) -> bool: ...
    def release(self) -> None: ...

_Keys = Sequence[bytes] | Chain
MatchAnswer = tuple[int, list[tuple[int, str, int]], Lease | None]
_T = TypeVar("_T", covariant=True)

class Pending(Generic[_T]):
    @property
    def id(self) -> int: ...
    def ready(self) -> bool: ...
    def finish(self) -> _T: ...

class Store:
    def close(self) -> None: ...
    def attach(self, spec: NamespaceSpec, deadline_us: int) -> Namespace: ...
    def match(
        self, ns: Namespace, keys: _Keys, hold_us: int, max_age_us: int, hints: Hints | None, deadline_us: int
    ) -> MatchAnswer: ...
    def begin_match(
        self, ns: Namespace, keys: _Keys, hold_us: int, hints: Hints | None, deadline_us: int
    ) -> Pending[MatchAnswer]: ...
    def acquire(
        self, ns: Namespace, keys: _Keys, group: int, lease_us: int, deadline_us: int, worth_us: int
    ) -> Lease: ...
    def begin_acquire(
        self, ns: Namespace, keys: _Keys, group: int, lease_us: int, deadline_us: int, worth_us: int
    ) -> Pending[Lease]: ...
    def read(
        self,
        ns: Namespace,
        keys: _Keys,
        into: Sequence[Into],
        group: int,
        part: int,
        deadline_us: int,
        worth_us: int,
        touch: bool,
    ) -> tuple[int, bytes]: ...
    def begin_read(
        self,
        ns: Namespace,
        keys: _Keys,
        into: Sequence[Into],
        group: int,
        part: int,
        deadline_us: int,
        worth_us: int,
        touch: bool,
    ) -> Pending[tuple[int, bytes]]: ...
    def write(
        self,
        ns: Namespace,
        keys: _Keys,
        data: Sequence[Data],
        parent: bytes | None,
        parents: Sequence[bytes | None] | None,
        group: int,
        part: int,
        put_ids: Sequence[bytes] | None,
        held: bool,
        ttl_s: int,
        conversation: str,
        deadline_us: int,
    ) -> tuple[bytes, bytes, str]: ...
    def begin_write(
        self,
        ns: Namespace,
        keys: _Keys,
        data: Sequence[Data],
        parent: bytes | None,
        parents: Sequence[bytes | None] | None,
        group: int,
        part: int,
        put_ids: Sequence[bytes] | None,
        held: bool,
        ttl_s: int,
        conversation: str,
        deadline_us: int,
    ) -> Pending[tuple[bytes, bytes, str]]: ...
    def publish(self, ns: Namespace, put_ids: Sequence[bytes], deadline_us: int) -> int: ...
    def begin_publish(self, ns: Namespace, put_ids: Sequence[bytes], deadline_us: int) -> Pending[int]: ...
    def abandon(self, ns: Namespace, put_ids: Sequence[bytes], deadline_us: int) -> int: ...
    def begin_abandon(self, ns: Namespace, put_ids: Sequence[bytes], deadline_us: int) -> Pending[int]: ...
    def touch(self, ns: Namespace, keys: _Keys, conversation: str, deadline_us: int) -> int: ...
    def begin_touch(self, ns: Namespace, keys: _Keys, conversation: str, deadline_us: int) -> Pending[int]: ...
    def end_conversation(self, ns: Namespace, conversation: str, deadline_us: int) -> int: ...
    def begin_end_conversation(self, ns: Namespace, conversation: str, deadline_us: int) -> Pending[int]: ...
    def drop(self, ns: Namespace, keys: _Keys, deadline_us: int) -> int: ...
    def cell_holders(self, ns: Namespace, keys: _Keys, deadline_us: int) -> str: ...
    def cell_explanation(self, ns: Namespace, keys: _Keys, deadline_us: int) -> str: ...
    def begin_drop(self, ns: Namespace, keys: _Keys, deadline_us: int) -> Pending[int]: ...
    def drop_namespace(self, ns: Namespace, deadline_us: int) -> tuple[Namespace, int]: ...
    def put(
        self, ns: Namespace, key: bytes, data: AnyBuffer, parent: bytes | None, ttl_s: int, deadline_us: int
    ) -> None: ...
    def get(self, ns: Namespace, key: bytes, deadline_us: int) -> bytes | None: ...
    def status(self, deadline_us: int) -> str: ...
    def report(self, promised_tokens: int, delivered_tokens: int, saved_us: int, spent_us: int) -> None: ...
    def owner(self) -> bytes: ...
    def poll(self) -> list[int]: ...
    def event_fd(self) -> int: ...

def connect(
    path: str | os.PathLike[str],
    tenant: str,
    owner: bytes | None,
    staging_bytes: int,
    deadline_us: int,
    node_user: str,
    engine_name: str,
) -> Store: ...
def default_socket_path() -> str: ...
def own_socket_directory() -> str: ...
def open(
    memory_bytes: int,
    memory_dir: str | os.PathLike[str],
    tenant: str,
    alignment: int,
    max_blocks: int,
    movers: int,
    poll_us: int,
    loop: str,
    flash: Sequence[tuple[str | os.PathLike[str], int]],
    journal_dir: str | os.PathLike[str],
    flash_write: str,
    flash_admit: str,
    flash_promote: str,
    flash_budget_bytes_a_day: int,
    flash_read_ahead_bytes: int,
    discard_foreign: bool,
    scrub_bytes_per_s: int,
) -> Store: ...

class Pages:
    @staticmethod
    def make(
        fragments: Sequence[tuple[int, int, int]],
        pages: int,
        first_page: int,
        regions: Sequence[tuple[int, int]] | None,
    ) -> Pages: ...
    @staticmethod
    def over(
        buffers: Sequence[AnyBuffer], fragments: Sequence[tuple[int, int, int, int]], pages: int, first_page: int
    ) -> Pages: ...
    @property
    def part_bytes(self) -> int: ...
    @property
    def pages(self) -> int: ...
    @property
    def first_page(self) -> int: ...
    def gather(self, page: int) -> bytes: ...

_Done = tuple[int, Literal["load", "save"], bytes, bytes, int, int, str]

class Transfers:
    def __init__(self, store: Store, queue: int, max_bytes_per_s: int) -> None: ...
    def submit_load(
        self,
        ns: Namespace,
        keys: _Keys,
        pages: PythonPages,
        page_ids: PageIds,
        group: int,
        part: int,
        deadline_us: int,
        worth_us: int,
        touch: bool,
    ) -> int: ...
    def submit_save(
        self,
        ns: Namespace,
        keys: _Keys,
        pages: PythonPages,
        page_ids: PageIds,
        put_ids: Sequence[bytes] | None,
        parent: bytes | None,
        parents: Sequence[bytes | None] | None,
        group: int,
        part: int,
        held: bool,
        ttl_s: int,
        conversation: str,
        deadline_us: int,
    ) -> int: ...
    def poll(self) -> list[_Done]: ...
    def wait(self, timeout_s: float) -> list[_Done]: ...
    def wait_pages(self, ids: Sequence[int] | None, timeout_s: float) -> bool: ...
    def cancel(self, id: int) -> bool: ...
    def in_flight(self) -> int: ...
    def is_in_flight(self, id: int) -> bool: ...
    def event_fd(self) -> int: ...
    def close(self) -> None: ...
