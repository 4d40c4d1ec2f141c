# SPDX-License-Identifier: Apache-2.0
"""One process's connection to the node, kept up by a thread of its own.

The engine's thread never waits for it: it reads `session` (None while there is none) and submits calls of the store.
A node that went away is looked for until it is back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from .. import Busy, Denied, Error, Gone, Invalid, IoError, Mismatch, Namespace, Store, TooLate, Unavailable
from .cpus import unbound
from .node import NodeStarter, socket_path
from .session import Session, SessionSpec
from .warnings import Warnings

CALL_US = 30_000_000
"""Deadline of a call; long, since only this thread waits: a node that went away is noticed at once, and one on a loaded
host is slow."""
RETRY_S = 0.05
MAX_RETRY_S = 5.0
REFUSED_AGAIN_S = 60.0
"""Time after which a node is asked again that refused the specification: another release may stand there by then."""
ALIVE_CHECK_S = 1.0
MAX_LATE_CALLS = 3
"""Calls in a row that may go unanswered before one of them is given up."""
MAX_WORK = 2048
"""Calls that wait behind a node that does not answer: an engine goes on loading from its memory meanwhile."""

Work = Callable[[Session], object]


class Connection:
    def __init__(self, logger: logging.Logger, starter: NodeStarter | None = None) -> None:
        self.session: Session | None = None
        self.refusal = ""
        """Why the node refuses the specification: nothing is waited for until that, or the node, is another one."""
        self.failures = 0
        """Attempts since the specification was last set or reached that found no node. A slow node is found."""
        self.start_failure = ""
        """Why no node can be started here; empty as soon as one answers."""
        self.lacking = ""
        """Why the node gave the session that stands no further namespace; empty as soon as it does."""
        self.when_lost: list[Callable[[Session], object]] = []
        """Called by the thread for a session that was lost, or gave way to another node's or owner's, and whose store
        is closed: to be let go of is what else keeps its node's memory mapped, as leases and what moves pages do."""
        self._logger = logger
        self._warn = Warnings(logger)
        self._starter = starter
        self._lost: list[Session] = []
        """Sessions whose stores are still to be closed."""
        self._met: Store | None = None
        """Keeps the node until the first session stands: one without clients ends."""
        self._spec: SessionSpec | None = None
        self._gone_owner: bytes | None = None
        """Of a rank: the owner that went with its node. Nobody is asked for it before open() names it again, or
        another one."""
        self._work: deque[tuple[Work, bool]] = deque()
        """With each whether it is kept."""
        self._kept: deque[tuple[Work, bool]] = deque(maxlen=MAX_WORK)
        """Kept work that was not done, to be tried again at _kept_at."""
        self._kept_at = 0.0
        self._wake = threading.Condition()
        self._busy = False
        self._ending = False
        self._connects = 0
        self._late_calls = 0
        self._thread = threading.Thread(target=self._run, name="cistern-connection", daemon=True)
        with unbound():  # a node that the thread starts is not bound either
            self._thread.start()

    # ------------------------------------------------------------------ any thread

    def open(self, spec: SessionSpec) -> None:
        """Has the thread open this session, in place of any with a lower number; of the same number, with more
        namespaces: attach those to the session that stands. Of a rank, also says that the owner stands."""
        with self._wake:
            before, self._gone_owner = self._spec, None
            if before is None or spec.number > before.number:
                self._spec = spec
                self.refusal, self.failures = "", 0
            elif spec.number == before.number and len(spec.fields) > len(before.fields):
                self._spec = spec
            self._wake.notify_all()

    def submit(self, work: Work, kept: bool = False) -> None:
        """Has the thread do this work, in the order submitted, with the session that stands then. Work is dropped
        where none stands (its blocks went with the session), and where MAX_WORK waits already; done before another
        session is opened in place of the one that stands, and repeated where the node did not answer in time.
        `kept`: what would be dropped, or is refused for now (Busy, Unavailable, IoError: a disk that is full), is tried
        again ALIVE_CHECK_S later or more, by the session that stands then, behind what was submitted meanwhile."""
        with self._wake:
            if len(self._work) < MAX_WORK:
                self._work.append((work, kept))
            else:
                self._put_back([(work, kept)])
            self._wake.notify_all()

    def lose(self, session: Session) -> None:
        """Says that a call found this session gone, or one of its namespaces dropped."""
        with self._wake:
            if self.session is session:
                self._part_from(session)
                self._wake.notify_all()

    def _part_from(self, session: Session | None) -> None:
        """Under the lock: none stands any more."""
        self.session = None
        if session is not None:
            self._lost.append(session)

    def flush(self, timeout_s: float) -> bool:
        """Waits until all submitted work is done; False after the time."""
        with self._wake:
            return self._wake.wait_for(lambda: not self._work and not self._busy, timeout_s)

    def wait_session(self, number: int, timeout_s: float) -> Session | None:
        """For tests: waits for a session of that number or a later one."""

        def there() -> bool:
            return self.refusal != "" or (self.session is not None and self.session.spec.number >= number)

        with self._wake:
            self._wake.wait_for(there, timeout_s)
        return self.session

    def close(self, timeout_s: float = 2.0) -> None:
        self.flush(timeout_s)
        with self._wake:
            self._ending = True
            self._wake.notify_all()
        self._thread.join(timeout_s)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        pause, tried, again_at = RETRY_S, None, 0.0
        while True:
            self._let_go()
            with self._wake:
                if self._ending:
                    break
                if self._lost:
                    continue
                session, spec = self.session, self._spec
                if spec is not tried:
                    pause, tried, again_at = RETRY_S, spec, 0.0
                current = session is not None and spec is not None and session.spec.number == spec.number
                whole = current and _namespaces(session) == _namespaces(spec)
                if session is None and self._work:
                    self._put_back(self._work)
                    self._work.clear()
                    self._wake.notify_all()
                if session is not None and self._kept and time.monotonic() >= self._kept_at:
                    self._work.extend(self._kept)
                    self._kept.clear()
                work = self._work.popleft() if self._work else None
                self._busy = work is not None
                stands = whole or (spec is None and self._met is not None)
                if spec is None:
                    idle = self._starter is None
                else:
                    idle = session is None and spec.owner is not None and spec.owner == self._gone_owner
                left = again_at - time.monotonic()
                if work is None and (stands or idle or left > 0):
                    told = self._wake.wait(ALIVE_CHECK_S if stands else left if left > 0 else None)
                    if told or not stands:
                        continue
            if session is not None and (work is not None or whole):
                self._call(session, work)
            elif self._attempt(session if current else None, spec):
                pause = RETRY_S
            else:
                again_at = time.monotonic() + (REFUSED_AGAIN_S if self.refusal else pause)
                pause = min(pause * 1.5, MAX_RETRY_S)
        with self._wake:
            self._part_from(self.session)
        self._let_go()
        self._part()

    def _let_go(self) -> None:
        """Closes the stores of sessions that were lost: whoever still refers to one holds no memory of its node, which
        could otherwise not be started again where there is room for one arena."""
        with self._wake:
            lost, self._lost = self._lost, []
        for session in lost:
            try:
                session.store.close()
                for told in self.when_lost:
                    told(session)
            except Exception as error:  # of any kind: the thread goes on
                self._warn("lost", f"a session was not let go of: {error!r}")

    def _attempt(self, session: Session | None, spec: SessionSpec | None) -> bool:
        """One that takes time where the node is not there: towards this session as it is specified."""
        try:
            if spec is None:
                return self._meet()
            return self._connect(spec) if session is None else self._extend(session, spec)
        except Exception as error:  # of any kind: the thread goes on, since nothing is shared without it
            self._warn("attempt", f"an attempt to reach the node was given up: {error!r}")
            return False

    def _meet(self) -> bool:
        """Has a node started before anything is known of the session, so that it has its memory by then: it takes it
        while it serves, a GB or two a second. Where that was done, looks whether the node lives."""
        assert self._starter is not None
        try:
            if self._met is not None:
                self._met.report()
                self._starter.keep_log_short()
                return True
            self._met = self._starter.meet()
        except Gone:
            self._part()
            return False
        except (Error, OSError):  # told when the node is needed
            return False
        return self._met is not None

    def _part(self) -> None:
        if self._met is not None:
            self._met.close()
            self._met = None

    def _put_back(self, works: Iterable[tuple[Work, bool]]) -> None:
        """What is not done now, under the lock: it is tried again if it is kept."""
        kept = [one for one in works if one[1]]
        if kept:
            self._kept.extend(kept)
            self._kept_at = time.monotonic() + ALIVE_CHECK_S

    def _call(self, session: Session, work: tuple[Work, bool] | None) -> None:
        """Does the work, or asks whether the node is alive."""
        undone = False
        try:
            if work is None:
                session.store.report()  # of nothing: it asks the kernel alone, and the node has no work by it
            else:
                work[0](session)
            self._late_calls = 0
            if self._starter is not None:
                self._starter.keep_log_short()
        except Gone:
            self._missed(session, session.spec)
            undone = True
        except TooLate as error:
            self._warn(f"call {type(error).__name__}", f"the node answered: {error}")
            self._late_calls += 1
            undone = self._late_calls >= MAX_LATE_CALLS
            if work is not None and not undone and not self._ending:
                with self._wake:
                    self._work.appendleft(work)
        except Error as error:
            self._warn(f"call {type(error).__name__}", f"the node answered: {error}")
            undone = isinstance(error, (Busy, Unavailable, IoError))
        except Exception as error:  # of any kind: the thread goes on, since nothing is published without it
            self._warn("call", f"a call of the node was given up: {error!r}")
        finally:
            with self._wake:
                if work is not None and undone:
                    self._put_back([work])
                self._busy = False
                self._wake.notify_all()

    def _extend(self, session: Session, spec: SessionSpec) -> bool:
        """Attaches the namespaces that the session lacks, as far as the node gives them."""
        try:
            namespaces = self._attach(session.store, spec, session.namespaces)
        except Gone:
            self._missed(session, spec)
            return False
        if len(namespaces) > len(session.namespaces):
            with self._wake:
                if self.session is session:
                    self.session = _standing(spec, session.store, namespaces, session.connects)
        return len(namespaces) == len(spec.fields)

    def _attach(self, store: Store, spec: SessionSpec, namespaces: list[Namespace]) -> list[Namespace]:
        """These namespaces of the specification and those behind them; where the node has no room for one, those
        before it. Raises where the base model has none."""
        attached = list(namespaces)
        for number in range(len(attached), len(spec.fields)):
            try:
                attached.append(store.attach(spec.namespace_spec(number), deadline_us=CALL_US))
            except Error as error:
                if isinstance(error, Gone) or number == 0:
                    raise
                self.lacking = str(error)
                self._warn("adapter", f"an adapter's KV is not shared: {error}")
                return attached
        self.lacking = ""
        return attached

    def _connect(self, spec: SessionSpec) -> bool:
        before = self.session
        try:
            if before is not None and before.spec.socket == spec.socket and before.spec.owner == spec.owner:
                store = before.store
            else:
                store = Store.connect(
                    spec.socket, tenant=spec.tenant, owner=spec.owner, deadline_us=CALL_US, node_user=spec.node_user,
                    engine_name=spec.engine_name,
                )
            if self._starter is not None:
                self._starter.connected()
            namespaces = self._attach(store, spec, [])
        except Gone:
            self._missed(before, spec)
            self._part()
            self.refusal = ""
            self.failures += 1
            self._start_node(spec)
            return False
        except (Invalid, Mismatch) as error:
            self._warn("refused", f"no KV is shared: {error}")
            self.refusal = str(error)
            return False
        except Error as error:
            with self._wake:
                self._part_from(before)
                if isinstance(error, Denied):
                    self._gone_owner = spec.owner
            self.failures += not isinstance(error, TooLate)
            self._warn(f"connect {type(error).__name__}", f"the node at {socket_path(spec)} answered: {error}")
            return False
        self._part()
        self._connects += 1
        with self._wake:
            self.session = _standing(spec, store, namespaces, self._connects)
            if before is not None and before.store is not store:
                self._lost.append(before)
            self.failures, self.start_failure, self.refusal = 0, "", ""
            self._wake.notify_all()
        return True

    def _missed(self, session: Session | None, spec: SessionSpec) -> None:
        """The node is gone, and its owners with it."""
        with self._wake:
            if self.session is session:
                self._part_from(session)
            self._gone_owner = spec.owner

    def _start_node(self, spec: SessionSpec) -> None:
        if self._starter is None or spec.owner is not None:
            return
        why = self._starter.failed()
        try:
            self._starter.start()
        except OSError as failure:
            why = f"no node answers at {socket_path(spec)} and none can be started: {failure}"
        if why and not self.start_failure:  # said once: the numbers in it may be others at the next attempt
            self._logger.error("cistern: %s; the engine computes until a node is there", why)
        self.start_failure = why or self.start_failure


def _standing(spec: SessionSpec, store: Store, namespaces: list[Namespace], connects: int) -> Session:
    """The session by this specification, as far as it has namespaces."""
    return Session(replace(spec, fields=spec.fields[: len(namespaces)]), store, namespaces, connects)


def _namespaces(of: Session | SessionSpec | None) -> int:
    if of is None:
        return 0
    return len(of.namespaces if isinstance(of, Session) else of.fields)
