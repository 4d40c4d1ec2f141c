# SPDX-License-Identifier: Apache-2.0
"""The connection alone: its thread goes on whatever it meets, and what has to be done is done."""

from __future__ import annotations

import fcntl
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scheduler_side import until

import cistern.engine.connection as connection_module
from cistern.engine import node as node_module
from cistern.engine import options
from cistern.engine.connection import Connection

LOGGER = logging.getLogger("test.cistern")


def test_thread_that_lost_the_processor_between_two_looks_at_the_clock_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The time of the next attempt comes between them."""
    now, meets = [0.0], []

    def monotonic() -> float:
        now[0] += 0.04
        return now[0]

    monkeypatch.setattr(connection_module, "time", SimpleNamespace(monotonic=monotonic))
    starter: Any = SimpleNamespace(meet=lambda: meets.append(1))
    kept = Connection(LOGGER, starter)
    until(lambda: len(meets) >= 3)
    kept.close()


def test_attempt_that_raises_what_nobody_expects_is_made_again(caplog: pytest.LogCaptureFixture) -> None:
    """Without its thread an engine shares nothing until it is started again."""
    meets: list[int] = []

    def meet() -> None:
        meets.append(1)
        raise RuntimeError("can't start new thread")

    starter: Any = SimpleNamespace(meet=meet)
    kept = Connection(LOGGER, starter)
    until(lambda: len(meets) >= 3)
    kept.close()
    assert caplog.text.count("can't start new thread") == 1


def test_idle_engine_keeps_no_other_from_starting_the_node_again(tmp_path: Path) -> None:
    """It has no session before its first request; the node that it started may end meanwhile."""
    given = {"socket": str(tmp_path / "socket"), "memory": "64MiB", "memory_dir": str(tmp_path), "linger_s": 1}
    kept = Connection(LOGGER, node_module.NodeStarter(options.read(given)))
    until(lambda: kept._met is not None)
    with (tmp_path / "socket.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    kept.close()
