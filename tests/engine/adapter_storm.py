# SPDX-License-Identifier: Apache-2.0
"""A model of an engine with LoRA adapters around the real scheduler side: adapters are replaced, moved back, evicted
and loaded in place while requests run, in an order that a seed decides. What is computed carries the weights that it
was computed with, so that it is seen when blocks become visible as another adapter's, or are loaded beside one.

    python adapter_storm.py [FIRST_SEED [SEEDS]]
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import sys
import tempfile
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scheduler_side import SIZE, Clock, OneConnection, OneRequest, OneStore, make

import cistern.engine.adapted as adapted_module
import cistern.engine.adapters as adapters_module
import cistern.engine.written as written_module
from cistern import MatchResult, MatchRun
from cistern.engine import options
from cistern.engine.adapted import FRESH_S
from cistern.engine.adapters import Adapters
from cistern.engine.orders import LoadReport, RankReport, SaveReport
from cistern.engine.request import Adapter
from cistern.engine.session import Session, SessionSpec

ACTIONS = 400
FILES = 4  # contents that adapters' files have
ROOM = 2  # adapters that the engine holds at a time
Content = tuple[str, tuple[int, ...]]
"""KV of a block: its prompt, and the weights with which it and those before it were computed; 0: the base model's."""


class Looks:
    """In place of Beside: its calls are done when the storm lets them be, in the order of each lane."""

    storm: Storm

    def __init__(self, name: str, most: int) -> None:
        self._lanes: dict[Hashable, deque[tuple[Future[Any], Callable[[], Any]]]] = {}
        self._shared: dict[Hashable, Future[Any]] = {}
        self.storm.looks.append(self)

    def submit(self, lane: Hashable, call: Callable[[], Any]) -> Future[Any]:
        done: Future[Any] = Future()
        self._lanes.setdefault(lane, deque()).append((done, call))
        return done

    def share(self, lane: Hashable, key: Hashable, call: Callable[[], Any]) -> Future[Any]:
        there = self._shared.get(key)
        if there is None or there.running() or there.done():
            there = self._shared[key] = self.submit(lane, call)
        return there

    def close(self) -> None: ...

    def run_one(self, choose: random.Random) -> None:
        waiting = [lane for lane, calls in self._lanes.items() if calls]
        if not waiting:
            return
        done, call = self._lanes[choose.choice(waiting)].popleft()
        done.set_running_or_notify_cancel()
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)


@dataclass
class Running:
    """A request as the engine has it."""

    request: OneRequest
    pages: list[int]
    state: str = "waits"  # or "loads", "runs"
    loaded: range = range(0)  # blocks that came from the store
    loaded_at: int = -1  # what had happened to adapters by then, and not just before
    added: int = 0  # when it came into the batch

    @property
    def adapter(self) -> Adapter | None:
        return self.request.adapter

    @property
    def blocks(self) -> int:
        return self.request.computed_tokens // SIZE


@dataclass
class Put:
    namespace: object
    key: bytes
    content: Content


class Store(OneStore):
    def __init__(self, storm: Storm) -> None:
        super().__init__()
        self.storm = storm
        self.visible: dict[tuple[object, bytes], Content] = {}
        self.puts: dict[bytes, Put] = {}

    def begin_match(self, namespace: object, chain: Any, **more: object) -> Any:
        keys = next(
            (one.planned.keys for one in self.storm.side._requests.values() if one.chain is chain), []
        )
        found = list(itertools.takewhile(lambda key: (namespace, bytes(key)) in self.visible, keys))
        runs = (MatchRun(len(found), "memory", 0),) if found else ()
        return SimpleNamespace(ready=lambda: True, result=lambda: MatchResult(len(found), runs, None))

    def publish(self, namespace: object, puts: Sequence[bytes], **more: object) -> None:
        for put in (self.puts.pop(bytes(one), None) for one in puts):
            if put is not None:
                self.storm.check(put)
                self.visible.setdefault((put.namespace, put.key), put.content)

    def abandon(self, namespace: object, puts: Sequence[bytes], **more: object) -> None:
        for one in puts:
            self.puts.pop(bytes(one), None)

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **more: SimpleNamespace()


class Connected(OneConnection):
    def __init__(self, storm: Storm) -> None:
        super().__init__()
        self.store: Any = Store(storm)

    def open(self, spec: SessionSpec) -> None:
        self.session = Session(spec, self.store, [fields for fields in spec.fields])  # type: ignore[arg-type, misc]


