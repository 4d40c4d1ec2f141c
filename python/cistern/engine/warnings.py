# SPDX-License-Identifier: Apache-2.0
"""Warnings of one engine's log: few of a kind, however often it happens and for however long the engine lives."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Protocol

AGAIN_S = 600.0
"""Time for which one warning stands for all of its kind."""


class Warn(Protocol):
    def __call__(self, kind: str, text: str) -> None:
        """`kind`: one of a bounded number, so that no block's key, count or word of a client's is part of it."""
        ...


@dataclass
class _Kind:
    said_at: float
    left_out: int = 0
    """Warnings since then."""


class Warnings:
    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._kinds: dict[str, _Kind] = {}

    def __call__(self, kind: str, text: str) -> None:
        """Says the first of a kind, and AGAIN_S after one was said the next, with how many were left out between."""
        now, before = time.monotonic(), self._kinds.get(kind)
        if before is not None and now - before.said_at < AGAIN_S:
            before.left_out += 1
            return
        self._kinds[kind] = _Kind(now)
        more = f" (and {before.left_out} like it before)" if before is not None and before.left_out else ""
        self._logger.warning("cistern: %s%s", text, more)
