# SPDX-License-Identifier: Apache-2.0
"""Whether a load is worth its time: measured paces of the engine and of the store, on plain values."""

from __future__ import annotations

from dataclasses import dataclass

WEIGHT = 0.2
"""Share of a new measurement beside the known value."""
MIN_PREFILL_TOKENS = 128
"""Steps with fewer tokens measure how long a step takes, not how fast a prompt is computed."""
LOAD_STEPS = 2
"""Steps for which a load keeps its request back, at least."""


@dataclass
class Pace:
    """All times in seconds. Nothing measured: every load is worth it."""

    prefill_tokens_per_s: float = 0.0
    step_s: float = 0.0
    load_bytes_per_s: float = 5e9
    """From the store's memory."""

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
            self.load_bytes_per_s = _mix(self.load_bytes_per_s, bytes_ / seconds)

    def compute_s(self, tokens: int) -> float:
        """Time to compute so many tokens; 0: not known."""
        return tokens / self.prefill_tokens_per_s if self.prefill_tokens_per_s else 0.0

    def load_s(self, bytes_: int) -> float:
        return bytes_ / self.load_bytes_per_s + LOAD_STEPS * self.step_s

    def worth(self, tokens: int, bytes_: int, ready_s: float = 0.0) -> bool:
        """`ready_s`: until all blocks could be in memory."""
        computing = self.compute_s(tokens)
        return computing == 0.0 or ready_s + self.load_s(bytes_) < computing


def _mix(known: float, new: float) -> float:
    return new if known == 0.0 else known * (1 - WEIGHT) + new * WEIGHT
