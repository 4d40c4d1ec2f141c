# SPDX-License-Identifier: Apache-2.0
"""Decisions of the scheduler side, on plain values: no engine, no store, no clock.

A *block* is the store's: `block_tokens` tokens, all groups. A *page* is one engine block of one group; group g has
`pages_per_block[g]` of them in a block. Page 0 is the engine's null page and stands for "not there".

The plan is right as long as its caller passes it every step's reports, in the order of the steps. A report that it
does not know makes it save less; none makes it save, or keep, KV that may be wrong.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from .orders import LoadOrder, LoadReport, SaveOrder, SaveReport
from .request import Pages


@dataclass(frozen=True)
class Limits:
    ranks: int
    """Processes that each report every order."""
    block_tokens: int
    pages_per_block: tuple[int, ...]
    max_pages: int
    """Engine pages that saves on their way may keep from being reused."""
    max_order_blocks: int = 256
    """Blocks of one order; more go to the next step."""
    drop_last: bool = False
    """Speculative groups: the last block's KV may come from a draft."""


@dataclass
class PlannedRequest:
    """One request, from its arrival to its end."""

    id: str
    namespace: int
    may_save: bool = True
    may_load: bool = True
    save_limit_tokens: int | None = None
    """Only blocks that end within so many tokens are saved: None is all."""
    ttl_s: int = 0
    conversation: str = ""
    priority: int = 0
    """Requests with a higher one go first where not all can be saved now."""
    keys: list[bytes] = field(default_factory=list)
    saved: int = 0
    """Leading blocks that need no order: in the store, on their way there, or given up."""
    matched: bool = False
    """Whether the store was asked for this request's chain, before its first order."""
    stopped: bool = False
    """A block of the chain could not be saved: its descendants would wait in vain, until resume()."""
    load_failed: bool = False
    loaded_tokens: int = 0
    load_us: int = 0
    loaded_from: str = "memory"
    """The lowest tier that any block was loaded from."""
    load: int = 0
    """The load under way, or 0."""


@dataclass
class SaveJob:
    order: SaveOrder
    request: str
    first: int
    pages: list[int]
    confirmed: bool = False
    """The step of its order came back without a failed load."""
    void: bool = False
    ranks: dict[int, int] = field(default_factory=dict)
    """Leading blocks that each rank has written."""


@dataclass
class LoadJob:
    order: LoadOrder
    request: str
    ranks: dict[int, LoadReport] = field(default_factory=dict)


@dataclass
class Effects:
    """Work for the caller, now."""

    publish: list[tuple[SaveJob, int]] = field(default_factory=list)
    """Jobs, each with the number of its leading blocks that become visible."""
    abandon: list[tuple[int, list[bytes]]] = field(default_factory=list)
    """Numbers of orders, each with those of its put ids that nobody is to see."""
    release: list[int] = field(default_factory=list)
    """Engine pages that are no longer referenced, one entry a reference."""
    loaded: list[LoadJob] = field(default_factory=list)
    """Loads that ended on all ranks, failed ones too."""


