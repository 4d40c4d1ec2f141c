# SPDX-License-Identifier: Apache-2.0
"""Work beside the engine's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from .cpus import unbound

P = ParamSpec("P")
T = TypeVar("T")


class Beside:
    """A thread that does what it is given, one after the other. A process that ends does not wait for it: what it looks
    at may be on a disk that does not answer."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._begun = False
        self._shared: dict[Hashable, Future[Any]] = {}
        """The newest of each key: those that have not begun, and some that have."""

    def submit(self, call: Callable[P, T], *given: P.args, **named: P.kwargs) -> Future[T]:
        """Where the host has no thread left, the result is that error, and the next one tries again."""
        done: Future[T] = Future()

        def work() -> None:
            done.set_running_or_notify_cancel()
            try:
                done.set_result(call(*given, **named))
            except BaseException as error:  # of any kind: it is the asker's
                done.set_exception(error)

        if not self._begun:
            try:
                with unbound(beside=True):
                    threading.Thread(target=self._run, name=self._name, daemon=True).start()
            except RuntimeError as error:
                done.set_exception(error)
                return done
            self._begun = True
        self._work.put(work)
        return done

    def share(self, key: Hashable, call: Callable[[], T]) -> Future[T]:
        """As submit(); all who ask for the same key before its call has begun have that one's result. So no more calls
        wait than there are keys."""
        there = self._shared.get(key)
        if there is None or not _waits(there):
            self._shared = {one: of for one, of in self._shared.items() if _waits(of)}
            there = self._shared[key] = self.submit(call)
        return there

    def close(self) -> None:
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _waits(call: Future[Any]) -> bool:
    return not (call.running() or call.done())
