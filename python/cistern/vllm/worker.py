# SPDX-License-Identifier: Apache-2.0
"""One rank: carries out orders and reports each exactly once, whatever happens to the node."""

from __future__ import annotations

import logging
import socket as sockets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .. import Code, Done
from . import identity, versions
from .cpus import unbound
from .devices import Batch, Mover, check_device, make_mover
from .layout import Layout, group_layout
from .link import Link
from .options import Options
from .orders import Hello, LoadOrder, LoadReport, RankReport, SaveOrder, SaveReport

if TYPE_CHECKING:
    from .connector import StepOrders
    from .layout import LayerCache

logger = logging.getLogger("vllm.cistern")

WAIT_FOR_SESSION_S = 2.0
"""How long a load may wait for this rank to connect before it counts as failed."""
YIELD_S = 0.001
"""How long a step that computes nothing leaves its core to those that copy, at most: vLLM plans the next such step at
once, as long as anything is under way."""


@dataclass
class _Running:
    """An order under way on this rank."""

    order: LoadOrder | SaveOrder
    session: int
    began: float
    open: int = 0
    """Transfers that have not been reported."""
    good: int = 0
    """Leading blocks that are still good."""
    message: str = ""
    moved_bytes: int = 0
    took_us: int = 0


@dataclass
class _Crew:
    """The mover of one session, until all that it started is reported."""

    mover: Mover
    number: int
    transfers: dict[int, tuple[_Running, list[int]]] = field(default_factory=dict)
    """By the mover's number: the order, and which of its blocks the transfer is about."""