class Plan:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.requests: dict[str, PlannedRequest] = {}
        self._saves: dict[int, SaveJob] = {}
        self._loads: dict[int, LoadJob] = {}
        self._saving: dict[tuple[int, bytes], int] = {}
        self._next_number = 1
        self._referenced_pages = 0
        self.blocks_left_out = 0

    # ------------------------------------------------------------------ requests

    def begin(self, request: PlannedRequest) -> None:
        self.requests[request.id] = request

    def end(self, request_id: str) -> PlannedRequest | None:
        """The request is over for the engine; its saves and loads on their way stay."""
        return self.requests.pop(request_id, None)

    def of_conversation(self, name: str) -> frozenset[str]:
        return frozenset(one.id for one in self.requests.values() if one.conversation == name)

    def found(self, request_id: str, blocks: int) -> None:
        """The store has that many leading blocks of the request's chain."""
        request = self.requests[request_id]
        request.matched = True
        request.saved = max(request.saved, min(blocks, len(request.keys)))

    def resume(self, request_id: str) -> None:
        """Has a request go on saving that stopped, behind what the store turns out to have of its chain by now."""
        request = self.requests[request_id]
        request.stopped, request.matched, request.saved = False, False, 0

    def external_tokens(self, request_id: str, found: int, computed_tokens: int, total_tokens: int) -> int:
        """Tokens past `computed_tokens` that may be loaded when the store has `found` blocks. At least one token is
        left for the engine to compute."""
        request = self.requests.get(request_id)
        if request is None or not request.may_load or request.load_failed or request.load:
            return 0
        size = self.limits.block_tokens
        if computed_tokens % size:
            return 0
        blocks = min(found, (total_tokens - 1) // size) - (1 if self.limits.drop_last else 0)
        return max(0, blocks * size - computed_tokens)

    # ------------------------------------------------------------------ loads

    def load(
        self, request_id: str, first_token: int, tokens: int, pages: Pages, where: str = "memory"
    ) -> LoadOrder:
        """The order for a load, once the engine has made room: `pages` hold the request from token 0 on. Where that is
        not the room answered for, the order is invalid: the engine waits for its report, and for nothing else."""
        request = self.requests[request_id]
        size = self.limits.block_tokens
        first, count = first_token // size, max(1, -(-tokens // size))
        sound = first_token % size == 0 and tokens % size == 0 and first + count <= len(request.keys)
        cut = self._cut(pages, first, count)
        sound = sound and all(
            len(group) == count * per for group, per in zip(cut, self.limits.pages_per_block, strict=True)
        )
        order = LoadOrder(
            id=self._number(),
            request=request_id,
            namespace=request.namespace,
            first_block=first,
            keys=request.keys[first : first + count] if sound else [b""] * count,
            pages=cut,
            where=where,
            invalid=not sound,
        )
        self._loads[order.id] = LoadJob(order, request_id)
        request.load = order.id
        return order

    @property
    def loads(self) -> int:
        return len(self._loads)

    # ------------------------------------------------------------------ saves

    def frontier(
        self, *, computed: int, scheduled: int, placeholders: int, prompt_tokens: int, tokens: int
    ) -> int:
        """Tokens whose KV is that of confirmed tokens once a step is done that was planned with these numbers
        (`scheduled`: in that step; 0: none)."""
        return min(computed + scheduled - placeholders, max(prompt_tokens, tokens - 1))

    def wants(self, request_id: str, frontier_tokens: int) -> bool:
        """Whether there is a block to save; cheap, since it is asked every step."""
        return self.unsaved(request_id, frontier_tokens) > 0

    def unsaved(self, request_id: str, frontier_tokens: int) -> int:
        """Blocks of the request that are to be saved and have no order."""
        request = self.requests.get(request_id)
        return 0 if request is None else max(0, self._due(request, frontier_tokens) - request.saved)

    def save(self, step: int, due: Iterable[tuple[str, int, Pages]]) -> list[SaveOrder]:
        """Orders for the blocks due: (request, frontier in tokens, its pages). The highest priority goes first, within
        one priority the root-most blocks, so that a bound leaves out the leaf-most, the same on every rank. Blocks
        left out come again with the next step, as long as the request lives; none are for an order's size, since a step
        of a long prompt has more and the next as many again."""
        wanted: list[tuple[int, PlannedRequest, Pages, int]] = []
        for request_id, frontier, pages in due:
            request = self.requests.get(request_id)
            if request is not None and (end := self._due(request, frontier)) > request.saved:
                wanted.append((request.saved, request, pages, end))
        wanted.sort(key=lambda one: (-one[1].priority, one[0]))
        orders = []
        for _, request, pages, end in wanted:
            full = True
            while full and (order := self._save(step, request, pages, end)) is not None:
                orders.append(order)
                full = len(order.keys) == self.limits.max_order_blocks
        return orders

    @property
    def saves(self) -> int:
        return len(self._saves)

    @property
    def referenced_pages(self) -> int:
        return self._referenced_pages

    @property
    def distinct_pages(self) -> int:
        return len({page for job in self._saves.values() for page in job.pages})

    def referenced(self, order_id: int) -> list[int]:
        """The engine pages that an order just given by save() reads: the caller references them at once, until an
        Effects releases them."""
        return self._saves[order_id].pages

    def saving(self, namespace: int, conversation: str) -> bool:
        """Whether blocks of this conversation are on their way."""
        return any(
            job.order.namespace == namespace and job.order.conversation == conversation for job in self._saves.values()
        )

    def request_of(self, order_id: int) -> str:
        return self._saves[order_id].request

    # ------------------------------------------------------------------ reports

    def report(
        self,
        steps: Iterable[int],
        saves: Iterable[SaveReport],
        loads: Iterable[LoadReport],
        foreign_failure: bool = False,
    ) -> Effects:
        """A step's reports, of all ranks together. `foreign_failure`: the same step's output names KV of another
        connector that failed to load: blocks computed on it, in that step and in those already scheduled, must not
        be kept."""
        effects = Effects()
        reported = set(steps)
        touched: list[SaveJob] = []
        if foreign_failure:
            for job in list(self._saves.values()):
                if not job.confirmed:
                    self._void(job)
                    touched.append(job)
        for job in self._saves.values():
            if job.order.step in reported and not job.void and not job.confirmed:
                job.confirmed = True
                touched.append(job)
        for saved in saves:
            job_or_none = self._saves.get(saved.id)
            if job_or_none is None:
                continue
            job_or_none.ranks.setdefault(saved.rank, min(saved.blocks, len(job_or_none.order.keys)))
            touched.append(job_or_none)
        for job in touched:
            self._settle(job, effects)
        for loaded in loads:
            load = self._loads.get(loaded.id)
            if load is None:
                continue
            load.ranks.setdefault(loaded.rank, loaded)
            if len(load.ranks) == self.limits.ranks:
                self._end_load(load, effects)
        return effects

    def load_orders(self) -> list[LoadOrder]:
        """Loads that some rank has not ended."""
        return [load.order for load in self._loads.values()]

    def finish(self) -> Effects:
        """The engine ends and no rank will report any more: confirmed saves may be published (the store shows only
        whole blocks), the rest is abandoned, and no page stays referenced."""
        effects = Effects()
        for job in list(self._saves.values()):
            count = 0 if job.void or not job.confirmed else len(job.order.keys)
            self._close(job, count, effects)
        return effects

    @property
    def keeps_pages_of_ended(self) -> bool:
        """Whether saves keep pages from reuse that their requests need no more."""
        return any(job.pages and job.request not in self.requests for job in self._saves.values())

    def release(self, of_ended: bool = False) -> Effects:
        """Gives back every page before its copy has ended (`of_ended`: those of requests that are over). What is read
        from a page from then on may be another's: none of these blocks becomes visible, and their requests save them
        again."""
        effects = Effects()
        for job in list(self._saves.values()):
            if of_ended and job.request in self.requests:
                continue
            self._void(job)
            self._referenced_pages -= len(job.pages)
            effects.release += job.pages
            job.pages = []
            self._settle(job, effects)
        return effects

    def reset(self, fresh: Collection[str] = ()) -> Effects:
        """Blocks that are not published must not become visible any more, and no answer stands. References stay until
        the ranks report. `fresh`: requests of which nothing is computed; they go on, the others are not shared."""
        effects = Effects()
        for job in list(self._saves.values()):
            self._void(job)
            self._settle(job, effects)
        for request in self.requests.values():
            if request.id in fresh and not request.load:
                request.saved, request.matched = 0, False
            else:
                request.may_save = request.may_load = False
        return effects

    # ------------------------------------------------------------------ inside

    def _number(self) -> int:
        number, self._next_number = self._next_number, self._next_number + 1
        return number

    def _cut(self, pages: Pages, first: int, count: int) -> list[list[int]]:
        return [
            list(group[first * per : (first + count) * per])
            for group, per in zip(pages, self.limits.pages_per_block, strict=True)
        ]

    def _due(self, request: PlannedRequest, frontier_tokens: int) -> int:
        if not request.may_save or request.stopped or request.load:
            return 0
        if request.save_limit_tokens is not None:
            frontier_tokens = min(frontier_tokens, request.save_limit_tokens)
        blocks = frontier_tokens // self.limits.block_tokens - (1 if self.limits.drop_last else 0)
        return min(blocks, len(request.keys))

    def _save(self, step: int, request: PlannedRequest, pages: Pages, end: int) -> SaveOrder | None:
        while request.saved < end and (request.namespace, request.keys[request.saved]) in self._saving:
            request.saved += 1
        first = request.saved
        taken: list[list[int]] = [[] for _ in self.limits.pages_per_block]
        keys: list[bytes] = []
        put_ids: list[list[bytes | None]] = [[] for _ in self.limits.pages_per_block]
        referenced: list[int] = []
        for block in range(first, min(end, first + self.limits.max_order_blocks)):
            key = request.keys[block]
            if (request.namespace, key) in self._saving:
                break
            cut = self._cut(pages, block, 1)
            if any(len(group) < per for group, per in zip(cut, self.limits.pages_per_block, strict=True)):
                break
            real = [page for group in cut if 0 not in group for page in group]
            if not real:
                break
            if self._referenced_pages + len(referenced) + len(real) > self.limits.max_pages:
                self.blocks_left_out += 1
                break
            keys.append(key)
            referenced += real
            for group, its_pages in enumerate(cut):
                there = 0 not in its_pages
                taken[group] += its_pages if there else [0] * len(its_pages)
                put_ids[group].append(os.urandom(16) if there else None)
        if not keys:
            return None
        order = SaveOrder(
            id=self._number(),
            step=step,
            namespace=request.namespace,
            first_block=first,
            parent=request.keys[first - 1] if first else None,
            keys=keys,
            put_ids=put_ids,
            pages=taken,
            ttl_s=request.ttl_s,
            conversation=request.conversation,
        )
        self._saves[order.id] = SaveJob(order, request.id, first, referenced)
        for key in keys:
            self._saving[(request.namespace, key)] = order.id
        self._referenced_pages += len(referenced)
        request.saved = first + len(keys)
        return order

    def _void(self, job: SaveJob) -> None:
        """Blocks of the request from this job on no longer count as saved."""
        job.void = True
        request = self.requests.get(job.request)
        if request is not None:
            request.saved = min(request.saved, job.first)
        self._forget_keys(job)

    def _forget_keys(self, job: SaveJob) -> None:
        for key in job.order.keys:
            if self._saving.get((job.order.namespace, key)) == job.order.id:
                del self._saving[(job.order.namespace, key)]

    def _settle(self, job: SaveJob, effects: Effects) -> None:
        if job.order.id not in self._saves or len(job.ranks) < self.limits.ranks:
            return
        if job.void:
            self._close(job, 0, effects)
        elif job.confirmed:
            self._close(job, min(job.ranks.values()), effects)

    def _close(self, job: SaveJob, count: int, effects: Effects) -> None:
        del self._saves[job.order.id]
        self._forget_keys(job)
        self._referenced_pages -= len(job.pages)
        effects.release += job.pages
        if count:
            effects.publish.append((job, count))
        lost = [put for group in job.order.put_ids for put in group[count:] if put is not None]
        if lost:
            effects.abandon.append((job.order.id, lost))
        if not job.void and count < len(job.order.keys):
            request = self.requests.get(job.request)
            if request is not None:
                request.stopped = True

    def _end_load(self, load: LoadJob, effects: Effects) -> None:
        del self._loads[load.order.id]
        effects.loaded.append(load)
        request = self.requests.get(load.request)
        if request is None or request.load != load.order.id:
            return
        request.load = 0
        good = min(report.blocks for report in load.ranks.values())
        if good < len(load.order.keys):
            request.load_failed = True
            request.saved = min(request.saved, load.order.first_block + good)
        request.loaded_tokens += good * self.limits.block_tokens
        if good and load.order.where != "memory":
            request.loaded_from = load.order.where
        request.load_us = max(report.took_us for report in load.ranks.values())
