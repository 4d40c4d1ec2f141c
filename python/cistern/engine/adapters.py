# SPDX-License-Identifier: Apache-2.0
"""Identity of LoRA adapters."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path

from .beside import Beside
from .files import UnknownIdentity, folder_state, weights_digest
from .request import Adapter

MAX_LOOKS, MAX_READS = 16, 4
"""Looks at files that are known, and readings of new ones, of different adapters at the same time: so many may hang."""
UNSEEN = object()
"""State of files that nobody had looked at: no files have it."""


class Adapters:
    """Files of the adapters that the engine holds. The engine knows an adapter by its number alone, and loads it again
    only when told to: an adapter whose place or files changed since has no known identity, since either of the two may
    be loaded. What is known outlives a reset of the engine's caches: it unloads no adapter."""

    def __init__(self, applied: str = "") -> None:
        """`applied`: what of an adapter the engine applies, and how, where that is not by its files alone."""
        self._applied = applied
        self._known: dict[int, tuple[str, object]] = {}
        self._loaded: dict[int, object] = {}
        """State of the files that the engine has loaded, where it was not told by a look that ended before that."""
        self._seen: dict[int, object] = {}
        """State of each adapter's files at the last look that has begun."""
        self._looks, self._reads = Beside("cistern-adapters", MAX_LOOKS), Beside("cistern-adapters-new", MAX_READS)
        self._reading: set[int] = set()
        """Numbers of those whose files were new, or turned out to be others, at the last look that has begun: it reads
        them, until it is done."""
        self._asked: dict[int, Future[str]] = {}
        """The last look at each adapter, by its number."""

    def knows(self, number: int) -> bool:
        """Whether an adapter's files need a look alone, as far as that has shown by now."""
        if number not in self._known:
            return False
        look = self._asked.get(number)
        return number not in self._reading or look is None or look.done()

    def ask(self, adapter: Adapter, looked: Callable[[float], object] = lambda took_s: None) -> Future[str]:
        """What digest() says, found out beside the engine's thread. Nobody waits for another adapter's files, unless
        as many as MAX_LOOKS or MAX_READS hang. `looked`: called where it is found out, before it is there, with the
        time that it took whoever asked first."""
        beside = self._looks if adapter.number in self._known else self._reads
        look = partial(self._look, adapter, time.monotonic(), looked)
        found = self._asked[adapter.number] = beside.share(adapter.number, adapter, look)
        return found

    def ask_again(self, adapter: Adapter, digest: str) -> Future[bool]:
        """Whether an adapter's files are still those of this digest, found out beside: then whatever the engine has
        loaded for it meanwhile is."""
        still = replace(adapter, reload=False)
        return self._looks.share(adapter.number, (still, digest), partial(self._is_still, still, digest))

    def close(self) -> None:
        self._looks.close()
        self._reads.close()

    def loads(self, adapter: Adapter) -> bool:
        """The engine is about to load an adapter, ahead of its requests, unless it has it. Looks at its files. Whether
        others were loaded under its number until now."""
        number, state = adapter.number, _state(adapter)
        before = self._loaded.get(number, self._known[number][1] if number in self._known else None)
        if before is not None and (before == state or not adapter.reload):
            return False
        self._known.pop(number, None)
        self._loaded[number] = state
        return before is not None

    def begins(self, adapter: Adapter) -> object:
        """The engine begins to compute a request of which no look tells what it loads: it loads the adapter if it has
        none of that number, or is told to. State of what it then has, as far as anybody has seen it."""
        number, known = adapter.number, self._known.get(adapter.number)
        state = self._seen.get(number, UNSEEN) if adapter.reload or known is None else known[1]
        if adapter.reload:
            self._loaded[number] = state
        return self._loaded.setdefault(number, state)

    def loads_again(self, number: int) -> None:
        """The engine is about to load an adapter again as it is known."""
        if (known := self._known.get(number)) is not None:
            self._loaded[number] = known[1]

    def has(self, number: int, state: object) -> bool:
        """Whether it is of these files what is known of an adapter."""
        known = self._known.get(number)
        return known is not None and known[1] == state

    def digest(self, adapter: Adapter) -> str:
        """Raises UnknownIdentity."""
        state = self._seen[adapter.number] = _state(adapter)
        if state is None:
            raise UnknownIdentity(f"adapter {adapter.name}: no files at {adapter.path}: give their folder")
        known = self._known.get(adapter.number)
        loaded = state if adapter.reload else self._loaded.get(adapter.number, state)
        if loaded is UNSEEN:
            raise UnknownIdentity(f"adapter {adapter.name}: the engine loaded it before its files could be looked at")
        if loaded != state:
            raise UnknownIdentity(f"adapter {adapter.name}: its files changed since the engine loaded them")
        if known is None or (adapter.reload and known[1] != state):
            self._reading.add(adapter.number)
            known = (self._digest(adapter), state)
            if _state(adapter) != state:
                raise UnknownIdentity(f"adapter {adapter.name}: its files change")
            self._known[adapter.number] = known
        if known[1] != state:
            raise UnknownIdentity(
                f"adapter {adapter.name}: its place or its files changed since the engine first used number "
                f"{adapter.number}"
            )
        return known[0]

    def _look(self, adapter: Adapter, asked_at: float, looked: Callable[[float], object]) -> str:
        self._reading.discard(adapter.number)
        try:
            return self.digest(adapter)
        finally:
            looked(time.monotonic() - asked_at)

    def _is_still(self, adapter: Adapter, digest: str) -> bool:
        return self._known.get(adapter.number) == (digest, _state(adapter))

    def _digest(self, adapter: Adapter) -> str:
        files, rules = weights_digest(Path(adapter.path)), " ".join(filter(None, (self._applied, adapter.form)))
        return hashlib.sha256(f"{files} {rules}".encode()).hexdigest() if rules else files


def _state(adapter: Adapter) -> object:
    """Place, form and files; None where there are none."""
    folder = Path(adapter.path)
    return (adapter.path, adapter.form, folder_state(folder)) if folder.exists() else None
