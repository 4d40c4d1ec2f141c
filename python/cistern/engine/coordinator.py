# SPDX-License-Identifier: Apache-2.0
"""The scheduler side of any engine: its calls in, orders for the ranks out. The plan says what may be done."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from .. import Chain, Missed
from .adapted import AdaptedRequests
from .changes import WeightChanges
from .connection import CALL_US, MAX_LATE_CALLS, Connection
from .conversations import MAX_ENDING, Conversations, Ending
from .facts import EngineFacts
from .identity import Fields
from .keys import new_keys
from .matches import Match, Matches
from .node import NodeStarter, check_node_options, require_node
from .options import PREFIX, Options, RequestParameters
from .orders import LoadOrder, RankReport, SaveOrder, StepOrders
from .outdated import OutdatedLoads
from .own_blocks import OwnBlocks
from .pace import Pace
from .plan import Effects, Limits, Plan, PlannedRequest
from .request import Adapter, PagePool, Pages, Request
from .session import Session
from .shared_session import SharedSession
from .stats import Counters
from .tiers import load_ends, lowest_tier, tokens_by_tier
from .tracked import TrackedRequest
from .warnings import Warnings
from .written import LoadLeases, Place, WrittenPuts

if TYPE_CHECKING:
    from .rank import Rank

IDLE_S = 2.0
"""Time for which the end of a process, or of its prefix cache, waits for the last saves of an engine in it."""
LOOK_S = 2.0
"""Time that a request waits for the ranks to look at their weights."""
TIMED_EVERY = 8
"""Of steps that compute and save nothing, one in so many is timed, and each that is longer than those measured."""
ROOM_S = 0.05
"""Time for which a request that runs waits for pages that saves of ended requests keep: many copies, and far less than
computing a request anew."""
WAITING_ROOM_S = 1.0
"""The same for requests that wait while nothing runs: only a node that hangs takes as long for a copy."""
STOPPED_S = 30.0
"""Time after which a request goes on saving of which a block was refused, the first time; then twice as long each time:
what a node that has no room for it is given in vain stays little."""
PUBLISHED_S = MAX_LATE_CALLS * CALL_US / 1e6
"""Time by which a publish that was submitted has been done, or never will be."""


class SaveListener(Protocol):
    """A listener to saves, for the engine's own events."""

    def ordered(self, order: SaveOrder, request: Request) -> None: ...
    def published(self, order_id: int, blocks: int) -> None:
        """`blocks`: leading ones of the order, which has ended; 0: none. They are visible to a match that is asked
        PUBLISHED_S later."""
        ...

    def missing(self, keys: Sequence[bytes], asked_at: float) -> None:
        """The store, asked then (time.monotonic()), had none of these blocks."""
        ...

    def forked(self) -> None:
        """What was stored before is not found by this engine any more."""
        ...