class Worker:
    def __init__(self, options: Options, vllm_config: Any, kv_cache_config: Any, rank: int) -> None:
        self._options = options
        self._kv = kv_cache_config
        self._ranks = int(vllm_config.parallel_config.world_size)
        self._rank = rank % self._ranks
        self._replicas = versions.identical_ranks(vllm_config, kv_cache_config)
        block_tokens, _ = versions.block_sizes(vllm_config, kv_cache_config)
        self._per_block = tuple(
            block_tokens // versions.group_tokens(group.kv_cache_spec, vllm_config)
            for group in kv_cache_config.kv_cache_groups
        )
        self._single_group = len(self._per_block) == 1
        self._layouts: list[Layout] = []
        self._device = ""
        self._link = Link()
        self._session = 0
        self._crews: list[_Crew] = []
        self._waiting: list[tuple[_Running, LoadOrder]] = []
        self._step = 0
        self._computes = True
        self._hello_due = True
        self._said_session = 0
        self._save_reports: list[SaveReport] = []
        self._load_reports: list[LoadReport] = []
        self._finished: set[str] = set()
        self._failed: set[str] = set()
        self._bad_pages: set[int] = set()

    # ------------------------------------------------------------------ at start

    def register(self, caches: Mapping[str, LayerCache]) -> None:
        """Raises UnknownLayout or UnknownDevice."""
        for group in self._kv.kv_cache_groups:
            layers = list(group.layer_names)
            self._layouts.append(
                group_layout(layers, caches, self._kv.num_blocks, _page_bytes(group.kv_cache_spec, layers))
            )
        kinds = {tensor.device.type for layout in self._layouts for tensor in layout.tensors}
        if len(kinds) != 1:
            raise ValueError(f"the KV caches lie on several kinds of device: {sorted(kinds)}")
        self._device = kinds.pop()
        check_device(self._device)

    def _hello(self) -> Hello:
        return Hello(
            rank=self._rank,
            host=_host(),
            device=self._device,
            isa=identity.cpu_isa() if self._device == "cpu" else "",
            page_bytes=tuple(layout.page_bytes for layout in self._layouts),
            layout=tuple(layout.text for layout in self._layouts),
        )

    # ------------------------------------------------------------------ a step

    def begin(self, orders: StepOrders) -> None:
        """Before the forward pass. A step that has none is saved from here: vLLM 0.30 says nothing more in it."""
        self._step = orders.step if orders.saves else 0
        self._computes = orders.computes
        if orders.session is not None and orders.session.number > self._session:
            self._session = orders.session.number
            self._link.aim(orders.session)
        for order in orders.loads:
            running = _Running(order, orders.session_number, time.monotonic(), good=len(order.keys))
            self._waiting.append((running, order))
        self._start_waiting()
        if not orders.computes:
            self.save(orders)

    def save(self, orders: StepOrders) -> None:
        """After the forward pass was launched."""
        for order in orders.saves:
            running = _Running(order, orders.session_number, time.monotonic(), good=len(order.keys))
            crew = self._crew()
            if crew is None or crew.number != orders.session_number:
                self._end_save(running, 0, "this rank has no session")
                continue
            self._start_save(crew, running, order)

    def finished(self) -> tuple[set[str], set[str]]:
        """Requests whose load ended on this rank since the last call, and those of them that failed."""
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
        joined = self._link.joined
        number = joined.target.number if joined is not None else 0
        if not (
            self._hello_due or self._save_reports or self._load_reports or number != self._said_session
            or self._step
        ):
            return None
        report = RankReport(self._rank, self._step, session=number, saves=self._save_reports, loads=self._load_reports)
        if self._hello_due and self._layouts:
            report.hello = self._hello()
            self._hello_due = False
        self._said_session = number
        self._save_reports, self._load_reports, self._step = [], [], 0
        return report

    def poll(self) -> None:
        self._start_waiting()
        for crew in self._crews:
            for done in crew.mover.poll():
                self._done(crew, done)
        self._crews = [c for i, c in enumerate(self._crews) if self._keep(c, last=i == len(self._crews) - 1)]

    def wait_idle(self, timeout_s: float) -> bool:
        """Until nothing is under way on this rank; for an engine that will not step again."""
        end = time.monotonic() + timeout_s
        while self._busy():
            left = end - time.monotonic()
            if left <= 0:
                return False
            for crew in self._crews:
                for done in crew.mover.wait(min(left, 0.1)):
                    self._done(crew, done)
            self.poll()
        return True

    def close(self) -> None:
        self.wait_idle(2.0)
        for crew in self._crews:
            crew.mover.close()
        self._link.close()

    # ------------------------------------------------------------------ inside

    def _yield_to_copies(self) -> None:
        """Ends with the first of them."""
        for crew in self._crews[-1:]:
            for done in crew.mover.wait(YIELD_S):
                self._done(crew, done)

    def _busy(self) -> bool:
        return bool(self._waiting) or any(crew.transfers for crew in self._crews)

    def _keep(self, crew: _Crew, last: bool) -> bool:
        if last or crew.transfers:
            return True
        crew.mover.close()
        return False

    def _crew(self) -> _Crew | None:
        """The mover of the session that stands now."""
        joined = self._link.joined
        if joined is None or not self._layouts:
            return None
        if not self._crews or self._crews[-1].number != joined.target.number:
            with unbound(beside=self._ranks == 1):
                mover = make_mover(joined.store, self._device, self._layouts, self._options.max_bytes_per_s)
            self._crews.append(_Crew(mover, joined.target.number))
        self._joined = joined
        return self._crews[-1]

    def _start_waiting(self) -> None:
        still = []
        for running, order in self._waiting:
            crew = self._crew()
            late = time.monotonic() - running.began > min(WAIT_FOR_SESSION_S, order.deadline_us / 1e6)
            if order.doomed:
                self._end_load(running, 0, "the engine made other room than was asked for")
            elif crew is not None and crew.number == running.session == self._session and not self._link.refused:
                self._start_load(crew, running, order)
            elif running.session != self._session or self._link.refused or late:
                self._end_load(running, 0, "this rank has no session")
            else:
                still.append((running, order))
        self._waiting = still

    def _part(self, group: int, page: int) -> int:
        return self._rank // self._replicas * self._per_block[group] + page

    def _start_load(self, crew: _Crew, running: _Running, order: LoadOrder) -> None:
        for group, per in enumerate(self._per_block):
            pages = order.pages[group]
            for i in range(per):
                blocks = [b for b in range(len(order.keys)) if pages[b * per + i] != 0]
                if not blocks:
                    continue
                batch = Batch(
                    namespace=self._joined.namespaces[order.namespace], group=group, part=self._part(group, i),
                    keys=[order.keys[b] for b in blocks], pages=[pages[b * per + i] for b in blocks],
                    deadline_us=order.deadline_us, worth_us=order.worth_us,
                )
                self._submit(crew, running, blocks, batch, load=True)
        if running.open == 0:
            self._end_load(running, running.good, running.message)

    def _start_save(self, crew: _Crew, running: _Running, order: SaveOrder) -> None:
        parents = [order.parent, *order.keys[:-1]]
        mine = self._rank % self._replicas
        for group, per in enumerate(self._per_block):
            blocks = [
                b for b, put in enumerate(order.put_ids[group])
                if put is not None and (order.first_block + b) % self._replicas == mine
            ]
            for i in range(per):
                if not blocks:
                    continue
                batch = Batch(
                    namespace=self._joined.namespaces[order.namespace], group=group, part=self._part(group, i),
                    keys=[order.keys[b] for b in blocks], pages=[order.pages[group][b * per + i] for b in blocks],
                    deadline_us=int(self._options.save_timeout_s * 1e6), parents=[parents[b] for b in blocks],
                    put_ids=[put for b in blocks if (put := order.put_ids[group][b]) is not None],
                    ttl_s=order.ttl_s, conversation=order.conversation,
                )
                self._submit(crew, running, blocks, batch, load=False)
        if running.open == 0:
            self._end_save(running, running.good, running.message)

    def _submit(self, crew: _Crew, running: _Running, blocks: list[int], batch: Batch, load: bool) -> None:
        try:
            number = crew.mover.load(batch) if load else crew.mover.save(batch)
        except Exception as error:  # whatever it is: the engine computes, the order is reported
            running.good = min(running.good, blocks[0])
            running.message = running.message or str(error)
            return
        crew.transfers[number] = (running, blocks)
        running.open += 1

    def _done(self, crew: _Crew, done: Done) -> None:
        running, blocks = crew.transfers.pop(done.id)
        running.open -= 1
        for block, code in zip(blocks, done.outcomes, strict=True):
            if code != 0:
                running.good = min(running.good, block)
                running.message = running.message or done.message or Code(code).name
                break
        running.moved_bytes += done.moved_bytes
        running.took_us = max(running.took_us, done.took_us)
        if running.open:
            return
        if isinstance(running.order, LoadOrder):
            self._end_load(running, running.good, running.message)
        else:
            self._end_save(running, running.good, running.message)

    def _end_save(self, running: _Running, good: int, message: str) -> None:
        self._save_reports.append(
            SaveReport(self._rank, running.order.id, good, message, running.moved_bytes, running.took_us)
        )

    def _end_load(self, running: _Running, good: int, message: str) -> None:
        order = running.order
        assert isinstance(order, LoadOrder)
        if running.session != self._session:
            # The engine was reset or the session is another one: these bytes may be of other weights.
            good, message = 0, message or "the session has changed meanwhile"
        bad: list[int] = []
        if good < len(order.keys):
            if self._single_group:
                bad = [page for page in order.pages[0][good * self._per_block[0] :] if page != 0]
                self._bad_pages.update(bad)
            else:
                self._failed.add(order.request)
                good = 0
            logger.debug("cistern: load %d of %s failed from block %d: %s", order.id, order.request, good, message)
        self._finished.add(order.request)
        self._load_reports.append(
            LoadReport(
                self._rank, order.id, good, message, running.moved_bytes, running.took_us, tuple(bad)
            )
        )


def _page_bytes(spec: Any, layers: Sequence[str]) -> int | None:
    inner = versions.layer_specs(spec)
    sizes = [versions.unpadded_page_bytes((inner or {}).get(layer, spec)) for layer in layers]
    return None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)


def _host() -> str:
    """Of this boot of this host: two processes with the same can share memory, unless containers part them."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return sockets.gethostname()
