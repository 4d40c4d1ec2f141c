# SPDX-License-Identifier: Apache-2.0
"""The scheduler side alone, for tests: an engine's requests and pages, and a node that answers when it is let."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

import cistern.engine.adapted as adapted_module
import cistern.engine.adapters as adapters_module
import cistern.engine.coordinator as coordinator_module
import cistern.engine.matches as matches_module
import cistern.engine.shared_session as shared_module
import cistern.engine.warnings as warnings_module
import cistern.engine.written as written_module
from cistern import MatchResult, MatchRun, NamespaceSpec
from cistern.engine import options
from cistern.engine.adapters import Adapters
from cistern.engine.coordinator import Coordinator
from cistern.engine.facts import EngineFacts, GroupFacts, host
from cistern.engine.identity import Fields
from cistern.engine.orders import RankFacts, RankReport, SaveOrder
from cistern.engine.request import Adapter
from cistern.engine.session import Session, SessionSpec

SIZE = 4
FACTS = EngineFacts(
    ranks=1, identical_ranks=1, block_tokens=SIZE, hash_tokens=SIZE, pages=100,
    groups=(GroupFacts("g", 0, 1, ("layer",), 64),), drafts=False, logger="test.cistern",
)


class OneRequest:
    """engine.Request."""

    def __init__(self, name: str, blocks: int = 4, adapter: Adapter | None = None) -> None:
        self.id, self.adapter = name, adapter
        self.hashes = [f"{name[0]}{i}".encode().ljust(32, b"\0") for i in range(blocks)]
        self.prompt_tokens = self.tokens = blocks * SIZE + 1
        self.computed_tokens = self.placeholder_tokens = 0
        self.token_ids: Sequence[int] = range(self.tokens)
        self.content_hashed, self.skips_cache = True, False

    def hashed_beside(self, first: int, last: int) -> None: ...


class Pool:
    """engine.PagePool."""

    def pages_of(self, request_id: str) -> tuple[Sequence[int], ...]:
        return ([*range(1, 50)],)

    def reference(self, pages: Sequence[int]) -> None: ...
    def release(self, pages: Sequence[int]) -> None: ...
    def used(self) -> int:
        return 1000


class OneStore:
    """A store that has so many blocks of any chain, and says so when it is let."""

    owner = bytes(16)

    def __init__(self) -> None:
        self.blocks, self.answers, self.asked, self.dropped = 3, True, 0, 0
        self.abandoned: list[tuple[object, list[bytes]]] = []
        self.hints: object = None

    def begin_match(self, namespace: object, chain: Any, **more: object) -> Any:
        self.asked += 1
        self.hints = more["hints"]

        def result() -> MatchResult:
            assert self.answers, "the scheduler waits for the node"
            return MatchResult(self.blocks, (MatchRun(self.blocks, "memory", 0),), None)

        return SimpleNamespace(ready=lambda: self.answers, result=result)

    def match(self, *given: object, **more: object) -> MatchResult:
        self.asked += 1
        return MatchResult(self.blocks, (MatchRun(self.blocks, "memory", 0),), None)

    def attach(self, spec: NamespaceSpec, **more: object) -> NamespaceSpec:
        return spec

    def drop_namespace(self, namespace: object, **more: object) -> None:
        self.dropped += 1

    def publish(self, namespace: object, puts: list[bytes], **more: object) -> None:
        raise AssertionError("nothing is to be seen")

    def abandon(self, namespace: object, puts: list[bytes], **more: object) -> None:
        self.abandoned.append((namespace, puts))


class OneConnection:
    """A connection that opens what it is asked for when it is let."""

    def __init__(self) -> None:
        self.store, self.opens = OneStore(), True
        self.session: Session | None = None
        self.spec: SessionSpec | None = None
        self.refusal, self.failures, self.start_failure, self.lacking = "", 0, "", ""
        self.work: list[Callable[[Session], object]] = []
        self.when_lost: list[Callable[[Session], object]] = []
        self.flushes = 0

    def open(self, spec: SessionSpec) -> None:
        self.spec = spec
        if self.opens:
            namespaces = [object() for _ in spec.fields]
            if self.session is not None and self.session.spec.number == spec.number:
                namespaces = [*self.session.namespaces, *namespaces[len(self.session.namespaces) :]]
            self.session = Session(spec, self.store, namespaces)  # type: ignore[arg-type]

    def submit(self, work: Callable[[Session], object], kept: bool = False) -> None:
        self.work.append(work)

    def lose(self, session: Session) -> None:
        self.session = None

    def flush(self, timeout_s: float) -> bool:
        self.flushes += 1
        return True

    def close(self) -> None: ...


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep)
        for module in (
            adapted_module, adapters_module, coordinator_module, matches_module, shared_module, warnings_module,
            written_module,
        ):
            monkeypatch.setattr(module, "time", clock)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def make(facts: EngineFacts = FACTS, **more: object) -> Coordinator:
    chosen = options.read({"socket": "/nowhere/socket", "start_node": False, **more})
    made = Coordinator(chosen, facts, lambda: Fields((("test", "waits"),)), lambda: (("hash", "sha256"),))
    made.use_pages(Pool())
    made.handle_reports([RankReport(0, 0, facts=RankFacts(0, host(), "cpu", "", (64,), ("x",)))], set())
    return made


class Listener:
    """engine.SaveListener."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.orders: list[SaveOrder] = []

    def ordered(self, order: SaveOrder, request: object) -> None:
        self.orders.append(order)

    def published(self, order_id: int, blocks: int) -> None: ...
    def missing(self, keys: Sequence[bytes], asked_at: float) -> None:
        self.told.append(list(keys))

    def forked(self) -> None:
        self.told.append("forked")


def add(side: Coordinator, name: str, **more: Any) -> None:
    side.add_request(OneRequest(name, **more), options.RequestParameters())


def name_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters have files wherever they are said to be, whose digest is the adapter's name."""
    monkeypatch.setattr(adapters_module, "_state", lambda adapter: adapter.path)
    monkeypatch.setattr(Adapters, "_digest", lambda self, adapter: adapter.name)


def join(side: Coordinator) -> None:
    """The rank reports that it has joined what the orders of a step say."""
    orders = side.step_orders({})
    if orders.spec is not None:
        report = RankReport(0, 0, session=orders.spec.number, namespaces=len(orders.spec.fields))
        side.handle_reports([report], set())


def until(there: Callable[[], object]) -> None:
    """Under a watchdog, since another thread brings it about."""
    end = time.monotonic() + 60
    while not there():
        assert time.monotonic() < end, "it does not come"


def ready(facts: EngineFacts = FACTS, **more: object) -> Coordinator:
    """A side whose session stands, and which has a request, `first`, with a hit of 3 blocks."""
    side = make(facts, **more)
    add(side, "first")
    join(side)
    assert side.match("first", 0) == (3 * SIZE, True)
    return side
