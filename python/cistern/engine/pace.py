# SPDX-License-Identifier: Apache-2.0
"""Whether a load is worth its time: measured paces of the engine and of the store, on plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..load import LoadRun, LoadSource, Prefill, plan_load

WEIGHT = 0.2
"""Share of a new measurement beside the known value."""
SOONER_WEIGHT = 0.7
"""The same for a load that was sooner than expected: a wrong decline costs until the next probe."""
OUTLIER = 8.0
"""A load counts as at most so many times as long as expected: one that met a busy host says little of the next."""
SPREAD = 0.25
"""Sizes of loads tell bandwidth from latency where their deviation is this share of their mean."""
MIN_PREFILL_TOKENS = 128
"""Steps with fewer tokens measure how long a step takes, not how fast a prompt is computed."""
LOAD_STEPS = 2
"""Steps for which a load keeps its request back, at least."""
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
class Pace:
    """All times in seconds. Nothing measured: every load is worth it."""

    prefill_tokens_per_s: float = 0.0
    step_s: float = 0.0
    loads: LoadTime = field(default_factory=LoadTime)
    """From the store's memory."""
    _declined: int = 0
    """Since the last load."""
    _probe_at: int = FIRST_PROBE

    def step(self, tokens: int, seconds: float) -> None:
        """Measures a step that computed `tokens`."""
        if seconds <= 0 or tokens <= 0:
            return
        if tokens >= MIN_PREFILL_TOKENS:
            self.prefill_tokens_per_s = _mix(self.prefill_tokens_per_s, tokens / seconds)
        else:
            self.step_s = _mix(self.step_s, seconds)

    def load(self, bytes_: int, seconds: float) -> None:
        if bytes_ > 0 and seconds > 0:
            self.loads.add(bytes_, seconds)

    def compute_s(self, tokens: int) -> float:
        """Time to compute so many tokens; 0: not known."""
        return tokens / self.prefill_tokens_per_s if self.prefill_tokens_per_s else 0.0

    def worth(self, tokens: int, bytes_: int, ready_s: float = 0.0) -> bool:
        """`ready_s`: until all blocks could be in memory."""
        if self.prefill_tokens_per_s == 0.0:
            return True
        # All of it or nothing: one block, which its source has worked for until it is ready.
        source = LoadSource(max(0.0, self.loads.latency_s) * 1e6, ready_s * 1e6, bytes_ * self.loads.s_per_byte * 1e6)
        prefill = Prefill(1e6 / self.prefill_tokens_per_s, block_tokens=tokens,
                          load_overhead_us=LOAD_STEPS * self.step_s * 1e6)
        return bool(plan_load([LoadRun(1, 0)], [source], prefill).loads)

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


def _mix(known: float, new: float) -> float:
    return new if known == 0.0 else known * (1 - WEIGHT) + new * WEIGHT
