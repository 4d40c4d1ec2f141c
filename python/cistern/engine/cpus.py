# SPDX-License-Identifier: Apache-2.0
"""CPUs for threads beside the engine's own.

An engine on CPUs (vLLM by OMP_PLACES) may bind each worker to cores of its own before its first line runs, and leave
others free for the scheduler and a connector. A thread inherits the binding of the thread that starts it: a copying
thread would take turns with the computing one, while a core kept for it stands idle.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator

_at_start: set[int] = set()


def remember() -> None:
    """Notes the CPUs of this process, before its engine binds the computing thread."""
    _at_start.update(os.sched_getaffinity(0))


def given() -> set[int]:
    """The CPUs that the engine was given: those of this process, or of the one that started it as a worker."""
    cpus = os.sched_getaffinity(0) | _at_start
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        with contextlib.suppress(OSError):
            cpus |= os.sched_getaffinity(parent.pid)
    return cpus


@contextlib.contextmanager
def unbound(beside: bool = False) -> Iterator[None]:
    """Threads started in this context may run wherever the engine may; with `beside`, only off the starting thread's
    CPUs, if there are others: for an engine of one rank, whose other CPUs compute nothing."""
    bound = os.sched_getaffinity(0)
    cpus = given()
    if cpus == bound:  # what a thread sets, be it what it has, keeps CPUs from it that its container is given later
        yield
        return
    # CPUs may be taken from the engine in between: then threads stay where the kernel has them.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus - bound if beside and cpus > bound else cpus)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, bound)
