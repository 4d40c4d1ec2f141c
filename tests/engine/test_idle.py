# SPDX-License-Identifier: Apache-2.0
"""An engine that takes no step, while its node ends, is emptied, and is started anew."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Node
from scheduler_side import FACTS, OneRequest, Pool, until

import cistern.engine.rank as rank_module
from cistern import Store
from cistern.engine import options
from cistern.engine.coordinator import Coordinator
from cistern.engine.identity import Fields
from cistern.engine.layout import Fragment, Layout
from cistern.engine.rank import Rank
from cistern.programs import cistern_path

PAGE_BYTES = FACTS.groups[0].page_bytes


class Engine:
    """Both sides in this process, with pages of its memory."""

    def __init__(self, node: Node) -> None:
        chosen = options.read({"socket": str(node.socket), "start_node": False, "match_timeout_s": 5.0})
        self.side = Coordinator(chosen, FACTS, lambda: Fields((("test", "idle"),)), lambda: (("hash", "sha256"),))
        self.side.use_pages(Pool())
        self.rank = Rank(chosen, FACTS, 0)
        pages = ctypes.create_string_buffer(FACTS.pages * PAGE_BYTES)
        first = ctypes.addressof(pages)
        region = (first, FACTS.pages * PAGE_BYTES)
        self.rank._layouts = [Layout((Fragment(first, PAGE_BYTES, PAGE_BYTES),), (region,), FACTS.pages, "x", (pages,))]
        self.rank._device = "cpu"
        self.step()  # whose report has what the rank is

    def step(self, scheduled: dict[str, int] | None = None) -> int:
        """The number of saves that it ordered."""
        orders = self.side.step_orders(scheduled or {})
        self.rank.begin(orders)
        if orders.computes:
            self.rank.save(orders)
        self.rank.finished()
        report = self.rank.report()
        self.side.handle_reports([report] if report is not None else [], set())
        return len(orders.saves)

    def joined(self) -> bool:
        self.step()
        return self.side._shared.ready(0) is not None

    def save(self, name: str) -> None:
        """Computes a request whose blocks are saved."""
        request = OneRequest(name)
        self.side.add_request(request, options.RequestParameters())
        until(self.joined)
        until(lambda: self.side.match(name, 0)[0] is not None)
        assert self.step({name: request.tokens})
        until(lambda: not self.side._plan.saves or self.step())
        self.side.end_request(name, ([*range(1, 50)],))
        self.step()

    def close(self) -> None:
        self.rank.close()
        self.side.close()


@pytest.fixture
def engine(node: Node, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    monkeypatch.setattr(rank_module, "isa_of", lambda device: "x")
    made = Engine(node)
    made.save("first")
    yield made
    made.close()


def maps(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


def test_memory_of_a_node_that_ended_let_go_of(node: Node, engine: Engine) -> None:
    """It is as much as the node is to have: one that `cistern forget` made room for could not be started again."""
    assert maps(node.folder)
    node.kill()
    subprocess.run([cistern_path(), "forget", "--memory-dir", str(node.folder / "memory")], check=True)
    until(lambda: not maps(node.folder))


def test_rank_waits_to_hear_of_its_new_owner(
    node: Node, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    former, connect = engine.side.connection.session, Store.connect
    owners: list[bytes] = []

    def asked(*given: Any, owner: bytes | None = None, **more: Any) -> Store:
        owners.extend([owner] if owner is not None else [])
        return connect(*given, owner=owner, **more)

    node.kill()
    until(lambda: engine.rank.connection.session is None)
    monkeypatch.setattr(Store, "connect", asked)
    node.start()
    until(lambda: engine.side.connection.session not in (None, former))
    assert engine.rank.connection.session is None and not owners
    until(engine.joined)
    standing = engine.side.connection.session
    assert standing is not None and owners == [standing.store.owner]
    assert node.status()["door"]["refused"] == 0
    engine.save("second")
