# SPDX-License-Identifier: Apache-2.0
"""One process's connection to the node, kept up by a thread of its own.

The engine's thread never waits for it: it reads `joined` (None while there is no session) and hands over what has
to be told to the store with `do()`. A node that goes away is looked for until it is back.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .. import Error, Gone, Group, Invalid, Mismatch, Namespace, NamespaceSpec, Store, TooLate
from .cpus import unbound
from .node import NodeStarter
from .orders import GroupShape

logger = logging.getLogger("vllm.cistern")

CALL_US = 30_000_000
"""Long, since only the link's thread waits: a node that is gone is noticed at once, one on a loaded host is slow."""
LOOK_AGAIN_S = 0.05
LOOK_AGAIN_MOST_S = 5.0
ASK_ALIVE_S = 1.0
LATE_MOST = 3
"""How many calls in a row may go unanswered before what they were about is given up."""


@dataclass(frozen=True)
class Target:
    """What to be connected to, and what a worker needs to take part. A higher number replaces a lower."""

    number: int
    socket: str
    tenant: str
    owner: bytes | None
    """None: become an owner."""
    fields: tuple[tuple[tuple[str, str], ...], ...]
    """One list for each namespace, by its number: the base model first, then adapters."""
    groups: tuple[GroupShape, ...]
    block_tokens: int
    trusted_keys: bool
    flash_write: str
    flash_admit: str

    def spec(self, number: int) -> NamespaceSpec:
        return NamespaceSpec(
            fields=dict(self.fields[number]),
            groups=tuple(
                Group(one.name, "window" if one.reach == "window" else "full", one.window_tokens, one.part_bytes)
                for one in self.groups
            ),
            block_tokens=self.block_tokens,
            trusted_keys=self.trusted_keys,
            flash_write=self.flash_write,
            flash_admit=self.flash_admit,
        )


@dataclass(frozen=True)
class Joined:
    """A session that stands."""

    target: Target
    store: Store
    namespaces: list[Namespace] = field(default_factory=list)
    count: int = 0
    """How many times this link has connected."""


class Link:
    def __init__(self, starter: NodeStarter | None = None) -> None:
        self.joined: Joined | None = None
        self.refused = ""
        """Why the node will not have us, where trying again is in vain until the target changes."""
        self.failures = 0
        """Attempts since the target was last set or reached that found no node. One that is slow is there."""
        self._starter = starter
        self._target: Target | None = None
        self._work: deque[Callable[[Joined], object]] = deque()
        self._wake = threading.Condition()
        self._busy = False
        self._ending = False
        self._count = 0
        self._late = 0
        self._warned = ""
        self._thread = threading.Thread(target=self._run, name="cistern-link", daemon=True)
        with unbound():  # and so is a node that it starts
            self._thread.start()

    # ------------------------------------------------------------------ any thread

    def aim(self, target: Target) -> None:
        with self._wake:
            if self._target is None or target.number > self._target.number:
                self._target = target
                self.refused, self.failures = "", 0
                self._wake.notify_all()

    @property
    def aimed(self) -> int:
        target = self._target
        return 0 if target is None else target.number

    def do(self, work: Callable[[Joined], object]) -> None:
        """Has the link's thread do it, in the order given, with the session that stands then. Dropped where
        none does: what it was about is gone with the session. Done again where the node did not answer in time."""
        with self._wake:
            self._work.append(work)
            self._wake.notify_all()

    def lost(self, joined: Joined) -> None:
        """Somebody found that the session is gone."""
        with self._wake:
            if self.joined is joined:
                self.joined = None
                self._wake.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Waits until all that was handed over is done; False after the time."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._work and not self._busy, timeout_s)

    def wait_joined(self, number: int, timeout_s: float) -> Joined | None:
        """For tests and for `required`: waits for a session of that number or a later one."""

        def there() -> bool:
            return self.refused != "" or (self.joined is not None and self.joined.target.number >= number)

        with self._wake:
            self._wake.wait_for(there, timeout_s)
        return self.joined

    def close(self, timeout_s: float = 2.0) -> None:
        self.flush(timeout_s)
        with self._wake:
            self._ending = True
            self._wake.notify_all()
        self._thread.join(timeout_s)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        pause, tried = LOOK_AGAIN_S, None
        while True:
            with self._wake:
                if self._ending:
                    break
                joined, target = self.joined, self._target
                if target is not tried:
                    pause, tried = LOOK_AGAIN_S, target
                current = joined is not None and target is not None and joined.target.number == target.number
                if target is None or self.refused or (current and not self._work):
                    if not joined:
                        self._work.clear()
                        self._wake.notify_all()
                    told = self._wake.wait(ASK_ALIVE_S if current else None)
                    if told or not current:
                        continue
                work = self._work.popleft() if current and self._work else None
                self._busy = work is not None
            if current and joined is not None:
                self._one(joined, work)
                continue
            with self._wake:
                self._work.clear()
                self._wake.notify_all()
            if self._connect(target):
                pause = LOOK_AGAIN_S
                continue
            with self._wake:
                if not self._ending and target is self._target and not self.refused:
                    self._wake.wait(pause)
            pause = min(pause * 1.5, LOOK_AGAIN_MOST_S)
        joined = self.joined
        self.joined = None
        if joined is not None:
            joined.store.close()

    def _one(self, joined: Joined, work: Callable[[Joined], object] | None) -> None:
        try:
            if work is None:
                joined.store.status(deadline_us=CALL_US)
            else:
                work(joined)
            self._late = 0
        except Gone:
            self.lost(joined)
        except TooLate as error:
            self._say(f"the node answered: {error}")
            self._late += 1
            if work is not None and self._late < LATE_MOST and not self._ending:
                with self._wake:
                    self._work.appendleft(work)
        except Error as error:
            self._say(f"the node answered: {error}")
        finally:
            with self._wake:
                self._busy = False
                self._wake.notify_all()

    def _connect(self, target: Target | None) -> bool:
        assert target is not None
        before = self.joined
        try:
            if before is not None and before.target.socket == target.socket and before.target.owner == target.owner:
                store = before.store
            else:
                store = Store.connect(
                    target.socket, tenant=target.tenant, owner=target.owner, deadline_us=CALL_US
                )
            namespaces = [
                store.attach(target.spec(number), deadline_us=CALL_US) for number in range(len(target.fields))
            ]
        except Gone as error:
            self.joined = None
            self.failures += 1
            self._start_node(target, error)
            return False
        except (Invalid, Mismatch) as error:
            self.refused = str(error)
            self._say(f"no KV is shared: {error}")
            return False
        except Error as error:
            self.joined = None
            self.failures += not isinstance(error, TooLate)
            self._say(f"the node at {target.socket} answered: {error}")
            return False
        if self._starter is not None:
            self._starter.connected()
        self._count += 1
        with self._wake:
            self.joined = Joined(target, store, namespaces, self._count)
            self._warned, self.failures = "", 0
            self._wake.notify_all()
        return True

    def _start_node(self, target: Target, error: Error) -> None:
        if self._starter is None or target.owner is not None:
            return
        why = self._starter.failed()
        try:
            self._starter.start()
        except OSError as failure:
            why = f"no node answers at {target.socket} and none can be started: {failure}"
        if why:
            self._say(f"{why}; the engine computes until one is there")

    def _say(self, text: str) -> None:
        if text != self._warned:
            self._warned = text
            logger.warning("cistern: %s", text)
