# SPDX-License-Identifier: Apache-2.0
"""Whether a load is worth its time: measured paces of the engine and of the store, on plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations
from math import ceil

from ..load import LoadPlan, LoadRun, LoadSource, Prefill, plan_load

WEIGHT = 0.2
"""Share of a new measurement beside the known value."""
SOONER_WEIGHT = 0.7
"""The same for a load that was sooner than expected: a wrong decline costs until the next probe."""
OUTLIER = 8.0
"""A load counts as at most so many times as long as expected: one that met a busy host says little of the next."""
SPREAD = 0.25
"""Sizes of loads tell bandwidth from latency where their deviation is this share of their mean."""
PARTS = 3
"""Of a step's time."""
KEPT = 0.97
"""Share of what earlier steps said that stays with each new one."""
DOUBT = (1e-2, 1e-5, 1e-2)
"""By so much each part is held to be less than the steps say: where all were alike, tokens take the time."""
LOAD_STEPS = 2
"""Steps for which a load keeps its request back, as long as none was measured."""
FIRST_PROBE, MAX_PROBE = 4, 256
"""Declines until one is loaded all the same, at first and at last: what is declined is not measured otherwise."""


@dataclass
class LoadTime:
    """Time of a load: a latency, and its bytes at a bandwidth. From recent loads by least squares; where they were all
    about as large, what the known bandwidth does not explain is latency."""

    latency_s: float = 0.0
    s_per_byte: float = 1 / 5e9
    _bytes: float = 0.0
    _seconds: float = 0.0
    _variance: float = 0.0
    """Of the bytes."""
    _covariance: float = 0.0

    def of(self, bytes_: float) -> float:
        return self.latency_s + bytes_ * self.s_per_byte

    def add(self, bytes_: int, seconds: float) -> None:
        expected = self.of(bytes_)
        seconds = min(seconds, OUTLIER * expected)
        if self._bytes == 0.0:
            self._bytes, self._seconds = float(bytes_), seconds
        else:
            weight = SOONER_WEIGHT if seconds < expected else WEIGHT
            more_bytes = bytes_ - self._bytes
            more_seconds = seconds - self._seconds
            self._bytes += weight * more_bytes
            self._seconds += weight * more_seconds
            self._variance = (1 - weight) * (self._variance + weight * more_bytes * more_bytes)
            self._covariance = (1 - weight) * (self._covariance + weight * more_bytes * more_seconds)
        if self._covariance > 0 and self._variance > (SPREAD * self._bytes) ** 2:
            self.s_per_byte = self._covariance / self._variance
        self.s_per_byte = min(self.s_per_byte, self._seconds / self._bytes)
        self.latency_s = self._seconds - self._bytes * self.s_per_byte


