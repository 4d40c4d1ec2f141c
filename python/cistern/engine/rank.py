# SPDX-License-Identifier: Apache-2.0
"""One rank of any engine: carries out orders and reports each exactly once, whatever happens to the node."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .. import Code, Done, Gone
from .connection import Connection
from .cpus import unbound
from .devices import HOST, isa_of, make_mover, take_staging
from .facts import ConfigurationError, EngineFacts, GroupFacts, host
from .layout import Layout, UnknownLayout, group_layout
from .mover import Batch, Mover, UnknownDevice
from .options import Options
from .orders import LoadOrder, LoadReport, RankFacts, RankReport, SaveOrder, SaveReport, StepOrders
from .session import Session
from .staging import NoStaging, Staging

if TYPE_CHECKING:
    from .layout import LayerCache

WAIT_FOR_SESSION_S = 2.0
"""Time that a load may wait for this rank to connect before it counts as failed."""
YIELD_S = 0.004
"""Time for which a step that computes nothing leaves its core to the copying threads, at most: the engine plans the
next such step at once, as long as anything is under way, and where its ranks are processes of their own each step costs
a turn of theirs. A request that comes meanwhile waits as long; steps that compute take longer."""


@dataclass
class _RunningOrder:
    """An order under way on this rank."""

    order: LoadOrder | SaveOrder
    session: int
    """The number of the session that it was given in."""
    began: float
    epoch: int = 0
    """Number of the engine's resets as of its order."""
    weights_step: int = 0
    """This rank's last change of weights as of its order."""
    open: int = 0
    """Transfers that are not reported yet."""
    good: int = 0
    """Leading blocks that are still good."""
    message: str = ""
    code: int = 0
    """Of the block's outcome that the message is of."""
    moved_bytes: int = 0
    took_us: int = 0


@dataclass
class _SessionTransfers:
    """The transfers of one session and their mover, until each is reported."""

    mover: Mover
    number: int
    """The session's."""
    connects: int
    """How often this rank had connected by then: one that joins its session again does so with another store."""
    running: dict[int, tuple[_RunningOrder, list[int]]] = field(default_factory=dict)
    """By the mover's number: the order, and the blocks of it that the transfer moves."""


