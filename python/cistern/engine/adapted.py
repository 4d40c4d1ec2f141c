# SPDX-License-Identifier: Apache-2.0
"""Requests of adapters: which KV they share, on the scheduler side."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager
from functools import partial

from .adapters import Adapters, LoadedAdapter
from .files import UnknownIdentity
from .matches import SOON_S
from .request import Adapter
from .tracked import TrackedRequest
from .warnings import Warn

LOADED_AGAIN = "the engine was told to load it again while requests of it were there"
CACHED = (
    "the engine's own prefix cache may have blocks of other files under its name: empty it (reset_prefix_cache), or "
    "load these under another name"
)
FRESH_S = 0.1
"""Age of a look from which on a request that is about to load blocks looks again: its engine may have loaded others
since."""
LOOK_S = 0.2
"""Time that a request of an adapter whose files are known waits for a look at them: far longer than one takes on a disk
that answers."""


class AdaptedRequests:
    def __init__(self, applied: str, namespace: Callable[[str], int], read_s: float, warn: Warn) -> None:
        """`applied`: as of Adapters. `namespace`: the number of the namespace of an adapter with this digest. `read_s`:
        how long an adapter's first requests may wait until its files are read."""
        self._adapters = Adapters(applied)
        self._namespace = namespace
        self._read_s = read_s
        self._warn = warn
        self._waited: dict[int, tuple[Future[LoadedAdapter], float]] = {}
        """The look that a request of each adapter last waited for, and until when, by the adapter's number: who comes
        while it is under way waits no longer than that one."""
        self._late: set[int] = set()
        """Adapters whose last look was late: who comes computes at once, until one is in time."""
        self._cached: dict[str, set[LoadedAdapter]] = {}
        """What the blocks are of that the engine has computed or loaded since its own prefix cache was empty, by what
        they are found by there, whatever they are of: the adapter's name, or more."""

    def ask(self, tracked: TrackedRequest, adapter: Adapter) -> None:
        """Begins to look at its adapter's files, beside."""
        looked = partial(self._looked, adapter.number, self._look_s(adapter.number))
        tracked.adapter, tracked.looked_at = self._adapters.ask(adapter, looked), time.monotonic()

    def loading(self, adapter: Adapter) -> AbstractContextManager[None]:
        """Around the engine's loading of an adapter ahead of its requests, or again."""
        return self._adapters.loading(adapter)

    def prefix_cache_emptied(self) -> None:
        self._cached.clear()

    def identified(self, tracked: TrackedRequest, soon: bool = False) -> bool:
        """Whether it is known which KV the request shares: at once, but for an adapter's files, which are looked at
        beside. `soon`: or whether it is so SOON_S later, where no request of its adapter has waited for it in vain."""
        adapter = tracked.request.adapter
        if tracked.adapter is None or adapter is None:
            return True
        if not tracked.adapter.done() and not (soon and self._comes_soon(tracked)):
            return False
        try:
            loaded = tracked.adapter.result()
            namespace = self._namespace(loaded.digest)
        except Exception as error:  # of any kind: the engine goes on
            tracked.stop_sharing()
            self._unshared(adapter, str(error) if isinstance(error, (UnknownIdentity, OSError)) else repr(error))
        else:
            tracked.digest, tracked.planned.namespace = loaded.digest, namespace
            tracked.planned.may_save, tracked.planned.may_load = tracked.may
            tracked.loaded = tracked.loaded or loaded
            self.confirm(tracked, loaded)
        tracked.adapter = None
        return True

    def computes(self, tracked: TrackedRequest) -> None:
        """The engine computes the request with the step that is planned, with what it has loaded by then."""
        adapter = tracked.request.adapter
        if adapter is None:
            return
        self.identified(tracked)
        loaded = self._adapters.computes(adapter)
        tracked.loaded = tracked.loaded or loaded
        self._caches(adapter, loaded)
        self.confirm(tracked, loaded)

    def looks_again(self, tracked: TrackedRequest) -> bool:
        """Whether a request that is about to load blocks waits for another look first. An engine that had no room for
        the adapter meanwhile has loaded what is there now."""
        adapter = tracked.request.adapter
        if adapter is None or time.monotonic() - tracked.looked_at < FRESH_S:
            return False
        self.ask(tracked, adapter)
        return not self.identified(tracked, soon=True)

    def begins_load(self, tracked: TrackedRequest) -> None:
        """The engine has made room for what the store has of the request."""
        if tracked.request.adapter is not None and tracked.loaded is not None:
            self._caches(tracked.request.adapter, tracked.loaded)

    def confirm(self, tracked: TrackedRequest, loaded: LoadedAdapter | None = None) -> None:
        """Has the request share nothing from here on, unless it is certain that what the engine has computed for it,
        and has loaded, is of the files that it is shared by. `loaded`: what it has loaded."""
        adapter = tracked.request.adapter
        loaded = loaded or (self._adapters.loaded(adapter.number) if adapter is not None else None)
        if adapter is None or loaded is None or tracked.loaded is None or not any(tracked.may):
            return
        why = loaded.doubt or (LOADED_AGAIN if loaded is not tracked.loaded else "")
        if not why and any(one.doubt or one.state != loaded.state for one in self._cached.get(_cached_by(adapter), ())):
            why = CACHED
        if why:
            tracked.stop_sharing()
            self._unshared(adapter, f"adapter {adapter.name}: {why}")

    def awaited(self, tracked: TrackedRequest) -> bool:
        """Whether a request that is not identified soon may wait until it is."""
        adapter = tracked.request.adapter
        if adapter is None or adapter.number in self._late:
            return False
        waits_until = self._waits_until(adapter.number)
        return waits_until is None or time.monotonic() < waits_until

    def look(self, tracked: TrackedRequest | None) -> Callable[[], Future[bool]] | None:
        """What finds out whether the adapter that the engine has loaded for a request is the one whose namespace its
        blocks are put in; None for the base model's. An engine loads an adapter with the step that needs it, long after
        the request came."""
        adapter = tracked.request.adapter if tracked is not None else None
        if tracked is None or adapter is None or tracked.loaded is None:
            return None
        return partial(self._adapters.ask_again, adapter, tracked.loaded)

    def close(self) -> None:
        self._adapters.close()

    def _comes_soon(self, tracked: TrackedRequest) -> bool:
        adapter, found = tracked.request.adapter, tracked.adapter
        if adapter is None or found is None or adapter.number in self._late or self._waits_until(adapter.number):
            return False
        self._waited[adapter.number] = found, time.monotonic() + self._look_s(adapter.number)
        return bool(wait([found], SOON_S).done)

    def _waits_until(self, number: int) -> float | None:
        """Until when requests of this adapter wait for the look that is under way; None: none waits yet."""
        look, end = self._waited.get(number, (None, 0.0))
        return None if look is None or look.done() else end

    def _look_s(self, number: int) -> float:
        """How long requests of an adapter may wait for the look that is due."""
        return LOOK_S if self._adapters.was_read(number) else self._read_s

    def _looked(self, number: int, may_take_s: float, took_s: float) -> None:
        """On another thread, before what it found out is there."""
        if took_s <= may_take_s:
            self._late.discard(number)
        else:
            self._late.add(number)

    def _caches(self, adapter: Adapter, loaded: LoadedAdapter) -> None:
        self._cached.setdefault(_cached_by(adapter), set()).add(loaded)

    def _unshared(self, adapter: Adapter, why: str) -> None:
        self._warn(f"adapter {adapter.number}", f"requests of this adapter share no KV: {why}")


def _cached_by(adapter: Adapter) -> str:
    return adapter.cached_by or adapter.name