class Storm:
    def __init__(self, seed: int, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.choose = random.Random(seed)
        self.folder = folder
        self.digests = self.digests_of_files()
        self.clock = Clock(patch)
        self.looks: list[Looks] = []
        Looks.storm = self
        patch.setattr(adapters_module, "Beside", Looks)
        for module in (adapted_module, written_module):
            patch.setattr(module, "wait", self.wait)
        state_of = adapters_module.folder_state
        patch.setattr(adapters_module, "folder_state", lambda place: self.beside(state_of, place))
        self.connection = Connected(self)
        patch.setattr("cistern.engine.coordinator.Connection", lambda *given: self.connection)
        self.requests: dict[str, Running] = {}
        self.contents: dict[int, Content] = {}  # by page
        self.cached: dict[tuple[object, ...], Content] = {}  # the engine's own prefix cache
        self.held: OrderedDict[int, int] = OrderedDict()  # adapters that the engine has, and their weights
        self.last_stands = self.choose.random() < 0.5  # of a batch's requests of an adapter: the last, or the first
        self.reports: deque[RankReport] = deque()
        self.joined = (0, 0)
        self.numbers = itertools.count(1)
        self.happened, self.happened_at = 0, 0.0  # to adapters
        self.saved = self.hits = 0
        self.broken = ""
        self.said: list[str] = []
        # What happens to adapters most differs from seed to seed.
        kinds = ("files", "loads", "reloads", "moves", "empties")
        self.often = {what: self.choose.choice((0.0, 0.1, 1.0)) for what in kinds}
        self.side = make(min_load_tokens=1)
        self.side.use_pages(SimpleNamespace(
            pages_of=lambda name: (self.requests[name].pages,), reference=lambda pages: None,
            release=lambda pages: None, used=lambda: 1000,
        ))

    # ---- files

    def digests_of_files(self) -> dict[str, int]:
        digests = {}
        for content in range(1, FILES + 1):
            place = self.folder / f"of{content}"
            self.write(place, content)
            digests[Adapters().look(Adapter("one", 1, str(place), False)).digest] = content
        for name in ("a", "b"):
            self.write(self.folder / name, 1)
        (self.folder / "current").symlink_to("of1")
        return digests

    def write(self, place: Path, content: int) -> None:
        place.mkdir(exist_ok=True)
        (place / "adapter_config.json").write_text("{}")
        (place / "adapter_model.safetensors").write_bytes(b"weights %d" % content * (8 + content))

    def content_at(self, place: str) -> int:
        return int((Path(place) / "adapter_model.safetensors").read_bytes().split()[1][:1])

    def note(self) -> None:
        self.happened, self.happened_at = self.happened + 1, self.clock.now

    def files_change(self) -> None:
        self.note()
        content = self.choose.randint(1, FILES)
        if self.choose.random() < 0.5:
            link = self.folder / "next"
            link.symlink_to(f"of{content}")
            os.replace(link, self.folder / "current")
            self.say(f"current -> of{content}")
        else:
            name = self.choose.choice("ab")
            self.write(self.folder / name, content)
            self.say(f"{name} has {content}")

    def beside(self, call: Callable[[Any], Any], given: Any) -> Any:
        """What may happen while files are looked at."""
        self.files_may_change(0.02)
        found = call(given)
        self.files_may_change(0.02)
        return found

    def files_may_change(self, chance: float) -> None:
        if self.choose.random() < chance * self.often["files"]:
            self.files_change()

    def wait(self, futures: Sequence[Future[Any]], timeout: float = 0) -> Any:
        if self.choose.random() < 0.5:
            self.look()
        return SimpleNamespace(done={one for one in futures if one.done()}, not_done=set())

    def look(self) -> None:
        if self.looks:
            self.choose.choice(self.looks).run_one(self.choose)

    # ---- what the engine does

    def any_adapter(self) -> Adapter:
        number = self.choose.randint(1, 3)
        place = ("a", "b", "current")[number - 1]
        if self.choose.random() < 0.1 * self.often["moves"]:
            place = self.choose.choice(("a", "b", "current"))
        reload = self.choose.random() < 0.2 * self.often["reloads"]
        return Adapter(f"lora{number}", number, str(self.folder / place), reload)

    def load(self, adapter: Adapter) -> None:
        if adapter.reload or adapter.number not in self.held:
            self.note()
            self.held[adapter.number] = self.content_at(adapter.path)
            self.say(f"the engine loads {self.held[adapter.number]} as {adapter.number}")
        self.held.move_to_end(adapter.number)
        while len(self.held) > ROOM:
            self.held.popitem(last=False)

    def add(self) -> None:
        number = next(self.numbers)
        adapter = self.any_adapter() if self.choose.random() < 0.9 else None
        request = OneRequest(f"{self.choose.choice('pq')}{number}", self.choose.randint(2, 4), adapter)
        pages = [number * 100 + block for block in range(len(request.hashes) + 1)]
        self.requests[request.id] = Running(request, pages)
        self.side.add_request(request, options.RequestParameters())

    def cache_key(self, one: Running, block: int) -> tuple[object, ...]:
        adapter = one.adapter
        return one.request.id[0], block, adapter and adapter.name, adapter and adapter.path

    def match(self, one: Running) -> None:
        request, own = one.request, 0
        while own < len(request.hashes) and self.cache_key(one, own) in self.cached:
            own += 1
        more, _ = self.side.match(request.id, own * SIZE)
        if more is None:
            return
        for block in range(own):
            self.contents[one.pages[block]] = self.cached[self.cache_key(one, block)]
        request.computed_tokens = own * SIZE
        one.loaded = range(own, own + more // SIZE)
        one.loaded_at = self.happened if self.clock.now - self.happened_at >= FRESH_S else -1
        one.added = next(self.numbers)
        one.state = "loads" if more else "runs"
        if more:
            self.hits += 1
            self.side.begin_load(request.id, (one.pages,), more)

    def batch(self) -> list[Running]:
        chosen: list[Running] = []
        for one in self.requests.values():
            numbers = {other.adapter.number for other in (*chosen, one) if other.adapter is not None}
            left = one.request.tokens > one.request.computed_tokens
            if one.state == "runs" and left and len(numbers) <= ROOM and self.choose.random() < 0.8:
                chosen.append(one)
        return chosen

    def step(self) -> None:
        batch = self.batch()
        scheduled = {
            one.request.id: min(self.choose.randint(1, 2 * SIZE), one.request.tokens - one.request.computed_tokens)
            for one in batch
        }
        orders = self.side.step_orders(scheduled)
        self.files_may_change(0.1)
        stands: dict[int, Adapter] = {}
        for one in sorted(batch, key=lambda one: one.added, reverse=not self.last_stands):
            if one.adapter is not None:
                stands[one.adapter.number] = one.adapter
        for adapter in stands.values():
            self.load(adapter)
        for one in batch:
            self.compute(one, scheduled[one.request.id])
        self.carry_out(orders)

    def compute(self, one: Running, tokens: int) -> None:
        request, weights = one.request, self.held[one.adapter.number] if one.adapter else 0
        first, last = one.blocks, (request.computed_tokens + tokens) // SIZE
        if one.loaded and one.loaded_at == self.happened:
            brought = self.contents[one.pages[one.loaded[-1]]][1][-1]
            if brought != weights:
                self.broke(f"{request.id} runs with weights {weights} on blocks of {brought} that it loaded")
        one.loaded = range(0)
        for block in range(first, last):
            before = self.contents[one.pages[block - 1]][1] if block else ()
            self.contents[one.pages[block]] = (request.id[0], (*before, weights))
            self.cached.setdefault(self.cache_key(one, block), self.contents[one.pages[block]])
        request.computed_tokens += tokens

    def carry_out(self, orders: Any) -> None:
        if orders.spec is not None:
            self.joined = orders.spec.number, len(orders.spec.fields)
        session = self.connection.session
        report = RankReport(0, orders.step, session=self.joined[0], namespaces=self.joined[1], begun=orders.step)
        for order in orders.saves:
            namespace = session.namespaces[order.namespace] if session is not None else None
            for key, put_id, page in zip(order.keys, order.put_ids[0], order.pages[0], strict=True):
                if put_id is not None and not order.invalid:
                    content = self.contents[page]
                    self.connection.store.puts[bytes(put_id)] = Put(namespace, bytes(key), content)
            report.saves.append(SaveReport(0, order.id, 0 if order.invalid else len(order.keys)))
        for order in orders.loads:
            report.loads.append(self.carry_out_load(order, session))
        self.reports.append(report)

    def carry_out_load(self, order: Any, session: Any) -> LoadReport:
        one = self.requests.get(order.request)
        blocks = 0
        if one is not None and session is not None and not order.invalid:
            for key, page in zip(order.keys, order.pages[0], strict=True):
                content = self.connection.store.visible.get((session.namespaces[order.namespace], bytes(key)))
                if content is None:
                    break
                self.contents[page] = content
                blocks += 1
        if one is not None:
            first = order.first_block
            one.loaded = range(first, first + blocks)
            for block in one.loaded:
                self.cached.setdefault(self.cache_key(one, block), self.contents[one.pages[block]])
            one.request.computed_tokens = (first + blocks) * SIZE
            one.state = "runs"
        return LoadReport(0, order.id, blocks)

    def end(self, one: Running) -> None:
        if one.state != "loads":
            self.side.end_request(one.request.id, (one.pages,))
            del self.requests[one.request.id]

    # ---- what must hold

    def check(self, put: Put) -> None:
        self.saved += 1
        digest = dict(put.namespace).get("adapter", "")  # type: ignore[call-overload]
        weights = self.digests[digest] if digest else 0
        if set(put.content[1]) != {weights}:
            self.broke(f"blocks of weights {put.content[1]} become visible as those of {weights}")

    def broke(self, what: str) -> None:
        self.broken = self.broken or what
        self.say("BROKEN " + what)

    def say(self, what: str) -> None:
        self.said.append(what)

    def act(self) -> None:
        choose = self.choose
        for _ in range(choose.randint(0, 6)):
            self.something_beside()
        kind = choose.random()
        waiting = [one for one in self.requests.values() if one.state == "waits"]
        if kind < 0.2 and len(self.requests) < 6:
            self.add()
        elif kind < 0.5 and waiting:
            self.match(choose.choice(waiting))
        elif kind < 0.8:
            self.step()
        elif kind < 0.88 and self.requests:
            self.end(choose.choice(list(self.requests.values())))
        elif kind < 0.91:
            self.files_may_change(1.0)
        elif kind < 0.94 and choose.random() < self.often["loads"]:
            adapter = self.any_adapter()
            self.say(f"add_lora {adapter.number} {'in place' if adapter.reload else ''}")
            with self.side.adapter_loading(adapter):
                self.files_may_change(0.1)
                self.load(adapter)
        elif kind < 0.96:
            running = [one for one in self.requests.values() if one.state == "runs"]
            if running:
                one = choose.choice(running)  # it has to make room for others
                one.state, one.request.computed_tokens = "waits", 0
        elif choose.random() < self.often["empties"] and all(one.state == "waits" for one in self.requests.values()):
            self.say("the prefix cache is emptied")
            self.cached.clear()
            self.side.prefix_cache_emptied()
        self.clock.now += choose.random() * (0.05 if choose.random() < 0.97 else 2)

    def something_beside(self) -> None:
        kind = self.choose.randint(0, 2)
        if kind == 0:
            self.look()
        elif kind == 1 and self.reports:
            self.side.handle_reports([self.reports.popleft()], set())
        elif self.connection.work and self.connection.session is not None:
            self.connection.work.pop(0)(self.connection.session)

    def run(self) -> str:
        for _ in range(ACTIONS):
            self.act()
            if self.broken:
                break
        return self.broken


@dataclass
class Outcome:
    seed: int
    broken: str
    saved: int
    hits: int
    said: list[str] = field(default_factory=list)


def run(seed: int) -> Outcome:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("test.cistern"), "disabled", True)
        storm = Storm(seed, Path(folder), patch)
        broken = storm.run()
        return Outcome(seed, broken, storm.saved, storm.hits, storm.said)


def main() -> int:
    first, seeds = (int(word) for word in (*sys.argv[1:], *("1", "200")[len(sys.argv) - 1 :]))
    saved = hits = 0
    for seed in range(first, first + seeds):
        outcome = run(seed)
        saved, hits = saved + outcome.saved, hits + outcome.hits
        if outcome.broken:
            print("\n".join(outcome.said[-30:]))
            print(f"FAILED: seed {seed}: {outcome.broken}")
            return 1
    print(f"{seeds} seeds, {saved} blocks shown, {hits} loads, none of another adapter")
    return 0


if __name__ == "__main__":
    sys.exit(main())