@dataclass
class StepTime:
    """Time of a step that computes: what every step takes, its tokens', and how far they look back: tokens [a, b) of a
    prompt are b - a of them, and b**2 - a**2 squares. From recent steps by least squares of the relative errors; no
    part is below zero."""

    longest: int = 0
    """Tokens of the longest step: a prompt of more takes several."""
    _products: tuple[tuple[float, ...], ...] = ((0.0,) * PARTS,) * PARTS
    _sums: tuple[float, ...] = (0.0,) * PARTS
    _parts: tuple[float, ...] | None = (0.0,) * PARTS
    """Seconds of each; None: to be worked out anew."""

    def add(self, tokens: int, squares: float, seconds: float) -> None:
        row = (1 / seconds, tokens / seconds, squares / seconds)
        self._products = tuple(
            tuple(KEPT * old + one * other for old, other in zip(line, row, strict=True))
            for line, one in zip(self._products, row, strict=True)
        )
        self._sums = tuple(KEPT * old + one for old, one in zip(self._sums, row, strict=True))
        self.longest = max(self.longest, tokens)
        self._parts = None

    def parts(self) -> tuple[float, ...]:
        """Seconds of a step, of a token, of a square."""
        if self._parts is None:
            self._parts = min(
                (fit for count in range(1, PARTS + 1) for chosen in combinations(range(PARTS), count)
                 if min(fit := self._fit(chosen)) >= 0),
                key=self._error,
            )
        return self._parts

    def of(self, tokens: int, begin: int = 0) -> float:
        """Of computing so many tokens behind the first `begin` of a prompt."""
        if tokens <= 0 or self.longest == 0:
            return 0.0
        step_s, token_s, square_s = self.parts()
        return -(-tokens // self.longest) * step_s + tokens * token_s + tokens * (2 * begin + tokens) * square_s

    def _doubted(self, at: int) -> float:
        return self._products[at][at] * (1 + DOUBT[at])

    def _error(self, parts: tuple[float, ...]) -> float:
        mixed = sum(self._products[i][j] * parts[i] * parts[j] for i in range(PARTS) for j in range(PARTS) if i != j)
        alone = sum(self._doubted(i) * parts[i] * parts[i] for i in range(PARTS))
        return alone + mixed - 2 * sum(one * part for one, part in zip(self._sums, parts, strict=True))

    def _fit(self, chosen: tuple[int, ...]) -> tuple[float, ...]:
        """The least squares where the other parts take no time."""
        rows = [
            [self._doubted(i) if i == j else self._products[i][j] for j in chosen] + [self._sums[i]] for i in chosen
        ]
        for i, row in enumerate(rows):
            for j, other in enumerate(rows):
                if i != j and row[i]:
                    share = other[i] / row[i]
                    rows[j] = [one - share * two for one, two in zip(other, row, strict=True)]
        parts = [0.0] * PARTS
        for i, at in enumerate(chosen):
            parts[at] = rows[i][-1] / rows[i][i] if rows[i][i] else 0.0
        return tuple(parts)


@dataclass
class Pace:
    """All times in seconds. Nothing measured: every load is worth it."""

    steps: StepTime = field(default_factory=StepTime)
    loads: LoadTime = field(default_factory=LoadTime)
    """From the store's memory."""
    beside_s: float = 0.0
    """What a load takes beside itself: its order waits for a step, and its end for another."""
    _declined: int = 0
    """Since the last load."""
    _probe_at: int = FIRST_PROBE

    def step(self, tokens: int, seconds: float, squares: float = 0.0) -> None:
        """Measures a step that computed `tokens`."""
        if seconds > 0 and tokens > 0:
            self.steps.add(tokens, squares, seconds)

    def load(self, bytes_: int, seconds: float) -> None:
        if bytes_ > 0 and seconds > 0:
            self.loads.add(bytes_, seconds)

    def load_ended(self, beside_s: float) -> None:
        """Measures what a load took beside itself."""
        beside_s = max(0.0, beside_s)  # else what is known could go below zero, and on from there
        known = self.beside_s or beside_s
        weight = SOONER_WEIGHT if beside_s < known else WEIGHT
        self.beside_s = known + weight * (min(beside_s, OUTLIER * known) - known)

    def compute_s(self, tokens: int, begin: int = 0) -> float:
        """Time to compute so many tokens behind the first `begin`; 0: not known."""
        return self.steps.of(tokens, begin)

    def worth(self, tokens: int, bytes_: int, ready_s: float = 0.0, begin: int = 0, tail: int = 0) -> bool:
        """Of a load of so many tokens behind the first `begin`, with `tail` tokens to compute behind it. `ready_s`:
        until all its blocks could be in memory."""
        return self.steps.longest == 0 or bool(self._plan(tokens, bytes_, ready_s, begin, tail).loads)

    def first_token_s(
        self, tokens: int, bytes_: int, ready_s: float = 0.0, begin: int = 0, tail: int = 0, loads: bool = True
    ) -> float:
        """Expected, from now on, of the same request; `loads`: where it is worth it. 0: nothing was measured."""
        if self.steps.longest == 0:
            return 0.0
        plan = self._plan(tokens, bytes_, ready_s, begin, tail)
        computed, us = (tail, plan.first_token_us) if loads and plan.loads else (tokens + tail, plan.compute_us)
        # The plan knows of steps by the token; what is computed takes whole ones.
        step_s, steps = self.steps.parts()[0], computed / self.steps.longest
        return us / 1e6 + step_s * (ceil(steps) - steps)

    def _plan(self, tokens: int, bytes_: int, ready_s: float, begin: int, tail: int) -> LoadPlan:
        step_s, token_s, square_s = self.steps.parts()
        # All of it or nothing: one block, which its source has worked for until it is ready. Its tokens look back at
        # what is computed already too.
        source = LoadSource(max(0.0, self.loads.latency_s) * 1e6, ready_s * 1e6, bytes_ * self.loads.s_per_byte * 1e6)
        prefill = Prefill(
            (token_s + step_s / self.steps.longest + 2 * begin * square_s) * 1e6, square_s * 1e6,
            block_tokens=max(1, tokens), tail_tokens=tail,
            load_overhead_us=(self.beside_s or LOAD_STEPS * step_s) * 1e6,
        )
        return plan_load([LoadRun(int(tokens > 0), 0)], [source], prefill)

    def decline(self) -> bool:
        """Counts a hit in memory that is not worth its load. True: it is to be loaded all the same, as a probe. Probes
        become rarer as long as they change nothing."""
        self._declined += 1
        if self._declined < self._probe_at:
            return False
        self._declined, self._probe_at = 0, min(2 * self._probe_at, MAX_PROBE)
        return True

    def accept(self) -> None:
        """Counts a hit that is worth its load."""
        self._declined, self._probe_at = 0, FIRST_PROBE
