# SPDX-License-Identifier: Apache-2.0
"""Work beside the engine's thread."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from .cpus import unbound

T = TypeVar("T")

IDLE_S = 10.0
"""Time without work after which a thread ends."""


class Beside:
    """Threads that do what they are given: the calls of one lane one after the other, those of different lanes beside
    each other. There are as many as lanes have had work of late, `most` at most: past that, what hangs in one lane
    keeps others waiting. A process that ends does not wait for them: what they look at may be on a disk that does not
    answer."""

    def __init__(self, name: str, most: int = 1) -> None:
        self._name = name
        self._most = most
        self._wake = threading.Condition()
        self._lanes: dict[Hashable, deque[Callable[[], None]]] = {}
        """Calls that wait, by their lanes: those in `_ready`, and those that a thread is busy with."""
        self._ready: deque[Hashable] = deque()
        """Lanes with calls that no thread is busy with, each once."""
        self._threads = 0
        self._idle = 0
        self._ending = False
        self._shared: dict[Hashable, Future[Any]] = {}
        """The newest of each key: those that have not begun, and some that have."""

    def submit(self, lane: Hashable, call: Callable[[], T]) -> Future[T]:
        """Where the host has no thread left and none is there, the result is that error, and the next one tries
        again."""
        done: Future[T] = Future()

        def work() -> None:
            done.set_running_or_notify_cancel()
            try:
                done.set_result(call())
            except BaseException as error:  # of any kind: it is the asker's
                done.set_exception(error)

        with self._wake:
            if lane in self._lanes:
                self._lanes[lane].append(work)
                return done
            self._lanes[lane] = deque([work])
            self._ready.append(lane)
            if self._idle >= len(self._ready):
                self._wake.notify()
            elif self._threads < self._most:
                try:
                    with unbound(beside=True):
                        threading.Thread(target=self._run, name=self._name, daemon=True).start()
                    self._threads += 1
                except Exception as error:  # of the CPUs as of the thread
                    if not self._threads:
                        self._ready.remove(lane)
                        del self._lanes[lane]
                        done.set_exception(error)
        return done

    def share(self, lane: Hashable, key: Hashable, call: Callable[[], T]) -> Future[T]:
        """As submit(); all who ask for the same key before its call has begun have that one's result. So no more calls
        wait than there are keys."""
        there = self._shared.get(key)
        if there is None or not _waits(there):
            self._shared = {one: of for one, of in self._shared.items() if _waits(of)}
            there = self._shared[key] = self.submit(lane, call)
        return there

    def close(self) -> None:
        with self._wake:
            self._ending = True
            self._wake.notify_all()

    def _run(self) -> None:
        self._wake.acquire()
        while self._ready or self._wait():
            lane = self._ready.popleft()
            work = self._lanes[lane].popleft()
            self._wake.release()
            work()
            del work  # what it holds is not to be held while nothing is to be done
            self._wake.acquire()
            if self._lanes[lane]:
                self._ready.append(lane)
            else:
                del self._lanes[lane]
        self._threads -= 1
        self._wake.release()

    def _wait(self) -> bool:
        """Under the lock: whether there is work; False after IDLE_S, or at the end."""
        self._idle += 1
        self._wake.wait_for(lambda: self._ready or self._ending, IDLE_S)
        self._idle -= 1
        return bool(self._ready)


def _waits(call: Future[Any]) -> bool:
    return not (call.running() or call.done())
