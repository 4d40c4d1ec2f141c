# SPDX-License-Identifier: Apache-2.0
"""The connection alone: its thread goes on whatever it meets, and what has to be done is done."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from scheduler_side import until

import cistern.engine.connection as connection_module
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
