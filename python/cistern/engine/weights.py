# SPDX-License-Identifier: Apache-2.0
"""Identity of the weights that an engine holds, found out beside it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable

from .cpus import unbound
from .files import UnknownIdentity, may_pass
from .identity import fresh_generation

NICE = 10
"""Of the thread that reads: what it finds out is worth less than a step."""


PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, *[60.0] * 9)
"""Between attempts to read files that could not be read, ten minutes of them: a share that is mounted anew, descriptors
that loaders have."""


class Weights:
    """Identity of an engine's weights. Until it is known the engine shares with itself alone, in its own prefix cache;
    where it cannot be known, it shares through the store, under a name that nobody else has."""

    def __init__(self, find: Callable[[], str], logger: logging.Logger) -> None:
        """`find`: reads what there is to read, for minutes if need be; raises UnknownIdentity."""
        self._find = find
        self._logger = logger
        self._known = threading.Event()
        self._value = ""
        with unbound(beside=True):
            threading.Thread(target=self._run, name="cistern-weights", daemon=True).start()

    @property
    def value(self) -> str | None:
        """The identity; None while it is being found out."""
        return self._value if self._known.is_set() else None

    def wait(self, timeout_s: float) -> bool:
        """Waits until the identity is known; False after the time."""
        return self._known.wait(timeout_s)

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        try:
            self._value = self._found()
        except Exception as error:  # of any kind: the engine goes on
            why = str(error) if isinstance(error, UnknownIdentity) else repr(error)
            self._logger.warning("cistern: this engine shares its KV with no other: %s", why)
            self._value = f"unknown, {fresh_generation()}"
        self._known.set()

    def _found(self) -> str:
        for pause_s in PAUSES_S:
            try:
                return self._find()
            except (OSError, UnknownIdentity) as error:
                if not may_pass(error):
                    raise
                self._logger.info("cistern: files of the weights are read again in %g s: %s", pause_s, error)
            time.sleep(pause_s)
        return self._find()
