# SPDX-License-Identifier: Apache-2.0
"""Which files an engine's LoRA adapters are of, where that is certain.

An engine loads an adapter with the step that needs it, anew where it had no room for it meanwhile, and again with a
request that says so, unless another one in the same batch does not: nobody is told when. So its blocks are shared only
while nothing speaks against this:

- Its files were seen before the engine first computed with its number, or was last told to load it ahead of its
  requests (`add_lora`); each look since has found the same ones, also the look before its blocks become visible; and no
  request came with another place under this number. Then whatever was loaded, whenever, is these files.
- What the engine's own prefix cache may have of it was computed with these files (AdaptedRequests).

The first sign of anything else ends it: for the number until the engine is told to load it again ahead of its requests,
for the name until the prefix cache was emptied. A reset of the caches unloads no adapter.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .beside import Beside
from .files import UnknownIdentity, files_of, folder_state, links_to, may_pass, weights_digest
from .request import Adapter

MAX_LOOKS, MAX_READS = 16, 4
"""Looks at files that are known, and readings of new ones, of different adapters at the same time: so many may hang."""
PAUSES_S = (0.01, 0.1, 1.0)
"""Between attempts to look at files that are there and cannot be looked at: a share that is mounted anew, descriptors
that others have for a moment."""
UNSEEN = "the engine loaded it before its files could be looked at"
CHANGED = "its place or its files changed since it was first used or loaded under its number"
FAILED = "the engine was to load it in place, and that failed"


@dataclass(eq=False)
class LoadedAdapter:
    """What the engine has under an adapter's number, however often it loads it, until it is told to load another."""

    place: tuple[str, str]
    """Path and form."""
    state: object
    """Of its files, as they were seen before the engine loaded them."""
    doubt: str = ""
    """Why it is not certain that what is loaded is these files; once there, it stays."""
    digest: str = ""
    """Of its files, once they were read."""


class Adapters:
    def __init__(self, applied: str = "") -> None:
        """`applied`: what of an adapter the engine applies, and how, where that is not by its files alone."""
        self._applied = applied
        self._loaded: dict[int, LoadedAdapter] = {}
        """By the adapter's number: the engine knows an adapter by that alone."""
        self._looks, self._reads = Beside("cistern-adapters", MAX_LOOKS), Beside("cistern-adapters-new", MAX_READS)

    def loaded(self, number: int) -> LoadedAdapter | None:
        return self._loaded.get(number)

    def was_read(self, number: int) -> bool:
        """Whether an adapter's files need a look alone."""
        loaded = self._loaded.get(number)
        return loaded is not None and bool(loaded.digest)

    def ask(
        self, adapter: Adapter, looked: Callable[[float], object] = lambda took_s: None
    ) -> Future[LoadedAdapter]:
        """What look() says, found out beside the engine's thread. Nobody waits for another adapter's files, unless
        as many as MAX_LOOKS or MAX_READS hang. `looked`: called where it is found out, before it is there, with the
        time that it took whoever asked first."""
        loaded = self._loaded.get(adapter.number)
        if loaded is not None and loaded.doubt:  # whatever its files are
            unknown: Future[LoadedAdapter] = Future()
            unknown.set_exception(_unknown(adapter, loaded.doubt))
            return unknown
        beside = self._looks if self.was_read(adapter.number) else self._reads
        return beside.share(adapter.number, adapter, partial(self._ask, adapter, time.monotonic(), looked))

    def ask_again(self, adapter: Adapter, loaded: LoadedAdapter) -> Future[bool]:
        """Whether an adapter's files are still those that it is certain to be of, found out beside."""
        return self._looks.share(adapter.number, loaded, partial(self._stands, adapter, loaded))

    def close(self) -> None:
        self._looks.close()
        self._reads.close()

    @contextlib.contextmanager
    def loading(self, adapter: Adapter) -> Iterator[None]:
        """Around the engine's loading of an adapter ahead of its requests. It does so unless it has that number, or is
        told to load it in place. Where that fails it may have either of the two."""
        before = self._loaded.get(adapter.number)
        if before is not None and not adapter.reload:
            loaded = self.computes(adapter)
        else:
            loaded = LoadedAdapter(_place(adapter), None, UNSEEN)
            with contextlib.suppress(UnknownIdentity, OSError):  # its requests will say so
                loaded = _seen(adapter)
        if before is not None and not before.doubt and before.state == loaded.state:
            loaded = before
        failed = LoadedAdapter(_place(adapter), None, FAILED)
        self._loaded[adapter.number] = loaded if before is None or before is loaded else failed
        yield
        self._loaded[adapter.number] = loaded

    def computes(self, adapter: Adapter) -> LoadedAdapter:
        """What the engine has of an adapter as it computes with it, or loads it unless it has its number."""
        loaded = self._loaded.get(adapter.number)
        if loaded is None:
            loaded = self._loaded.setdefault(adapter.number, LoadedAdapter(_place(adapter), None, UNSEEN))
        if loaded.place != _place(adapter):
            loaded.doubt = loaded.doubt or CHANGED
        return loaded

    def look(self, adapter: Adapter) -> LoadedAdapter:
        """What the engine has of an adapter, or will have, with its digest. Raises UnknownIdentity."""
        loaded = self._loaded.get(adapter.number)
        if loaded is None:
            loaded = self._loaded.setdefault(adapter.number, _seen(adapter))
        if self._stands(adapter, loaded) and not loaded.digest:
            digest = self._digest(adapter)
            if self._stands(adapter, loaded):
                loaded.digest = digest
        if loaded.doubt:
            raise _unknown(adapter, loaded.doubt)
        return loaded

    def _ask(self, adapter: Adapter, asked_at: float, looked: Callable[[float], object]) -> LoadedAdapter:
        try:
            return self.look(adapter)
        finally:
            looked(time.monotonic() - asked_at)

    def _stands(self, adapter: Adapter, loaded: LoadedAdapter) -> bool:
        """Looks at an adapter's files: whether what is loaded is certain to be these."""
        if _state(adapter) != loaded.state:
            loaded.doubt = loaded.doubt or CHANGED
        return not loaded.doubt

    def _digest(self, adapter: Adapter) -> str:
        files, rules = weights_digest(Path(adapter.path)), " ".join(filter(None, (self._applied, adapter.form)))
        return hashlib.sha256(f"{files} {rules}".encode()).hexdigest() if rules else files


def _place(adapter: Adapter) -> tuple[str, str]:
    return adapter.path, adapter.form


def _seen(adapter: Adapter) -> LoadedAdapter:
    """An adapter as it is about to be loaded. Raises UnknownIdentity or OSError."""
    state = _state(adapter)
    doubt = f"no files at {adapter.path}: give their folder" if state is None else ""
    return LoadedAdapter(_place(adapter), state, doubt)


def _unknown(adapter: Adapter, why: str) -> UnknownIdentity:
    return UnknownIdentity(f"adapter {adapter.name}: {why}")


def _state(adapter: Adapter) -> object:
    """Place, form and files; None where there are none. Raises UnknownIdentity or OSError."""
    for pause_s in PAUSES_S:
        try:
            return _state_now(adapter)
        except (OSError, UnknownIdentity) as error:
            if not may_pass(error):
                raise
        time.sleep(pause_s)
    return _state_now(adapter)


def _state_now(adapter: Adapter) -> object:
    folder = Path(adapter.path)
    if not folder.exists():
        return None
    # A link that led elsewhere meanwhile, and leads back, is another one.
    links = frozenset(link for path in files_of(folder) for link in links_to(path))
    return adapter.path, adapter.form, links, folder_state(folder)
