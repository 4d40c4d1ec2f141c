# SPDX-License-Identifier: Apache-2.0
"""Changes of an engine's weights while it runs, on the scheduler side: decisions on plain values.

A rank that finds its weights changed names the step at whose beginning it found it: what earlier steps computed is of
the former weights. Its pages may still be found in the engine's own prefix cache, until that is emptied.
"""

from __future__ import annotations


class WeightChanges:
    def __init__(self) -> None:
        self.step = 0
        """The step at which the last change was found: ranks take no order of a scheduler that has not heard of it."""
        self.asks = False
        """Whether the next step's orders ask the ranks to look at their weights."""
        self._asked = 0
        """The last step whose orders ask; its answer is not here yet."""
        self._emptied = 0
        """The first step after the engine's own prefix cache was emptied."""
        self._forked = 0
        """The first step of the present generation."""

    def emptied(self, next_step: int) -> None:
        """The engine's own prefix cache was emptied, before that step: perhaps because of a change."""
        self._emptied = next_step
        self.asks = True

    def forked(self, next_step: int) -> None:
        """A fresh generation begins with that step."""
        self._forked = next_step

    def ask(self, step: int) -> bool:
        """Whether this step's orders ask the ranks."""
        asks, self.asks = self.asks, False
        if asks:
            self._asked = step
        return asks

    def answered(self, step: int, changed_at: int) -> bool:
        """A rank's report of a step, with the step at which it last found a change, or 0. True where a fresh generation
        is due: the present one has steps of before."""
        if step >= self._asked:
            self._asked = 0
        if changed_at <= self.step:
            return False
        self.step = changed_at
        return changed_at > self._forked

    @property
    def awaited(self) -> bool:
        """Whether the ranks are being asked."""
        return self.asks or self._asked > 0

    @property
    def doubtful(self) -> bool:
        """Whether the ranks are being asked, or pages of former weights may be in use: nothing is shared."""
        return self.awaited or self._emptied < self.step
