# SPDX-License-Identifier: Apache-2.0
"""Load or compute, as Python asks for it; src/policy/load_test.cc has what the decision promises."""

from __future__ import annotations

import pytest

import cistern
from cistern.load import LoadRun, LoadSource, LoadStretch, Prefill, plan_load


def test_fast_source_loaded_and_slow_one_computed() -> None:
    sources = [LoadSource(0, 0, 1), LoadSource(0, 0, 1000)]
    plan = plan_load([LoadRun(100, 0), LoadRun(100, 1)], sources, Prefill(10))
    assert plan.loads == (LoadStretch(0, 100, 0, False),)
    assert plan.first_token_us == pytest.approx(100 + 100 * 160)
    assert plan.worth_us == pytest.approx(16_000)


def test_meeting_in_the_middle() -> None:
    linear = Prefill(1e6 / 16_000, loads_behind=True)
    plan = plan_load([LoadRun(1000, 0)], [LoadSource(0, 0, 1000)], linear)
    assert plan.compute_us / plan.first_token_us == pytest.approx(2, rel=0.01)
    assert plan.loads[-1].from_back
    quadratic = Prefill(0, 1e6 / 16_000**2, loads_behind=True)
    plan = plan_load([LoadRun(1000, 0)], [LoadSource(0, 0, 1000)], quadratic)
    assert plan.compute_us / plan.first_token_us == pytest.approx(2.618, rel=0.01)


def test_load_that_would_end_later_than_computing_refused() -> None:
    plan = plan_load([LoadRun(10, 0)], [LoadSource(0, 1e6, 1)], Prefill(1))
    assert not plan.loads and plan.worth_us == 0 and plan.first_token_us == plan.compute_us


def test_bad_input_named() -> None:
    with pytest.raises(cistern.Invalid, match="source 1"):
        plan_load([LoadRun(1, 1)], [LoadSource(0, 0, 1)], Prefill(1))
    with pytest.raises(cistern.Invalid, match="us_per_block is -1"):
        plan_load([], [LoadSource(0, 0, -1)], Prefill(1))
    with pytest.raises(cistern.Invalid, match="us_per_token is nan"):
        plan_load([], [], Prefill(float("nan")))
