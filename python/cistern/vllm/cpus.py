# SPDX-License-Identifier: Apache-2.0
"""Where threads beside the engine's own may run.

vLLM on CPUs binds each worker to cores of its own before its first line runs (by OMP_PLACES), leaves others free for
the scheduler and a connector, and a thread inherits what the one that starts it is bound to: a thread that copies
would take turns with the one that computes, while a core that was kept for it stands idle.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
from collections.abc import Iterator

_at_start: set[int] = set()


def remember() -> None:
    """What this process may run on, before its engine binds the thread that computes."""
    _at_start.update(os.sched_getaffinity(0))


def given() -> set[int]:
    """The CPUs that the engine was given: what this process or the one that started it as a worker may run on."""
    cpus = os.sched_getaffinity(0) | _at_start
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        with contextlib.suppress(OSError):
            cpus |= os.sched_getaffinity(parent.pid)
    return cpus


@contextlib.contextmanager
def unbound(beside: bool = False) -> Iterator[None]:
    """Threads that are started in here may run wherever the engine may; with `beside`, only where the one that starts
    them does not compute, if there are such CPUs: for an engine of one rank, whose other CPUs compute nothing."""
    bound = os.sched_getaffinity(0)
    cpus = given()
    # CPUs may be taken from the engine in between: then they stay where this thread is.
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, cpus - bound if beside and cpus > bound else cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, bound)
