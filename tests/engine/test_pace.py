# SPDX-License-Identifier: Apache-2.0
"""The pace alone: what it believes of loads, and that no belief lasts without being measured."""

from __future__ import annotations

import random

import pytest

from cistern.engine.pace import MAX_PROBE, OUTLIER, LoadTime, Pace, StepTime

MIB = 1 << 20
HIT = (4096, 512 * MIB)
"""Tokens and bytes of a hit of an 8B model."""


def test_load_worth_it_when_sooner_than_computing() -> None:
    pace = Pace(loads=LoadTime(s_per_byte=1e-9))
    assert pace.worth(128, 1 << 30)  # nothing measured yet
    pace.step(1000, 1.0)
    assert pace.worth(1000, 500_000_000) and not pace.worth(1000, 2_000_000_000)
    assert pace.worth(1000, 500_000_000, ready_s=0.4) and not pace.worth(1000, 500_000_000, ready_s=0.6)
    pace.step(1, 0.6)  # a short hit that costs two long steps
    assert not pace.worth(1000, 1)


def test_latency_and_bandwidth_told_apart() -> None:
    dice, time = random.Random(1), LoadTime()
    for _ in range(200):
        size = dice.choice([MIB, 16 * MIB, 256 * MIB])
        time.add(size, 0.002 + size / 2e9)
    assert time.latency_s == pytest.approx(0.002, rel=0.05) and time.s_per_byte == pytest.approx(1 / 2e9, rel=0.05)


def test_slow_small_loads_are_latency_of_large_ones() -> None:
    time = LoadTime()
    for _ in range(20):
        time.add(MIB, 0.003)
    assert time.of(512 * MIB) == pytest.approx(0.003 + 511 * MIB / 5e9, rel=0.05)


def test_one_load_on_a_busy_host_counts_as_an_outlier() -> None:
    pace = Pace()
    for _ in range(10):
        pace.load(64 * MIB, 0.01)
    pace.load(64 * MIB, 30.0)
    assert pace.loads.of(64 * MIB) <= 0.01 * OUTLIER


def a_step(tokens: int, begin: int) -> float:
    return 0.008 + tokens * 2e-4 + tokens * (2 * begin + tokens) * 3e-8


def test_a_step_its_tokens_and_how_far_they_look_back_told_apart() -> None:
    dice, steps = random.Random(1), StepTime()
    for _ in range(200):
        tokens, begin = dice.randrange(1, 2049), dice.randrange(0, 8192)
        steps.add(tokens, tokens * (2 * begin + tokens), a_step(tokens, begin) * dice.uniform(0.95, 1.05))
    for tokens, begin in ((1, 0), (200, 0), (2048, 0), (2048, 8192), (16, 4096)):
        assert steps.of(tokens, begin) == pytest.approx(a_step(tokens, begin), rel=0.08), (tokens, begin)
    assert min(steps.parts()) >= 0
    assert steps.of(4096) == pytest.approx(a_step(2048, 0) + a_step(2048, 2048), rel=0.08)  # two steps


def test_steps_that_were_all_alike_say_that_tokens_take_their_time() -> None:
    steps = StepTime()
    for _ in range(20):
        steps.add(2048, 2048 * 2048, 0.4)
    assert steps.of(1024) == pytest.approx(0.2, rel=0.1)


def test_first_token_is_expected_when_it_comes() -> None:
    pace = Pace(loads=LoadTime(latency_s=0.002, s_per_byte=1e-9))
    assert pace.first_token_s(1000, MIB) == 0.0  # nothing measured yet
    for tokens in (16, 128, 512, 1024, 2048) * 10:
        pace.step(tokens, a_step(tokens, 0), tokens * tokens)
    pace.load_ended(0.003)
    for begin, tokens, tail in ((0, 1024, 16), (0, 2048, 700), (1024, 512, 128)):
        computed = pace.first_token_s(tokens, 1 << 40, 0.0, begin, tail)
        assert computed == pytest.approx(pace.compute_s(tokens + tail, begin), rel=0.01)
        loaded = pace.first_token_s(tokens, 64 * MIB, 0.001, begin, tail)
        expected = 0.003 + 0.002 + 64 * MIB * 1e-9 + 0.001 + a_step(tail, begin + tokens)
        assert loaded == pytest.approx(expected, rel=0.05)


def ask(pace: Pace, load_s: float) -> bool:
    """One request with this hit, whose load takes so long. Whether it was loaded."""
    if pace.worth(*HIT):
        pace.accept()
    elif not pace.decline():
        return False
    pace.load(HIT[1], load_s)
    return True


def test_three_slow_loads_do_not_decline_hits_for_ever() -> None:
    pace = Pace()
    pace.step(4096, 0.2)
    for _ in range(3):
        pace.load(64 * MIB, 0.3)
    assert not pace.worth(*HIT)
    for _ in range(64):
        ask(pace, load_s=0.11)
    assert pace.worth(*HIT)


def test_store_slower_than_computing_probed_ever_more_rarely() -> None:
    pace = Pace()
    pace.step(4096, 0.2)
    loaded = [ask(pace, load_s=3.0) for _ in range(50 * MAX_PROBE)]
    assert sum(loaded) < 100 and sum(loaded[-10 * MAX_PROBE :]) == 10


def test_what_loads_took_beside_themselves_is_unlearned_soon() -> None:
    """Slow steps of other requests, or kernels that were compiled beside the first load, say little of the next."""
    pace = Pace()
    pace.step(4096, 0.2)
    pace.load(64 * MIB, 0.013)
    pace.load_ended(2.0)
    assert not pace.worth(*HIT)
    for _ in range(64):
        if ask(pace, load_s=0.11):
            pace.load_ended(0.005)
    assert pace.worth(*HIT)


def test_load_that_took_longer_than_from_its_beginning_takes_nothing_beside_itself() -> None:
    """What is known of it finds its way back from there."""
    pace = Pace()
    for _ in range(1000):
        pace.load_ended(-0.5)
    assert pace.beside_s == 0.0
    pace.load_ended(0.02)
    assert pace.beside_s == pytest.approx(0.02)
