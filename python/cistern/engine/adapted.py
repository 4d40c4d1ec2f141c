# SPDX-License-Identifier: Apache-2.0
"""Requests of adapters: which KV they share, on the scheduler side."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from functools import partial

from .adapters import Adapters
from .files import UnknownIdentity
from .matches import SOON_S
from .request import Adapter
from .tracked import TrackedRequest
from .warnings import Warn

LOOK_S = 0.2
"""Time that a request of an adapter whose files are known waits for a look at them: far longer than one takes on a disk
that answers."""


class AdaptedRequests:
    def __init__(
        self, applied: str, requests: Mapping[str, TrackedRequest], namespace: Callable[[str], int],
        read_s: float, warn: Warn,
    ) -> None:
        """`applied`: as of Adapters. `requests`: all of the engine's, by their ids. `namespace`: the number of the
        namespace of an adapter with this digest. `read_s`: how long an adapter's first requests may wait until its
        files are read."""
        self._adapters = Adapters(applied)
        self._requests = requests
        self._namespace = namespace
        self._read_s = read_s
        self._warn = warn
        self._waited: dict[int, tuple[Future[str], float]] = {}
        """The look that a request of each adapter last waited for, and since when, by the adapter's number: who comes
        while it is under way waits no longer than that one."""
        self._late: set[int] = set()
        """Adapters whose last look was late: who comes computes at once, until one is in time."""
        self._held: dict[int, str] = {}
        """The digest of the last request of each adapter, by the adapter's number. A reset unloads none."""

    def ask(self, tracked: TrackedRequest, adapter: Adapter) -> None:
        """Begins to look at its adapter's files, beside."""
        tracked.loads = True
        tracked.adapter = self._adapters.ask(adapter, partial(self._looked, adapter.number))

    def loads(self, adapter: Adapter) -> None:
        """The engine is about to load an adapter ahead of its requests, or again: whose files changed since then, until
        its first request, is not what they say."""
        with contextlib.suppress(UnknownIdentity, OSError):  # its requests will say so
            if self._adapters.loads(adapter):
                self._end_sharing(adapter.number)
                self._held.pop(adapter.number, None)

    def identified(self, tracked: TrackedRequest, soon: bool = False) -> bool:
        """Whether it is known which KV the request shares: at once, but for an adapter's files, which are looked at
        beside. `soon`: or whether it is so SOON_S later, where no request of its adapter has waited for it in vain."""
        if tracked.adapter is None:
            return True
        if not tracked.adapter.done() and not (soon and self._comes_soon(tracked)):
            return False
        try:
            tracked.digest = tracked.adapter.result()
            namespace = self._namespace(tracked.digest)
        except Exception as error:  # of any kind: the engine goes on
            number = tracked.request.adapter.number if tracked.request.adapter else 0
            why = str(error) if isinstance(error, (UnknownIdentity, OSError)) else repr(error)
            self._warn(f"adapter {number}", f"requests of this adapter share no KV: {why}")
        else:
            tracked.planned.namespace = namespace
            tracked.planned.may_save, tracked.planned.may_load = tracked.may
            self._holds(tracked)
        tracked.adapter = None
        return True

    def computes(self, tracked: TrackedRequest) -> None:
        """The engine computes the request with the step that is planned, for which it loads its adapter: what that is
        was looked at, or may be other files than its look will find."""
        identified, adapter = self.identified(tracked), tracked.request.adapter if tracked.loads else None
        if adapter is None:
            return
        tracked.loads = False
        if not identified:
            tracked.began_as = self._adapters.begins(adapter)
        elif not tracked.digest:
            self._adapters.begins(adapter)
        elif adapter.reload:
            self._adapters.loads_again(adapter.number)
            if self._held.get(adapter.number, tracked.digest) != tracked.digest:  # those that came since the look
                self._end_sharing(adapter.number, but=tracked.digest)
            self._held[adapter.number] = tracked.digest

    def awaited(self, tracked: TrackedRequest) -> bool:
        """Whether a request that is not identified soon may wait until it is."""
        adapter, now = tracked.request.adapter, time.monotonic()
        if adapter is None or adapter.number in self._late:
            return False
        return now - (self._waits_since(adapter.number) or now) < self._look_s(adapter.number)

    def look(self, tracked: TrackedRequest | None) -> Callable[[], Future[bool]] | None:
        """What finds out whether the adapter that the engine has loaded for a request is the one whose namespace its
        blocks are put in; None for the base model's. An engine loads an adapter with the step that needs it, long after
        the request came."""
        adapter = tracked.request.adapter if tracked is not None else None
        return partial(self._adapters.ask_again, adapter, tracked.digest) if tracked and adapter else None

    def close(self) -> None:
        self._adapters.close()

    def _comes_soon(self, tracked: TrackedRequest) -> bool:
        adapter, found = tracked.request.adapter, tracked.adapter
        if adapter is None or found is None or adapter.number in self._late or self._waits_since(adapter.number):
            return False
        self._waited[adapter.number] = found, time.monotonic()
        return bool(wait([found], SOON_S).done)

    def _waits_since(self, number: int) -> float | None:
        """When a request of this adapter first waited for the look that is under way; None: none has."""
        look, since = self._waited.get(number, (None, 0.0))
        return None if look is None or look.done() else since

    def _look_s(self, number: int) -> float:
        """How long requests of an adapter may wait for the look that is due."""
        return LOOK_S if self._adapters.knows(number) else self._read_s

    def _looked(self, number: int, took_s: float) -> None:
        """On another thread, before what it found out is there."""
        if took_s <= self._look_s(number):
            self._late.discard(number)
        else:
            self._late.add(number)

    def _holds(self, tracked: TrackedRequest) -> None:
        """Has the request share nothing where the engine has other files for it than its digest says: those that it
        began with, or those that the requests before it have, unless it makes the engine load them again."""
        adapter = tracked.request.adapter
        if adapter is None or self._requests.get(tracked.request.id) is not tracked:  # or it has ended by now
            return
        if tracked.began_as is not None and not self._adapters.has(adapter.number, tracked.began_as):
            tracked.stop_sharing()
            if adapter.reload:  # and others run on with what it had loaded
                self._end_sharing(adapter.number)
                self._held.pop(adapter.number, None)
        elif adapter.reload:
            if self._held.get(adapter.number, tracked.digest) != tracked.digest:
                self._end_sharing(adapter.number, but=tracked.digest)
            if tracked.began_as is not None:
                self._held[adapter.number] = tracked.digest
        elif self._held.setdefault(adapter.number, tracked.digest) != tracked.digest:
            tracked.stop_sharing()

    def _end_sharing(self, number: int, but: str | None = None) -> None:
        """The engine loads other weights under an adapter's number: what it computes from then on for requests that are
        there is of both, or not of the files that were looked at. `but`: of those that have this digest, as they have
        loaded it or are to load it; and who loads it after a look that is still to come is as that finds it."""
        for one in self._requests.values():
            of = one.request.adapter
            if of is not None and of.number == number and one.digest != but and not (of.reload and one.adapter):
                one.stop_sharing()