class Coordinator:
    def __init__(
        self, options: Options, facts: EngineFacts, fields: Callable[[], Fields | None],
        hash_fields: Callable[[], tuple[tuple[str, str], ...]], listener: SaveListener | None = None,
    ) -> None:
        """`fields`, `hash_fields`: the engine's part of a namespace's identity, once it is known and from the first
        request with hashes on."""
        self._options = options
        self._facts = facts
        self._listener = listener
        self._logger = logging.getLogger(facts.logger)
        self.warn = Warnings(self._logger)
        check_node_options(options)
        starter = NodeStarter(options) if options.start_node else None
        if options.required:
            require_node(options, starter)
        self.connection = Connection(self._logger, starter)
        self._shared = SharedSession(options, facts, fields, hash_fields, self.connection, self._forget_answers)
        self._matches = Matches(self.connection, options.match_timeout_s, self.warn)
        self._plan = Plan(
            Limits(
                ranks=facts.ranks,
                block_tokens=facts.block_tokens,
                pages_per_block=tuple(group.pages_per_block for group in facts.groups),
                max_pages=max(1, int(facts.pages * options.max_pages_share)),
                drop_last=facts.drafts,
            )
        )
        self._written = WrittenPuts(self.connection)
        self._conversations = Conversations(self.connection, self._plan, self._written)
        self._unidentified: deque[TrackedRequest] = deque(maxlen=MAX_ENDING)
        """Ended requests that end a conversation of an adapter whose files are still being looked at."""
        self._requests: dict[str, TrackedRequest] = {}
        self._adapted = AdaptedRequests(facts.adapters, self._shared.namespace, options.start_timeout_s, self.warn)
        self._windows = any(group.window_tokens for group in facts.groups)
        self._pool: PagePool
        self._step = 0
        self._loads: list[LoadOrder] = []
        self._late_saves: list[SaveOrder] = []
        """Saves of requests that have ended, for the next step."""
        self._leases = LoadLeases(self.connection)
        self._epoch = 0
        """Number of resets."""
        self._outdated = OutdatedLoads()
        self._own = OwnBlocks(facts.pages, facts.block_tokens) if facts.beside_others else None
        self._changes = WeightChanges()
        self._pace = Pace()
        self._timed_steps: dict[int, tuple[float, int, int]] = {}
        """When each step that is timed was planned, its tokens, and their squares (pace.StepTime)."""
        self._untimed = 0
        """Steps that computed since the last that was timed though it saved nothing."""
        self._last_report = 0.0
        self._short = (0.0, -2)
        """Since when the engine has been short of pages, and the last step in which it was."""
        self._beside: Rank | None = None
        """The rank, where its caller steps the engine in its own process, and stops with the last request."""
        self.stats = Counters()

    def use_pages(self, pool: PagePool) -> None:
        self._pool = pool

    # ------------------------------------------------------------------ a request

    def add_request(self, request: Request, parameters: RequestParameters) -> None:
        self._catch_up()
        save = self._options.save
        no_save = save == "none" or parameters.no_save or parameters.end_conversation
        may_save = request.content_hashed and not no_save
        may_load = request.content_hashed and self._options.load and not parameters.no_load
        adapter = request.adapter
        planned = PlannedRequest(
            id=request.id,
            namespace=0,
            may_save=may_save and adapter is None,
            may_load=may_load and adapter is None,
            save_limit_tokens=request.prompt_tokens if save == "prompt" else None,
            ttl_s=self._options.ttl_s if parameters.ttl_s is None else parameters.ttl_s,
            conversation=parameters.conversation or "",
            priority=parameters.priority,
        )
        ends_after = self._plan.of_conversation(planned.conversation) if parameters.end_conversation else None
        self._plan.begin(planned)
        tracked = TrackedRequest(
            request, planned, Chain(), Match(parameters.hints), may=(may_save, may_load), ends_after=ends_after,
            prompt_tokens=request.prompt_tokens,
        )
        self._requests[request.id] = tracked
        self._specify_session(tracked)
        if adapter is not None:
            self._adapted.ask(tracked, adapter)
        else:
            self._begin_match(tracked)

    def adapter_loading(self, adapter: Adapter) -> AbstractContextManager[None]:
        """Around the engine's loading of an adapter ahead of its requests, or again."""
        return self._adapted.loading(adapter)

    def match(self, request_id: str, computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens past `computed_tokens` that a load would bring (None: ask again with the next step), and whether
        they come beside the engine's steps."""
        tracked = self._requests.get(request_id)
        if tracked is None:
            return 0, False
        tracked.computing = False
        tracked.matched_at = tracked.loaded_to = computed_tokens
        request = tracked.request
        # Also who loads nothing: what it computes can be saved once its namespace is known.
        if not self._adapted.identified(tracked, soon=True):
            return (None if self._shared.possible and self._adapted.awaited(tracked) else 0), False
        self._adapted.confirm(tracked)
        if request.skips_cache or not tracked.planned.may_load:
            return 0, False
        if self._changes.doubtful:
            return self._while_doubtful(tracked)
        self._add_keys(tracked)
        most, tokens = len(tracked.planned.keys), request.tokens
        if self._plan.external_tokens(request_id, most, computed_tokens, tokens) == 0:
            return 0, False
        session = self._ready(tracked)
        if session is None:
            return self._without_session(tracked)
        if not self._answered(tracked, session, fresh=True):
            return None, False
        found = tracked.match.found
        if found > 0 and self._adapted.looks_again(tracked):
            return None, False
        if not tracked.planned.may_load:
            return 0, False
        if not tracked.counted:
            tracked.counted = True
            self.stats.add("asked_tokens", tokens)
        # A load ends before blocks of a lower tier that would come later than they are computed; but with windows a
        # match may end only where it does.
        ends = load_ends(tracked.match.runs, computed_tokens // self._facts.block_tokens) if found > 0 else []
        if self._windows:
            ends = ends[:1]
        in_memory = 0
        for blocks, ready_s in ends:
            more = self._plan.external_tokens(request_id, blocks, computed_tokens, tokens)
            if more <= 0 or more < self._options.min_load_tokens:
                break
            tail = tokens - computed_tokens - more
            worth = partial(self._pace.worth, more, self._rank_bytes(more), ready_s, computed_tokens, tail)
            if self._options.min_load_tokens or worth():
                self._pace.accept()
                return more, True
            in_memory = more if ready_s == 0 else in_memory
        if in_memory and self._probes(tracked):
            return in_memory, True
        return 0, False

    def _probes(self, tracked: TrackedRequest) -> bool:
        """Whether a request whose hit is not worth its load loads it all the same. Asked again, it is answered the
        same."""
        if tracked.probes is None:
            tracked.probes = self._pace.decline()
            self.stats.add("declined")
            self.stats.add("probes", int(tracked.probes))
        return tracked.probes

    def begin_load(self, request_id: str, pages: Pages, external_tokens: int) -> None:
        """The engine has made room for what match() answered."""
        tracked = self._requests.get(request_id)
        if external_tokens == 0 or tracked is None:
            return
        self._adapted.begins_load(tracked)
        begin, size = tracked.matched_at, self._facts.block_tokens
        tracked.loaded_to = begin + external_tokens
        where = lowest_tier(tracked.match.runs, begin // size, (begin + external_tokens) // size)
        order = replace(
            self._plan.load(request_id, begin, external_tokens, pages, where),
            deadline_us=int(self._options.load_timeout_s * 1e6),
            worth_us=0 if tracked.probes else int(self._pace.compute_s(external_tokens, begin) * 1e6),
        )
        self._loads.append(order)
        tracked.loading_since = time.monotonic()
        if not order.invalid:
            # With windows a chain that ends sooner than the one that matched may lack what lies behind its end.
            end, more = order.first_block + len(order.keys), 1 + self._facts.drafts if self._windows else 0
            self._leases.take(order, tracked.planned.keys[: max(end, min(end + more, tracked.match.found))])

    def load_tiers(self, request_id: str, external_tokens: int) -> dict[str, int]:
        """How many of the tokens that begin_load() was given come from each tier, as the match found them."""
        tracked = self._requests.get(request_id)
        if tracked is None:
            return {}
        begin = tracked.matched_at
        return tokens_by_tier(tracked.match.runs, self._facts.block_tokens, begin, begin + external_tokens)

    def end_request(self, request_id: str, pages: Pages) -> dict[str, Any] | None:
        """The engine is done with the request: its pages may be reused when this returns, unless referenced. Returns
        what the client is told of its load."""
        tracked = self._requests.get(request_id)
        if tracked is None:
            return None
        self._adapted.identified(tracked)
        if tracked.computing:
            self._add_keys(tracked)
            frontier = self._frontier(tracked, 0)
            if self._plan.wants(request_id, frontier) and self._may_save(tracked, last=True):
                self._save_rest(request_id, frontier, pages)
        elif self._own is not None:
            self._own.end(tracked)
        del self._requests[request_id]
        self._plan.end(request_id)
        planned = tracked.planned
        self._end_conversation(tracked)
        self._settle_conversations()
        if not planned.loaded_tokens:
            return None
        return {
            f"{PREFIX}loaded_tokens": planned.loaded_tokens,
            f"{PREFIX}where": planned.loaded_from,
            f"{PREFIX}load_ms": round(planned.load_us / 1000, 3),
        }

    # ------------------------------------------------------------------ a step

    def step_orders(self, scheduled: Mapping[str, int]) -> StepOrders:
        """Orders for the step that the engine has just planned, with so many tokens of each request."""
        self._step += 1
        self._shared.refresh()
        self._matches.collect()
        self._settle_looks()
        if not scheduled and any(one.waits for one in self._requests.values()):
            self.makes_room(WAITING_ROOM_S)
        due, squares = [], 0
        for request_id, tokens in scheduled.items():
            tracked = self._requests.get(request_id)
            if tracked is None:
                continue
            begins, tracked.computing = not tracked.computing, True
            squares += tokens * (2 * tracked.request.computed_tokens + tokens)
            self._adapted.computes(tracked)
            self._add_keys(tracked)
            frontier = self._frontier(tracked, tokens)
            if self._own is not None:
                if begins and not self._own.begin(tracked):
                    self._keep_out(tracked)
                self._own.computes(tracked, frontier)
            if tracked.planned.stopped:
                self._resume(tracked)
            if self._plan.wants(request_id, frontier) and self._may_save(tracked):
                due.append((request_id, frontier, self._pool.pages_of(request_id)))
        saves, self._late_saves = self._late_saves, []
        if due:
            saves += self._order_saves(self._step, due)
        loads, self._loads = self._loads, []
        tokens = sum(scheduled.values())
        timed = bool(saves) or self._is_timed(tokens)
        if timed:
            self._timed_steps[self._step] = (time.monotonic(), tokens, squares)
        return StepOrders(
            self._step, self._shared.spec_to_join, self._shared.number, loads, saves, bool(scheduled), self._epoch,
            self._outdated.take_failed(), self._changes.step, self._changes.ask(self._step), timed,
        )

    def _is_timed(self, tokens: int) -> bool:
        """Whether a step that saves nothing is timed: an engine that loads compares with what computing takes."""
        if not self._options.load or tokens == 0:
            return False
        self._untimed += 1
        if self._untimed < TIMED_EVERY and tokens <= self._pace.steps.longest:
            return False
        self._untimed = 0
        return True

    def handle_reports(self, reports: Sequence[RankReport], invalid_pages: set[int]) -> None:
        """A step's reports, of all ranks together, and the pages that the step's output names as not loaded."""
        ours: set[int] = set()
        for report in reports:
            if report.facts is not None:
                self._shared.add_rank(report.facts)
            self._shared.rank_joined(report.rank, report.session, report.namespaces)
            if self._changes.answered(report.begun, report.weights_step):
                self._logger.info("cistern: this engine's weights have changed: a fresh generation")
                self._fork()
            report.loads = [loaded for loaded in report.loads if not self._outdated.ends_well(loaded)]
            for loaded in report.loads:
                ours.update(loaded.bad_pages)
                if loaded.message:
                    self.warn(f"load {loaded.code}", f"blocks are not loaded: {loaded.message}")
            for saved in report.saves:
                self.stats.add("saved_bytes", saved.moved_bytes)
                if saved.message:
                    self.warn(f"save {saved.code}", f"blocks are not saved: {saved.message}")
        self._measure_step(max((report.step for report in reports), default=0))
        self._apply(
            self._plan.report(
                [report.step for report in reports if report.step],
                [saved for report in reports for saved in report.saves],
                [loaded for report in reports for loaded in report.loads],
                foreign_failure=bool(invalid_pages - ours),
            )
        )

    def withhold(self, finished: set[str]) -> set[str]:
        """Of the requests whose load has ended on every rank, those that must not run on what it brought."""
        return self._outdated.withhold(finished)

    def left_by_caller(self, rank: Rank) -> None:
        """To be called with every step of an engine that its caller steps in its own process, with its rank. Where no
        request is left the caller may not step it again: what they left to save begins. Who waits for the last answer
        does not wait for these copies: the next request or the process's end sees to their reports."""
        self._beside = rank
        if self._requests or not self.pending:
            return
        if self._late_saves:
            self._step += 1
            late, self._late_saves = self._late_saves, []
            rank.begin(
                StepOrders(
                    self._step, None, self._shared.number, [], late, computes=False, epoch=self._epoch,
                    weights_step=self._changes.step,
                )
            )
        self._catch_up()

    def finish_in_process(self) -> None:
        """Waits until the saves of the same engine are published, where no request is left, and what was submitted to
        the node is done."""
        self._catch_up(IDLE_S)
        if self._beside is not None:
            self._settle_looks(last=True)
            self.connection.flush(1.0)

    def _catch_up(self, most_s: float = 0.0) -> None:
        """Takes the reports that no step of the same engine brings; waits so long for those that are due."""
        rank = self._beside
        if rank is None or self._requests or not self.pending:
            return
        if most_s:
            rank.wait_idle(most_s)
        rank.poll()
        report = rank.report()
        if report is not None:
            self.handle_reports([report], set())
        self._settle_looks(behind=True)

    @property
    def pending(self) -> bool:
        """Whether steps are needed although no request is left."""
        return bool(self._plan.saves or self._late_saves or self._written.looks)

    # ------------------------------------------------------------------ reset and end

    def reset(self) -> bool:
        """The engine's weights may be others from now on. False while a load is under way: every rank refuses its
        blocks, but the engine should ask again."""
        if self._options.on_reset == "ignore":
            return True
        self.stats.add("resets")
        self._shared.refresh()
        session = self._shared.session
        if self._options.on_reset == "drop":
            if session is None:
                self.warn(
                    "reset",
                    "the engine was reset with on_reset=drop while no node was there: what is stored under its former "
                    "generation was not dropped, and leaves by itself; `cistern admin drop` drops it now",
                )
            else:
                self.connection.submit(partial(_drop_namespaces, session), kept=True)
            self._written.forget()
        self._fork()
        return self._plan.loads == 0

    def prefix_cache_emptied(self) -> None:
        """The engine has emptied its own prefix cache, without a word to this side: it may be that its weights have
        changed. The ranks are asked, and nothing is shared until they have answered."""
        self._adapted.prefix_cache_emptied()
        if self._own is not None:
            self._own.prefix_cache_emptied()
        self._changes.emptied(self._step + 1)

    def _fork(self) -> None:
        """Goes on under a fresh weights generation."""
        fresh = {
            one.planned.id for one in self._requests.values()
            if not one.computing and one.request.computed_tokens == 0 and one.request.adapter is None
        }
        self._apply(self._plan.reset(fresh))
        self._epoch += 1
        self._changes.forked(self._step + 1)
        self._outdated.reset(self._plan.load_orders())
        self._loads = [replace(order, invalid=True) for order in self._loads]
        self._late_saves = [replace(order, invalid=True) for order in self._late_saves]
        for tracked in self._requests.values():
            self._end_conversation(tracked)  # what it wrote is in namespaces of before
            if tracked.request.adapter is not None:
                tracked.ends_after = None
            if tracked.request.id not in fresh:
                tracked.adapter, tracked.may = None, (False, False)
        self._unidentified.clear()
        self._shared.reset()
        if self._listener is not None:
            self._listener.forked()

    def release_pages(self) -> None:
        """The engine is about to empty its own cache, for which no page may be in use. Where those of saves are all
        that still are, they go back: what they were read for is computed anew."""
        self.finish_in_process()
        if self._plan.referenced_pages and self._pool.used() == self._plan.distinct_pages:
            self._apply(self._plan.release())

    def makes_room(self, most_s: float = ROOM_S) -> bool:
        """The engine finds no page for a request that runs, and is about to take another one's. True where pages of
        saves come back, which the engine waits for: with their copies' ends, or, where these take longer than that,
        without; what they were read for is not saved then."""
        if not self._plan.keeps_pages_of_ended:
            return False
        now, (since, step) = time.monotonic(), self._short
        self._short = (since if step >= self._step - 1 else now), self._step
        if now - self._short[0] >= most_s:
            self._apply(self._plan.release(of_ended=True))
            self._late_saves = [replace(order, invalid=True) for order in self._late_saves]
        return True

    def close(self) -> None:
        self.finish_in_process()
        self._late_saves = []
        self._apply(self._plan.finish())
        self._settle_looks(last=True)
        self._adapted.close()
        self.connection.close()

    # ------------------------------------------------------------------ the session

    def _specify_session(self, tracked: TrackedRequest) -> None:
        """From the first request on the hash seed is set and keys are known; the ranks may not have reported yet."""
        if tracked.request.hashes:
            self._shared.specify_first()

    def _ready(self, tracked: TrackedRequest) -> Session | None:
        self._specify_session(tracked)
        return self._shared.ready(tracked.planned.namespace)

    def _without_session(self, tracked: TrackedRequest) -> tuple[int | None, bool]:
        """The answer to a match: None while a session can be expected; afterwards the engine computes."""
        if self._shared.refused:
            return 0, False
        if self._shared.expected(tracked.planned.namespace):
            return None, False
        self.stats.add("without_node")
        return 0, False

    def _while_doubtful(self, tracked: TrackedRequest) -> tuple[int | None, bool]:
        """The answer to a match: None while the ranks look at their weights, which takes them a step."""
        if not self._changes.awaited:
            return 0, False
        now = time.monotonic()
        tracked.first_asked = tracked.first_asked or now
        return (None if now - tracked.first_asked < LOOK_S else 0), False

    def _forget_answers(self) -> None:
        """The store is another one, which may have nothing of what was saved: a request saves on behind what it has."""
        for request_id, tracked in self._requests.items():
            tracked.match.forget()
            tracked.stopped_until = 0.0
            self._plan.resume(request_id)

    # ------------------------------------------------------------------ matches and saves

    def _add_keys(self, tracked: TrackedRequest) -> None:
        """A request that its engine has continued with further input is not shared from there on: what of its answer
        stays in its prompt, and which names its new images have, was not known when it came."""
        if tracked.request.prompt_tokens != tracked.prompt_tokens:
            tracked.stop_sharing()
            return
        keys, facts = tracked.planned.keys, self._facts
        more = new_keys(tracked.request.hashes, len(keys), facts.hash_tokens, facts.block_tokens)
        if more:
            keys += more
            tracked.chain.extend(more)

    def _keep_out(self, tracked: TrackedRequest) -> None:
        """Saves nothing of a request that stands on what is not known to be this engine's own."""
        if tracked.may[0]:
            tracked.stop_saving()
            self.warn(
                "foreign",
                "requests that stand on KV which another connector brought are not saved: another engine may have "
                "computed it",
            )

    def _frontier(self, tracked: TrackedRequest, scheduled: int) -> int:
        request = tracked.request
        return self._plan.frontier(
            computed=request.computed_tokens, scheduled=scheduled, placeholders=request.placeholder_tokens,
            prompt_tokens=request.prompt_tokens, tokens=request.tokens,
        )

    def _begin_match(self, tracked: TrackedRequest) -> None:
        """Asks the store as soon as the request is there: what of it lies on flash begins to come up."""
        if not any(tracked.may):
            return
        self._add_keys(tracked)
        session = self._ready(tracked) if tracked.planned.keys else None
        if session is not None:
            self._matches.begin(tracked.match, session, tracked.planned.namespace, tracked.chain)

    def _may_save(self, tracked: TrackedRequest, last: bool = False) -> bool:
        """Whether the request can be saved now, but for what the store has of it; with the next step, where that is not
        known yet. `last`: there is none, and what the store has is refused by it."""
        if self._changes.doubtful:
            return False
        session = self._ready(tracked)
        if session is None:
            return False
        if not tracked.planned.matched:
            if not self._answered(tracked, session, fresh=False) and not last:
                return False
            self._plan.found(tracked.request.id, max(0, tracked.match.found))
        return True

    def _resume(self, tracked: TrackedRequest) -> None:
        """Has a request that stopped saving go on once its time has come: a node that drained for seconds does not have
        one of hours unsaved."""
        now = time.monotonic()
        if not tracked.stopped_until:
            tracked.stopped_until = now + STOPPED_S * 2**tracked.stops
            tracked.stops += 1
        elif now >= tracked.stopped_until:
            tracked.stopped_until = 0.0
            tracked.match.forget()
            self._plan.resume(tracked.request.id)

    def _answered(self, tracked: TrackedRequest, session: Session, fresh: bool) -> bool:
        """Whether the store has said what it has of the request's chain. `fresh`: of all of it, just now."""
        match = tracked.match
        if not match.looked_at:  # else somebody waits for this answer, and takes it however long the step was
            self._matches.take(match)
        if not match.fresh(len(tracked.chain)) and (fresh or match.found < 0):
            self._matches.begin(match, session, tracked.planned.namespace, tracked.chain)
            if not self._matches.answered(match, session):
                return False
        if match.news:
            match.news = False
            if self._listener is not None and match.found < match.keys:
                self._listener.missing(tracked.planned.keys[match.found : match.keys], match.asked_at)
            name, namespace = tracked.planned.conversation, tracked.planned.namespace
            if name and match.found > tracked.used:
                tracked.used = match.found
                self._conversations.use(session, namespace, name, tracked.planned.keys[match.found - 1])
        return True

    def _rank_bytes(self, tokens: int) -> int:
        """Bytes of so many tokens on one rank."""
        return tokens // self._facts.block_tokens * self._shared.block_bytes // self._facts.ranks

    def _order_saves(self, step: int, due: list[tuple[str, int, Pages]]) -> list[SaveOrder]:
        before = self._plan.blocks_left_out
        orders = self._plan.save(step, due)
        self.stats.add("left_out", self._plan.blocks_left_out - before)
        session = self._shared.session
        for order in orders:
            self._pool.reference(self._plan.referenced(order.id))
            if session is not None:
                look = self._adapted.look(self._requests.get(self._plan.request_of(order.id)))
                self._written.ordered(order, session, look)
        if self._listener is not None:
            for order in orders:
                tracked = self._requests.get(self._plan.request_of(order.id))
                if tracked is not None:
                    self._listener.ordered(order, tracked.request)
        return orders

    def _save_rest(self, request_id: str, frontier: int, pages: Pages) -> None:
        """Of a request that has ended, with the next step: an order has so many blocks at most, and no later step
        orders the others."""
        left_out = self._plan.blocks_left_out
        while orders := self._order_saves(self._step + 1, [(request_id, frontier, pages)]):
            self._late_saves += orders
        if self._plan.blocks_left_out > left_out:
            lost = self._plan.unsaved(request_id, frontier)
            self.stats.add("not_saved", lost)
            self.warn(
                "not saved",
                f"{lost} blocks of a request that has ended are not saved: saves on their way have "
                f"{self._plan.referenced_pages} of the {self._plan.limits.max_pages} pages that they may keep from "
                "reuse (max_pages_share)",
            )

    # ------------------------------------------------------------------ effects

    def _apply(self, effects: Effects) -> None:
        if effects.release:
            self._pool.release(effects.release[::-1])
        blocks = {job.order.id: count for job, count in effects.publish}
        ended = [*blocks, *(number for number, _ in effects.abandon if number not in blocks)]
        places = {number: self._written.ended(number) for number in ended}
        for number in ended:
            if number not in blocks:
                self._tell_published({number: 0}, True)
        puts: dict[Place | None, tuple[list[bytes], dict[int, int]]] = {}
        for job, count in effects.publish:
            chosen = [put for block in range(count) for group in job.order.put_ids if (put := group[block]) is not None]
            ids, counts = puts.setdefault(places[job.order.id], ([], {}))
            ids += chosen
            counts[job.order.id] = count
            self.stats.add("saves")
        for place, (ids, counts) in puts.items():
            self._written.publish(place, ids, partial(self._tell_published, counts))
        for number, ids in effects.abandon:
            self.stats.add("abandoned_blocks", len(ids))
            self._written.abandon(places[number], ids)
        for load in effects.loaded:
            self._leases.release(load.order.id)
            reports = list(load.ranks.values())
            good = min(report.blocks for report in reports)
            took_us = max(report.took_us for report in reports)
            self.stats.add("loads")
            self.stats.add("failed_loads", int(good < len(load.order.keys)))
            if good < len(load.order.keys) and (tracked := self._requests.get(load.request)) is not None:
                tracked.match.forget()  # it said that what is lost was there
            tokens = good * self._facts.block_tokens
            self.stats.add("hit_tokens", tokens)
            self._report(load.order, tokens, took_us)
            self.stats.add("loaded_bytes", sum(report.moved_bytes for report in reports))
            self.stats.add("load_us", took_us)
            whole = good == len(load.order.keys)
            if whole and (waiting := self._requests.get(load.request)) is not None:
                self._pace.load_ended(time.monotonic() - waiting.loading_since - took_us / 1e6)
            if load.order.where == "memory":
                self._pace.load(max(report.moved_bytes for report in reports), took_us / 1e6)
        self._settle_conversations()

    def _tell_published(self, blocks: Mapping[int, int], visible: bool) -> None:
        """`blocks`: how many of each order become visible, or would have."""
        count = sum(blocks.values())
        if count:
            self.stats.add("published_blocks" if visible else "abandoned_blocks", count)
        if self._listener is not None:
            for number, leading in blocks.items():
                self._listener.published(number, leading if visible else 0)

    def _end_conversation(self, tracked: TrackedRequest) -> None:
        """Has the conversation end that this request ends, if any: as soon as it is known where it is."""
        planned = tracked.planned
        if tracked.ends_after is None:
            return
        if not self._adapted.identified(tracked):
            self._unidentified.append(tracked)
        elif tracked.request.adapter is None or tracked.digest:
            self._conversations.end(
                Ending(
                    self.connection.session, self._shared.specified, planned.namespace, planned.conversation,
                    tracked.ends_after,
                )
            )

    def _settle_conversations(self) -> None:
        for _ in range(len(self._unidentified)):
            self._end_conversation(self._unidentified.popleft())
        self._conversations.settle()

    def _settle_looks(self, behind: bool = False, last: bool = False) -> None:
        if self._written.looks:
            self._written.settle(behind, last)
            self._settle_conversations()

    def _report(self, order: LoadOrder, delivered_tokens: int, spent_us: int) -> None:
        """Tells the node of a load that has ended; what it saved is unknown until a step has been measured."""
        size = self._facts.block_tokens
        promised_tokens = len(order.keys) * size
        saved_us = int(self._pace.compute_s(delivered_tokens, order.first_block * size) * 1e6)

        def work(session: Session) -> None:
            session.store.report(
                promised_tokens=promised_tokens, delivered_tokens=delivered_tokens, saved_us=saved_us, spent_us=spent_us
            )

        self.connection.submit(work)

    def _measure_step(self, step: int) -> None:
        """Measures how long a reported step took beside the others in flight. Only steps that are timed report their
        number."""
        now = time.monotonic()
        if step in self._timed_steps:
            planned, tokens, squares = self._timed_steps.pop(step)
            self._pace.step(tokens, now - max(planned, self._last_report), squares)
        self._last_report = now


def _drop_namespaces(of: Session, now: Session) -> None:
    for number, namespace in enumerate(of.namespaces):
        known = now.store is of.store  # a node that was started anew, or reached anew, has it under its fields
        if known:
            try:
                now.store.drop_namespace(namespace, deadline_us=CALL_US)
            except Missed:  # somebody dropped it already, and others may have written there since
                known = False
        if not known:
            namespace = now.store.attach(of.spec.namespace_spec(number), deadline_us=CALL_US)
            now.store.drop_namespace(namespace, deadline_us=CALL_US)
