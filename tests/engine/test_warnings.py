# SPDX-License-Identifier: Apache-2.0
"""Warnings in an engine's log: one of a kind, and none that keeps another from being told."""

from __future__ import annotations

import logging
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from harness import WATCHDOG_S
from scheduler_side import FACTS, SIZE, Clock, OneConnection, make

from cistern import Busy, Code, Unavailable
from cistern.engine import options
from cistern.engine.connection import Connection
from cistern.engine.orders import LoadOrder, RankReport, SaveReport
from cistern.engine.rank import Rank, _RunningOrder
from cistern.engine.session import Session, SessionSpec
from cistern.engine.warnings import AGAIN_S

SPEC = SessionSpec(1, "", "default", None, ((),), (), SIZE, False, "", "")


def test_warnings_of_one_kind_are_one_and_keep_no_other_from_being_told(
    clock: Clock, connection: OneConnection, caplog: pytest.LogCaptureFixture
) -> None:
    side = make()
    for number in range(1500):
        refused = SaveReport(0, number, 0, f"block {number:x}: writes are off", code=Code.BUSY)
        side.handle_reports([RankReport(0, 0, saves=[refused])], set())
    late = SaveReport(0, 1500, 0, "nothing within 10 s", code=Code.TOO_LATE)
    side.handle_reports([RankReport(0, 0, saves=[late])], set())
    said = [one.getMessage() for one in caplog.records]
    assert said == [
        "cistern: blocks are not saved: block 0: writes are off", "cistern: blocks are not saved: nothing within 10 s"
    ]


def test_warning_said_again_with_the_number_of_those_left_out(
    clock: Clock, connection: OneConnection, caplog: pytest.LogCaptureFixture
) -> None:
    warn = make().warn
    for number in range(3):
        warn("match", f"the {number}th")
    for number in range(3, 5):
        clock.now += AGAIN_S
        warn("match", f"the {number}th")
    said = [one.getMessage() for one in caplog.records]
    assert said == ["cistern: the 0th", "cistern: the 3th (and 2 like it before)", "cistern: the 4th"]


def test_node_that_refuses_call_after_call_is_told_of_once_a_kind(caplog: pytest.LogCaptureFixture) -> None:
    """However other each refusal's numbers are: a lease for each load, where memory has no room for more of them."""
    store: Any = SimpleNamespace(report=lambda: None, close=lambda: None)
    namespaces: Any = [object()]
    kept = Connection(logging.getLogger(FACTS.logger))
    kept.session = Session(SPEC, store, namespaces)
    kept.open(SPEC)

    def refuse(error: Exception, session: Session) -> None:
        raise error

    for number in range(100):
        for error in (Busy(f"leases: {number} bytes of memory are asked for"), Unavailable(f"drains for {number} s")):
            kept.submit(partial(refuse, error))
    assert kept.flush(WATCHDOG_S)
    kept.close()
    assert [one.getMessage() for one in caplog.records] == [
        "cistern: the node answered: leases: 0 bytes of memory are asked for",
        "cistern: the node answered: drains for 0 s",
    ]


def test_report_of_a_rank_has_the_code_that_its_message_is_of() -> None:
    rank = Rank(options.read({"socket": "/nowhere/socket", "start_node": False}), FACTS, 0)
    order = LoadOrder(1, "r", 0, 0, [b"k"] * 2, [[1, 2]])
    running = _RunningOrder(order, 0, 0.0, open=1, good=2)
    transfers: Any = type("Transfers", (), {"running": {7: (running, [0, 1])}})()
    done: Any = type("Done", (), {
        "id": 7, "outcomes": bytes([Code.OK, Code.BUSY]), "message": "writes are off", "moved_bytes": 0, "took_us": 0,
    })()
    try:
        rank._done(transfers, done)
        (report,) = rank._load_reports
        assert (report.blocks, report.message, report.code) == (1, "writes are off", Code.BUSY)
    finally:
        rank.close()
