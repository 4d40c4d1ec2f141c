# SPDX-License-Identifier: Apache-2.0
"""The scheduler side: vLLM's calls in, orders for the ranks out. What may be done is the plan's to say."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from .. import Chain, Error, Gone, Lease, MatchRun
from . import identity, versions
from .conversations import Conversations
from .events import Stored
from .groups import ConfigurationError, read_groups
from .keys import content_hashed, new_keys
from .link import CALL_US, Joined, Link, Target
from .node import NodeStarter, socket_path
from .options import PREFIX, Options, wishes
from .orders import GroupShape, Hello, LoadOrder, RankReport, SaveOrder
from .pace import Pace
from .plan import Effects, Limits, Plan, Tracked
from .stats import CisternStats
from .tiers import lowest, reaches

if TYPE_CHECKING:
    from .worker import Worker

logger = logging.getLogger("vllm.cistern")

ANSWER_GOOD_S = 1.0
"""How long an answer of the store is given again without looking."""
QUIET_S = 1.0
"""How long nothing is asked after the node did not answer in time."""
HOLD_EXTRA_US = 1_000_000
JOIN_S = 2.0
"""How long a request waits for the ranks to follow into a new session."""
IDLE_S = 2.0
"""How long an engine whose caller may not step it again waits for its last saves."""
PUBLISH_AT_ONCE = 1024


@dataclass
class _Live:
    """A request, the engine's and ours."""

    request: Any
    tracked: Tracked
    chain: Chain
    computing: bool = False
    """It was scheduled since it last asked for a match: what counts as computed is, or is being, computed."""
    asked_at: int = 0
    """Tokens that were computed when it last asked: where a load begins."""
    found: int = -1
    found_at: float = 0.0
    found_keys: int = 0
    runs: tuple[MatchRun, ...] = ()
    """Of what was found: where it lay."""
    first_asked: float = 0.0
    used: int = 0
    """Leading blocks that the store knows its conversation to use."""
    ends_conversation: bool = False
    counted: bool = False