class Rank:
    def __init__(self, options: Options, facts: EngineFacts, rank: int) -> None:
        self._options = options
        self._facts = facts
        self._rank = rank % facts.ranks
        self._per_block = tuple(group.pages_per_block for group in facts.groups)
        self._logger = logging.getLogger(facts.logger)
        self._layouts: list[Layout] = []
        self._writers: dict[str, str] = {}
        self._unfit = ""
        self._device = ""
        self._isa = ""
        self._staging: Staging | None = None
        self._moving = threading.Lock()
        """Of the list of transfers and of its movers' ends: the connection's thread ends those of a node that is
        gone."""
        self.connection = Connection(self._logger)
        self.connection.when_lost.append(self._lost)
        self._session: Session
        """The session of the newest transfers."""
        self._session_number = 0
        """Number of the newest session that the scheduler side specified."""
        self._transfers: list[_SessionTransfers] = []
        """Oldest first."""
        self._immovable = ""
        """Why nothing can move pages by the session that stands."""
        self._waiting: list[tuple[_RunningOrder, LoadOrder]] = []
        """Loads that wait for this rank to join their session."""
        self._step = 0
        self._computes = True
        self._epoch = 0
        self._look: Callable[[], bool] = lambda: False
        self._weights_changed = False
        self._weights_gone = False
        """The memory of the weights: nothing may look at them."""
        self._look_owed = False
        self._weights_step = 0
        self._begun_due = 0
        self._unsaved: StepOrders | None = None
        """Orders of the last step with a forward pass, until its saves have begun."""
        self._facts_due = True
        self._reported_session = (0, 0)
        self._save_reports: list[SaveReport] = []
        self._load_reports: list[LoadReport] = []
        self._finished: set[str] = set()
        self._failed: set[str] = set()
        self._bad_pages: set[int] = set()

    # ------------------------------------------------------------------ at start

    def register(
        self, caches: Mapping[str, LayerCache], writers: Mapping[str, str] | None = None, cpu: str = ""
    ) -> None:
        """`writers`: what of the engine writes each layer's pages: by it the same shape may hold other bytes. `cpu`:
        what its kernels ask of a CPU beside what torch's do. Where the pages cannot be moved the scheduler side is told
        why, and the engine computes; raises ConfigurationError where it is required to share."""
        self._writers = dict(writers or {})
        try:
            layouts = [
                group_layout(group.layers, caches, self._facts.pages, group.page_bytes) for group in self._facts.groups
            ]
            kinds = {tensor.device.type for layout in layouts for tensor in layout.tensors}
            if len(kinds) != 1:
                raise UnknownLayout(f"the KV caches lie on several kinds of device: {sorted(kinds)}")
            self._device = kinds.pop()
            self._staging = take_staging(self._device, layouts)
            self._isa = f"{isa_of(self._device)} {cpu if self._device == HOST else ''}".rstrip()
            self._layouts = layouts
        except (UnknownLayout, UnknownDevice, NoStaging) as error:
            if self._options.required:
                raise ConfigurationError(str(error)) from error
            self._unfit = str(error)

    def watch_weights(self, look: Callable[[], bool]) -> None:
        """`look`: whether the weights are others than at its last call, as far as can be seen of them."""
        self._look = look

    def weights_changed(self) -> None:
        """The engine has loaded weights: orders of a scheduler that has not heard of it are refused from now on."""
        self._weights_changed = True

    def weights_go(self, gone: bool = True) -> None:
        """The engine is about to take the memory of its weights away, or has brought it back."""
        self._weights_gone = gone

    def let_go_of_pages(self) -> None:
        """The engine is about to take the memory of its pages away: nothing touches them when this returns. What is
        under way is reported as failed."""
        with self._moving:
            for transfers in self._transfers:
                transfers.mover.close()
                for done in transfers.mover.poll():
                    self._done(transfers, done)
            self._transfers.clear()
        waiting, self._waiting = self._waiting, []
        for running, _ in waiting:
            self._end_load(running, 0, "the engine has taken the memory of its pages away")

    def _rank_facts(self) -> RankFacts:
        return RankFacts(
            rank=self._rank,
            host=host(),
            device=self._device,
            isa=self._isa,
            page_bytes=tuple(layout.page_bytes for layout in self._layouts),
            layout=tuple(self._meaning(*one) for one in zip(self._facts.groups, self._layouts, strict=False)),
            unfit=self._unfit,
        )

    def _meaning(self, group: GroupFacts, layout: Layout) -> str:
        writers = dict.fromkeys(self._writers[layer] for layer in group.layers if layer in self._writers)
        return f"{layout.text} {' '.join(writers)}".rstrip()

    # ------------------------------------------------------------------ a step

    def begin(self, orders: StepOrders) -> None:
        """Before the forward pass. Saves of a step without one begin here: an engine may call nothing more in it. So do
        those of the step before, where the engine did not call save() after its forward pass, as vLLM's model runner V1
        on every pipeline stage but the last when it speculates."""
        if self._unsaved is not None:
            self.save(self._unsaved)
        self._step = orders.step if orders.saves or orders.timed else 0
        self._computes = orders.computes
        self._epoch = max(self._epoch, orders.epoch)
        self._look_owed |= orders.looks
        if (self._weights_changed or self._look_owed) and not self._weights_gone:
            # Both are asked: a load that was noticed is what the next look compares with.
            if self._look() or self._weights_changed:
                self._weights_step = orders.step
            self._weights_changed = self._look_owed = False
            self._begun_due = orders.step
        if orders.spec is not None and orders.spec.number >= self._session_number:
            self._session_number = orders.spec.number
            self.connection.open(orders.spec)
        for order in orders.failed:
            self._end_load(self._running(order, orders), 0, "the engine was reset")
        for order in orders.loads:
            self._waiting.append((self._running(order, orders), order))
        self._start_waiting()
        if orders.computes:
            self._unsaved = orders
        else:
            self.save(orders)

    def save(self, orders: StepOrders) -> None:
        """After the forward pass was launched."""
        self._unsaved = None
        for order in orders.saves:
            running = self._running(order, orders)
            transfers = self._current_transfers()
            if order.invalid:
                self._end_save(running, 0, "")
                continue
            if self._is_outdated(running):
                self._end_save(running, 0, "the weights have changed")
                continue
            if transfers is None or not self._stands(transfers, running):
                self._end_save(running, 0, self._immovable or "this rank has no session")
                continue
            self._start_save(transfers, running, order)

    def finished(self) -> tuple[set[str], set[str]]:
        """Requests whose load ended on this rank since the last call, and the failed ones of them."""
        self.poll()
        if not (self._computes or self._finished or self._save_reports or self._load_reports):
            self._yield_to_copies()
        finished, self._finished = self._finished, set()
        failed, self._failed = self._failed, set()
        return finished, failed

    def bad_pages(self) -> set[int]:
        bad, self._bad_pages = self._bad_pages, set()
        return bad

    def report(self) -> RankReport | None:
        session = self.connection.session
        joined = (session.spec.number, len(session.namespaces)) if session is not None else (0, 0)
        if not (
            self._facts_due or self._save_reports or self._load_reports or joined != self._reported_session
            or self._step or self._begun_due
        ):
            return None
        number, namespaces = joined
        report = RankReport(
            self._rank, self._step, session=number, namespaces=namespaces, begun=self._begun_due,
            weights_step=self._weights_step, saves=self._save_reports, loads=self._load_reports,
        )
        if self._facts_due and (self._layouts or self._unfit):
            report.facts = self._rank_facts()
            self._facts_due = False
        self._reported_session = joined
        self._save_reports, self._load_reports, self._step, self._begun_due = [], [], 0, 0
        return report

    def poll(self) -> None:
        self._start_waiting()
        for transfers in self._transfers:
            for done in transfers.mover.poll():
                self._done(transfers, done)
        for former in [one for one in self._transfers[:-1] if not one.running]:
            with self._moving:
                former.mover.close()
                self._transfers.remove(former)

    def wait_idle(self, timeout_s: float) -> bool:
        """Waits until nothing is under way on this rank; for an engine that will not step again."""
        end = time.monotonic() + timeout_s
        while self._busy():
            left = end - time.monotonic()
            if left <= 0:
                return False
            for transfers in self._transfers:
                for done in transfers.mover.wait(min(left, 0.1)):
                    self._done(transfers, done)
            self.poll()
        return True

    def close(self) -> None:
        self.wait_idle(2.0)
        with self._moving:
            for transfers in self._transfers:
                transfers.mover.close()
        self.connection.close()

    # ------------------------------------------------------------------ inside

    def _running(self, order: LoadOrder | SaveOrder, orders: StepOrders) -> _RunningOrder:
        return _RunningOrder(
            order, orders.session_number, time.monotonic(), orders.epoch, orders.weights_step, good=len(order.keys)
        )

    def _is_outdated(self, running: _RunningOrder) -> bool:
        """Whether the engine was reset since the order, or its weights are others than the scheduler side knew."""
        return self._weights_changed or running.epoch != self._epoch or running.weights_step < self._weights_step

    def _yield_to_copies(self) -> None:
        """Ends with the first copy's end."""
        for transfers in self._transfers[-1:]:
            for done in transfers.mover.wait(YIELD_S):
                self._done(transfers, done)

    def _busy(self) -> bool:
        return bool(self._waiting) or any(transfers.running for transfers in self._transfers)

    def _current_transfers(self) -> _SessionTransfers | None:
        """The transfers of the session that stands now."""
        session = self.connection.session
        if session is None or not self._layouts:
            self._immovable = ""
            return None
        # Namespaces may have come since; the session is the same as long as these are.
        last, now = self._transfers[-1:], (session.spec.number, session.connects)
        if not last or (last[0].number, last[0].connects) != now:
            self._immovable = ""
            try:
                with self._moving, unbound(beside=self._facts.ranks == 1):
                    mover = make_mover(session.store, self._layouts, self._staging, self._options.max_bytes_per_s)
                    self._transfers.append(_SessionTransfers(mover, *now))
            except Gone:  # lost meanwhile
                return None
            except Exception as error:  # of any kind, such as no descriptor left: the engine computes
                self._immovable = str(error)
                return None
        self._session = session
        return self._transfers[-1]

    def _lost(self, session: Session) -> None:
        """Called by the connection's thread for a session that was lost: an engine that does nothing takes no step, and
        an ended mover holds no memory of the node."""
        with self._moving:
            for transfers in self._transfers:
                if transfers.connects <= session.connects:
                    transfers.mover.close()

    def _stands(self, transfers: _SessionTransfers, running: _RunningOrder) -> bool:
        """Whether this rank has the session and the namespace of an order."""
        return transfers.number == running.session and running.order.namespace < len(self._session.namespaces)

    def _start_waiting(self) -> None:
        still = []
        for running, order in self._waiting:
            transfers, refusal = self._current_transfers(), self.connection.refusal
            late = time.monotonic() - running.began > min(WAIT_FOR_SESSION_S, order.deadline_us / 1e6)
            current = running.session == self._session_number
            if order.invalid:
                self._end_load(running, 0, "the engine made other room than was asked for, or was reset")
            elif self._is_outdated(running):
                self._end_load(running, 0, "")
            elif transfers is not None and self._stands(transfers, running) and current and not refusal:
                self._start_load(transfers, running, order)
            elif not current or refusal or late or self._immovable:
                self._end_load(running, 0, self._immovable or "this rank has no session")
            else:
                still.append((running, order))
        self._waiting = still

    def _part(self, group: int, page: int) -> int:
        return self._rank // self._facts.identical_ranks * self._per_block[group] + page

    def _start_load(self, transfers: _SessionTransfers, running: _RunningOrder, order: LoadOrder) -> None:
        for group, per in enumerate(self._per_block):
            pages = order.pages[group]
            for i in range(per):
                blocks = [b for b in range(len(order.keys)) if pages[b * per + i] != 0]
                if not blocks:
                    continue
                batch = Batch(
                    namespace=self._session.namespaces[order.namespace], group=group, part=self._part(group, i),
                    keys=[order.keys[b] for b in blocks], pages=[pages[b * per + i] for b in blocks],
                    deadline_us=order.deadline_us, worth_us=order.worth_us,
                )
                self._submit(transfers, running, blocks, batch, load=True)
        if running.open == 0:
            self._end_load(running, running.good, running.message)

    def _start_save(self, transfers: _SessionTransfers, running: _RunningOrder, order: SaveOrder) -> None:
        parents = [order.parent, *order.keys[:-1]]
        mine = self._rank % self._facts.identical_ranks
        for group, per in enumerate(self._per_block):
            blocks = [
                b for b, put in enumerate(order.put_ids[group])
                if put is not None and (order.first_block + b) % self._facts.identical_ranks == mine
            ]
            for i in range(per):
                if not blocks:
                    continue
                batch = Batch(
                    namespace=self._session.namespaces[order.namespace], group=group, part=self._part(group, i),
                    keys=[order.keys[b] for b in blocks], pages=[order.pages[group][b * per + i] for b in blocks],
                    deadline_us=int(self._options.save_timeout_s * 1e6), parents=[parents[b] for b in blocks],
                    put_ids=[put for b in blocks if (put := order.put_ids[group][b]) is not None],
                    ttl_s=order.ttl_s, conversation=order.conversation,
                )
                self._submit(transfers, running, blocks, batch, load=False)
        if running.open == 0:
            self._end_save(running, running.good, running.message)

    def _submit(
        self, transfers: _SessionTransfers, running: _RunningOrder, blocks: list[int], batch: Batch, load: bool
    ) -> None:
        try:
            number = transfers.mover.load(batch) if load else transfers.mover.save(batch)
        except Exception as error:  # of any kind: the order is reported as failed, and the engine computes
            running.good = min(running.good, blocks[0])
            running.message = running.message or str(error)
            return
        transfers.running[number] = (running, blocks)
        running.open += 1

    def _done(self, transfers: _SessionTransfers, done: Done) -> None:
        running, blocks = transfers.running.pop(done.id)
        running.open -= 1
        for block, code in zip(blocks, done.outcomes, strict=True):
            if code != 0:
                running.good = min(running.good, block)
                if not running.message:
                    running.message, running.code = done.message or Code(code).name, code
                break
        running.moved_bytes += done.moved_bytes
        running.took_us = max(running.took_us, done.took_us)
        if running.open:
            return
        if isinstance(running.order, LoadOrder):
            self._end_load(running, running.good, running.message)
        else:
            self._end_save(running, running.good, running.message)

    def _end_save(self, running: _RunningOrder, good: int, message: str) -> None:
        self._save_reports.append(
            SaveReport(self._rank, running.order.id, good, message, running.code, running.moved_bytes, running.took_us)
        )

    def _end_load(self, running: _RunningOrder, good: int, message: str) -> None:
        order = running.order
        assert isinstance(order, LoadOrder)
        if running.session != self._session_number or self._is_outdated(running):
            # The engine was reset or the session is another one: these bytes may be of other weights.
            good, message = 0, message or "the session or the weights have changed meanwhile"
        bad: list[int] = []
        if good < len(order.keys):
            if len(self._per_block) == 1:
                bad = [page for page in order.pages[0][good * self._per_block[0] :] if page != 0]
                self._bad_pages.update(bad)
            else:
                self._failed.add(order.request)
                good = 0
            self._logger.debug(
                "cistern: load %d of %s failed from block %d: %s", order.id, order.request, good, message
            )
        self._finished.add(order.request)
        self._load_reports.append(
            LoadReport(
                self._rank, order.id, good, message, running.code, running.moved_bytes, running.took_us, tuple(bad)
            )
        )
