# SPDX-License-Identifier: Apache-2.0
"""Counters of the scheduler side."""

from __future__ import annotations

COUNTERS = {
    "asked_tokens": "Tokens of prompts for which the store was asked",
    "hit_tokens": "Of those, tokens that were loaded",
    "loads": "Loads that ended",
    "failed_loads": "Loads that did not bring everything: the engine computed the rest",
    "loaded_bytes": "Bytes loaded into the engine's pages, all ranks",
    "load_us": "Time from ordering a load to its report, the slowest rank, in microseconds",
    "declined": "Requests of which something was known and computed all the same, because that was expected sooner",
    "probes": "Of those, requests that loaded it all the same, so that a load is measured now and then",
    "saves": "Saves that ended",
    "published_blocks": "Blocks saved whole and handed to the node, which shows each once its parent is there",
    "abandoned_blocks": "Blocks that were copied, or to be, and given up",
    "saved_bytes": "Bytes copied from the engine's pages, all ranks",
    "left_out": "Times that a save waited for a later step because too many pages were on their way",
    "not_saved": "Blocks of requests that ended before there was room for saving them",
    "resets": "Resets of the engine's caches that reached the connector",
    "without_node": "Questions that were answered with no hit because no node was connected",
}


class Counters:
    def __init__(self) -> None:
        self.total: dict[str, int] = {}
        """Counts of the whole life."""
        self._interval: dict[str, int] = {}

    def add(self, name: str, count: int = 1) -> None:
        if count:
            self._interval[name] = self._interval.get(name, 0) + count
            self.total[name] = self.total.get(name, 0) + count

    def take(self) -> dict[str, int]:
        """Counts since the last call."""
        taken, self._interval = self._interval, {}
        return taken