class Scheduler:
    def __init__(self, options: Options, vllm_config: Any, kv_cache_config: Any, version: str) -> None:
        self._options = options
        self._config = vllm_config
        self._kv = kv_cache_config
        self._ranks = int(vllm_config.parallel_config.world_size)
        self._replicas = versions.identical_ranks(vllm_config, kv_cache_config)
        self._block_tokens, self._hash_tokens = versions.block_sizes(vllm_config, kv_cache_config)
        self._groups = read_groups(vllm_config, kv_cache_config, self._block_tokens)
        self._fields, doubt = identity.engine_fields(vllm_config, kv_cache_config, version)
        if doubt:
            logger.warning("cistern: this engine shares its KV with no other: %s", doubt)
        self._adapters = identity.Adapters()
        self._namespaces: dict[str, int] = {"": 0}
        self._generation = "0"
        self._hellos: dict[int, Hello] = {}
        self._socket = socket_path(options)
        self._link = Link(NodeStarter(options) if options.start_node else None)
        self._target_number = 0
        self._joined: Joined | None = None
        self._session: Target | None = None
        self._session_number = 0
        self._joined_ranks: dict[int, int] = {}
        self._stood = 0
        """The number of the last target that all ranks have joined."""
        self._session_at = 0.0
        self._quiet_until = 0.0
        self._plan = Plan(
            Limits(
                ranks=self._ranks,
                block_tokens=self._block_tokens,
                pages_per_block=tuple(group.pages_per_block for group in self._groups),
                max_pages=max(1, int(kv_cache_config.num_blocks * options.max_pages_share)),
                drop_last=vllm_config.speculative_config is not None,
            )
        )
        self._conversations = Conversations(self._link, self._plan)
        self._live: dict[str, _Live] = {}
        self._manager: Any = None
        self._pool: Any = None
        self._step = 0
        self._loads: list[LoadOrder] = []
        self._late_saves: list[SaveOrder] = []
        self._holds: dict[int, Lease] = {}
        self._pace = Pace()
        self._steps: dict[int, tuple[float, int]] = {}
        self._last_update = 0.0
        self.stats = CisternStats()
        self.stored = Stored(vllm_config)
        self._page_bytes = 0
        self._began = time.monotonic()
        self._told: set[str] = set()

    def bind(self, manager: Any) -> None:
        self._manager = manager
        self._pool = manager.block_pool

    # ------------------------------------------------------------------ a request

    def arrived(self, request: Any) -> None:
        wish, wrong = wishes(request.kv_transfer_params)
        for text in wrong:
            self._say(f"kv_transfer_params: {text}; the request is neither saved nor loaded")
        may = not (request.mm_features and not all(content_hashed(f.identifier) for f in request.mm_features))
        namespace = self._namespace_of(request)
        save = self._options.save
        tracked = Tracked(
            id=request.request_id,
            namespace=max(0, namespace),
            may_save=may and namespace >= 0 and save != "none" and not (wish.no_save or wish.end_conversation),
            may_load=may and namespace >= 0 and self._options.load and not wish.no_load,
            save_limit_tokens=request.num_prompt_tokens if save == "prompt" else None,
            ttl_s=self._options.ttl_s if wish.ttl_s is None else wish.ttl_s,
            conversation=wish.conversation or "",
            priority=wish.priority,
        )
        self._plan.begin(tracked)
        self._live[request.request_id] = _Live(request, tracked, Chain(), ends_conversation=wish.end_conversation)
        self._settle_session(request)

    def match(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        live = self._live.get(request.request_id)
        if live is None:
            return 0, False
        live.computing = False
        live.asked_at = computed_tokens
        if not live.tracked.may_load or getattr(request, "skip_reading_prefix_cache", False):
            return 0, False
        self._grow(live)
        most = len(live.tracked.keys)
        if self._plan.external_tokens(request.request_id, most, computed_tokens, request.num_tokens) == 0:
            return 0, False
        joined = self._ready(live)
        if joined is None:
            return self._not_ready(live)
        found = self._found(live, joined)
        if not live.counted:
            live.counted = True
            self.stats.add("asked_tokens", request.num_tokens)
        # Not all of it where what lies below memory would come later than it is computed; but with windows a
        # match may end only where it does.
        ends = reaches(live.runs, computed_tokens // self._block_tokens) if found > 0 else []
        if any(group.window_tokens for group in self._groups):
            ends = ends[:1]
        for blocks, ready_s in ends:
            tokens = self._plan.external_tokens(request.request_id, blocks, computed_tokens, request.num_tokens)
            if tokens <= 0 or tokens < self._options.min_load_tokens:
                break
            if self._options.min_load_tokens or self._pace.worth(tokens, self._bytes_of(tokens), ready_s):
                return tokens, True
        return 0, False

    def allocated(self, request: Any, pages: Sequence[Sequence[int]], external_tokens: int) -> None:
        live = self._live.get(request.request_id)
        if external_tokens == 0 or live is None:
            return
        first, end = (tokens // self._block_tokens for tokens in (live.asked_at, live.asked_at + external_tokens))
        where = lowest(live.runs, first, end)
        order = self._plan.load(request.request_id, live.asked_at, external_tokens, tuple(pages), where)
        worth_s = self._pace.compute_s(external_tokens)
        order = replace(
            order,
            deadline_us=int(self._options.load_timeout_s * 1e6),
            worth_us=int(worth_s * 1e6),
        )
        self._loads.append(order)
        if not order.doomed:
            self._hold(live, order)

    def ended(self, request: Any, pages: Sequence[Sequence[int]]) -> dict[str, Any] | None:
        """The engine is done with it; its pages may be reused when this returns, unless referenced."""
        live = self._live.pop(request.request_id, None)
        if live is None:
            return None
        if live.computing:
            self._grow(live)
            frontier = self._frontier(live, 0)
            if self._plan.wants(request.request_id, frontier) and self._may_save(live):
                self._late_saves += self._order(self._step + 1, [(request.request_id, frontier, tuple(pages))])
        self._plan.end(request.request_id)
        tracked = live.tracked
        if live.ends_conversation and (joined := self._link.joined) is not None:
            self._conversations.end(joined, tracked.namespace, tracked.conversation)
        if not tracked.loaded_tokens:
            return None
        return {
            f"{PREFIX}loaded_tokens": tracked.loaded_tokens,
            f"{PREFIX}where": tracked.loaded_from,
            f"{PREFIX}load_ms": round(tracked.load_us / 1000, 3),
        }

    # ------------------------------------------------------------------ a step

    def orders(
        self, scheduled: dict[str, int]
    ) -> tuple[int, Target | None, int, list[LoadOrder], list[SaveOrder], bool]:
        """For the step that vLLM has just planned: its number, the session where a rank has not joined it, the
        session's number, loads, saves, whether the step computes."""
        self._step += 1
        self._notice_joined()
        due = []
        for request_id, tokens in scheduled.items():
            live = self._live.get(request_id)
            if live is None:
                continue
            live.computing = True
            self._grow(live)
            frontier = self._frontier(live, tokens)
            if self._plan.wants(request_id, frontier) and self._may_save(live):
                due.append((request_id, frontier, self._manager.get_block_ids(request_id)))
        saves, self._late_saves = self._late_saves, []
        if due:
            saves += self._order(self._step, due)
        loads, self._loads = self._loads, []
        if saves:
            self._steps[self._step] = (time.monotonic(), sum(scheduled.values()))
        session = None if self._all_ranks_joined() else self._session
        return self._step, session, self._session_number, loads, saves, bool(scheduled)

    def came_back(self, reports: Iterable[RankReport], invalid_pages: set[int]) -> None:
        """A step's output, of all ranks together."""
        reports = list(reports)
        ours: set[int] = set()
        for report in reports:
            if report.hello is not None:
                self._hello(report.hello)
            self._joined_ranks[report.rank] = max(self._joined_ranks.get(report.rank, 0), report.session)
            for loaded in report.loads:
                ours.update(loaded.bad_pages)
                if loaded.message:
                    self._say(f"blocks are not loaded: {loaded.message}")
            for saved in report.saves:
                self.stats.add("saved_bytes", saved.moved_bytes)
                if saved.message:
                    self._say(f"blocks are not saved: {saved.message}")
        self._measure(max((report.step for report in reports), default=0))
        self._apply(
            self._plan.report(
                [report.step for report in reports if report.step],
                [saved for report in reports for saved in report.saves],
                [loaded for report in reports for loaded in report.loads],
                foreign_failure=bool(invalid_pages - ours),
            )
        )

    def finish_in_process(self, worker: Worker) -> None:
        """For an engine that has nothing left to run and that may not be stepped again: what it saved is seen."""
        from .connector import StepOrders

        if self._live or not (self._plan.saves or self._late_saves):
            return
        if self._late_saves:
            self._step += 1
            late, self._late_saves = self._late_saves, []
            worker.begin(StepOrders(self._step, None, self._session_number, [], late, computes=False))
        worker.wait_idle(IDLE_S)
        report = worker.report()
        if report is not None:
            self.came_back([report], set())
        self._link.flush(1.0)

    @property
    def pending(self) -> bool:
        """Whether steps are needed although no request is left."""
        return bool(self._plan.saves or self._late_saves)

    # ------------------------------------------------------------------ reset and end

    def reset(self) -> bool:
        """The engine's weights may be others from now on. False where a load is still under way: what it brings
        is refused by every rank, but the engine should ask again."""
        if self._options.on_reset == "ignore":
            return True
        self.stats.add("resets")
        joined = self._joined
        dropped = self._options.on_reset != "drop" or (joined is not None and self._drop(joined))
        self._apply(self._plan.reset())
        self._late_saves = []
        self._generation = identity.fresh_generation()
        self._namespaces = {"": 0}
        self._adapters = identity.Adapters()
        for live in self._live.values():
            live.found = -1
        self._aim()
        return dropped and self._plan.loads == 0

    def _drop(self, joined: Joined) -> bool:
        try:
            for namespace in joined.namespaces:
                joined.store.drop_namespace(namespace)
        except Error as error:
            self._say(f"what is stored could not be dropped: {error}")
            return False
        return True

    def close(self) -> None:
        self._late_saves = []
        self._apply(self._plan.give_up_lost())
        self._link.close()

    # ------------------------------------------------------------------ the session

    def _hello(self, hello: Hello) -> None:
        self._hellos[hello.rank] = hello
        hosts = {one.host for one in self._hellos.values()}
        devices = {one.device for one in self._hellos.values()}
        if len(hosts) > 1 or len(devices) > 1:
            raise ConfigurationError(
                f"the engine's ranks are on {len(hosts)} hosts and {len(devices)} kinds of device: Cistern shares "
                "KV among the ranks of one host; run all ranks of an engine on one"
            )

    def _settle_session(self, request: Any) -> None:
        """From the first request on the hash seed is set and keys are known; the workers may not have said hello
        yet."""
        if self._target_number == 0 and len(self._hellos) == self._ranks and request.block_hashes:
            self._aim()

    def _aim(self) -> None:
        if len(self._hellos) < self._ranks:
            return
        seed = versions.hash_seed()
        cache = self._config.cache_config
        ranks = [self._hellos[rank] for rank in range(self._ranks)]
        self._page_bytes = sum(
            hello.page_bytes[group] * one.pages_per_block for hello in ranks for group, one in enumerate(self._groups)
        )
        algorithm = str(cache.prefix_caching_hash_algo)
        common = self._fields.with_(
            *identity.hash_fields(algorithm, seed, self._hash_tokens, self._block_tokens, len(seed)),
            *identity.worker_fields(ranks[0].device, [h.isa for h in ranks], [h.layout for h in ranks], self._replicas),
            ("generation", self._generation),
        )
        parts = ranks[:: self._replicas]
        self._target_number += 1
        self._link.aim(
            Target(
                number=self._target_number,
                socket=str(self._socket),
                tenant=self._options.tenant,
                owner=None,
                fields=tuple(common.with_(("adapter", digest)).items for digest in self._namespaces),
                groups=tuple(
                    GroupShape(
                        one.name, "window" if one.window_tokens else "full", one.window_tokens,
                        tuple(hello.page_bytes[group] for hello in parts for _ in range(one.pages_per_block)),
                    )
                    for group, one in enumerate(self._groups)
                ),
                block_tokens=self._block_tokens,
                trusted_keys=self._options.trusted_keys,
                flash_write=self._options.flash_write,
                flash_admit=self._options.flash_admit,
            )
        )

    def _notice_joined(self) -> None:
        """A session that came, went or changed since the last look."""
        joined = self._link.joined
        if joined is not None and joined.target.number != self._target_number:
            joined = None  # of before a reset, or without the newest adapter
        if joined is self._joined:
            return
        if self._joined is not None and (joined is None or joined.store is not self._joined.store):
            for live in self._live.values():
                live.found = -1
        self._joined = joined
        if joined is None:
            self._session = None
            return
        self._session_number += 1
        self._session_at = time.monotonic()
        self._session = replace(joined.target, number=self._session_number, owner=joined.store.owner)

    def _all_ranks_joined(self) -> bool:
        session = self._session
        return session is not None and all(
            self._joined_ranks.get(rank, 0) >= session.number for rank in range(self._ranks)
        )

    def _ready(self, live: _Live) -> Joined | None:
        """The session, once every rank has joined it: what is answered earlier could not be carried out."""
        if self._target_number == 0:
            self._settle_session(live.request)
        self._notice_joined()
        joined = self._joined
        if joined is None or live.tracked.namespace >= len(joined.namespaces) or not self._all_ranks_joined():
            return None
        self._stood = joined.target.number
        return joined

    def _not_ready(self, live: _Live) -> tuple[int | None, bool]:
        """None (ask again with the next step) while a session can be expected, at start and for a new adapter, or
        the ranks are joining a new one; afterwards the engine computes."""
        now = time.monotonic()
        live.first_asked = live.first_asked or now
        if self._link.refused:
            if self._options.required:
                raise ConfigurationError(f"the node refuses this engine: {self._link.refused}")
            return 0, False
        there = self._link.joined is not None
        fresh = self._stood == 0 or (there and self._stood < self._target_number)
        expected = len(self._hellos) < self._ranks or self._link.failures == 0 or self._options.start_node
        joining = self._session is not None and not self._all_ranks_joined() and now - self._session_at < JOIN_S
        if joining or (fresh and expected and now - live.first_asked < self._options.start_timeout_s):
            return None, False
        if self._options.required and self._session_number == 0:
            raise ConfigurationError(f"no node answers at {self._socket}, and \"required\" is set")
        self.stats.add("without_node")
        return 0, False

    # ------------------------------------------------------------------ inside

    def _namespace_of(self, request: Any) -> int:
        """-1: the adapter is in doubt, its KV is not shared."""
        adapter = request.lora_request
        if adapter is None:
            return 0
        try:
            digest = self._adapters.digest(
                adapter.lora_name, adapter.lora_int_id, adapter.lora_path, bool(getattr(adapter, "load_inplace", False))
            )
        except identity.Doubt as error:
            self._say(f"requests of this adapter share no KV: {error}")
            return -1
        if digest not in self._namespaces:
            self._namespaces[digest] = len(self._namespaces)
            if self._target_number:
                self._aim()
        return self._namespaces[digest]

    def _grow(self, live: _Live) -> None:
        keys = live.tracked.keys
        more = new_keys(live.request.block_hashes, len(keys), self._hash_tokens, self._block_tokens)
        if more:
            keys += more
            live.chain.extend(more)

    def _frontier(self, live: _Live, scheduled: int) -> int:
        request = live.request
        return self._plan.frontier(
            computed=request.num_computed_tokens, scheduled=scheduled, placeholders=request.num_output_placeholders,
            prompt_tokens=request.num_prompt_tokens, tokens=request.num_tokens,
        )

    def _may_save(self, live: _Live) -> bool:
        """Whether it can be saved now; asks the store once how far it is there already."""
        joined = self._ready(live)
        if joined is None:
            return False
        if not live.tracked.looked:
            self._plan.found(live.request.request_id, max(0, self._found(live, joined, look=True)))
        return True

    def _found(self, live: _Live, joined: Joined, look: bool = False) -> int:
        """How many leading blocks the store has; remembered for a while."""
        now = time.monotonic()
        known = len(live.tracked.keys)
        if not look and live.found >= 0 and live.found_keys == known and now - live.found_at < ANSWER_GOOD_S:
            return live.found
        if now < self._quiet_until:
            return max(0, live.found)
        try:
            answer = joined.store.match(
                joined.namespaces[live.tracked.namespace], live.chain,
                deadline_us=int(self._options.match_timeout_s * 1e6),
            )
        except Gone:
            self._link.lost(joined)
            return 0
        except Error as error:
            self._quiet_until = now + QUIET_S
            self._say(f"the node did not answer a match: {error}")
            return 0
        live.found, live.found_at, live.found_keys = answer.blocks, now, known
        live.runs = answer.runs
        name = live.tracked.conversation
        if name and live.found > live.used:
            live.used = live.found
            self._conversations.uses(joined, live.tracked.namespace, name, live.tracked.keys[live.found - 1])
        return answer.blocks

    def _bytes_of(self, tokens: int) -> int:
        return tokens // self._block_tokens * self._page_bytes // self._ranks

    def _order(self, step: int, due: list[tuple[str, int, tuple[Sequence[int], ...]]]) -> list[SaveOrder]:
        before = self._plan.blocks_left_out
        orders = self._plan.save(step, due)
        self.stats.add("left_out", self._plan.blocks_left_out - before)
        for order in orders:
            self._pool.touch([self._pool.blocks[page] for page in self._plan.referenced(order.id)])
        self.stored.ordered(orders, self._plan, self._live)
        return orders

    def _hold(self, live: _Live, order: LoadOrder) -> None:
        """The lease of what is being loaded, taken by the link: nothing of it is evicted before it is read."""
        chain = Chain(live.tracked.keys[: order.first_block + len(order.keys)])
        namespace = live.tracked.namespace
        hold_us = order.deadline_us + HOLD_EXTRA_US

        def take(joined: Joined) -> None:
            answer = joined.store.match(joined.namespaces[namespace], chain, hold_us=min(hold_us, 60_000_000))
            if answer.hold is not None:
                self._holds[order.id] = answer.hold

        self._link.do(take)

    def _apply(self, effects: Effects) -> None:
        if effects.release:
            self._pool.free_blocks([self._pool.blocks[page] for page in reversed(effects.release)])
        puts: dict[int, list[bytes]] = {}
        for job, count in effects.publish:
            chosen = [put for block in range(count) for group in job.order.put_ids if (put := group[block]) is not None]
            puts.setdefault(job.order.namespace, []).extend(chosen)
            self.stats.add("saves")
            self.stats.add("published_blocks", count)
            self.stored.published(job.order.id, count)
        for namespace, ids in puts.items():
            self._tell(namespace, ids, lambda store: store.publish)
        for namespace, ids in effects.abandon:
            self.stats.add("abandoned_blocks", len(ids))
            self._tell(namespace, ids, lambda store: store.abandon)
        for load in effects.loaded:
            self._link.do(partial(self._release_hold, load.order.id))
            reports = list(load.ranks.values())
            good = min(report.blocks for report in reports)
            took_us = max(report.took_us for report in reports)
            self.stats.add("loads")
            self.stats.add("failed_loads", int(good < len(load.order.keys)))
            self.stats.add("hit_tokens", good * self._block_tokens)
            self.stats.add("loaded_bytes", sum(report.moved_bytes for report in reports))
            self.stats.add("load_us", took_us)
            if load.order.where == "memory":
                self._pace.load(max(report.moved_bytes for report in reports), took_us / 1e6)
        self._conversations.settle()

    def _release_hold(self, number: int, _: Joined) -> None:
        hold = self._holds.pop(number, None)
        if hold is not None:
            hold.release()

    def _tell(self, namespace: int, ids: list[bytes], call: Callable[[Any], Callable[..., Any]]) -> None:
        session = self._joined
        for first in range(0, len(ids), PUBLISH_AT_ONCE):
            some = ids[first : first + PUBLISH_AT_ONCE]

            def work(joined: Joined, some: list[bytes] = some) -> None:
                if session is not None and joined.store is session.store:
                    call(joined.store)(session.namespaces[namespace], some, deadline_us=CALL_US)

            self._link.do(work)

    def _measure(self, step: int) -> None:
        """A step has come back: how long it took beside the others in flight. Only steps that saved something say
        which they are; those are the ones that computed something."""
        now = time.monotonic()
        if step in self._steps:
            planned, tokens = self._steps.pop(step)
            self._pace.step(tokens, now - max(planned, self._last_update))
        self._last_update = now

    def _say(self, text: str) -> None:
        if text not in self._told and len(self._told) < 1000:
            self._told.add(text)
            logger.warning("cistern: %s", text)
