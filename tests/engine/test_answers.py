# SPDX-License-Identifier: Apache-2.0
"""The scheduler side alone: what it makes of the store's answers to its matches, and of how late it looks at them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from scheduler_side import OneConnection, add, ready

from cistern import MatchResult, MatchRun


def test_answer_of_what_can_never_be_read_is_computed_and_ends_no_engine(connection: OneConnection) -> None:
    side = ready()
    side._pace.step(100, 0.1)
    runs = (MatchRun(3, "flash", (1 << 63) - 1),)
    answer = SimpleNamespace(ready=lambda: True, result=lambda: MatchResult(3, runs, None))
    begin: Any = lambda *given, **more: answer  # noqa: E731
    connection.store.begin_match = begin  # type: ignore[method-assign]
    add(side, "second")
    assert side.match("second", 0) == (0, False)
