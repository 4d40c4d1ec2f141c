# SPDX-License-Identifier: Apache-2.0
"""Whose KV an adapter's is, by its files and by what the engine does with them, without an engine."""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import WATCHDOG_S
from scheduler_side import SIZE, OneConnection, add, join, make, ready, until

from cistern import Busy, Missed
from cistern.engine.adapters import Adapters
from cistern.engine.connection import Connection
from cistern.engine.files import UnknownIdentity
from cistern.engine.orders import RankReport, SaveReport
from cistern.engine.request import Adapter
from cistern.engine.session import Session, SessionSpec
from cistern.vllm import updates
from cistern.vllm.request import adapter_of


def write_adapter(folder: Path, body: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(body)


def test_adapter_replaced_in_place_unknown_until_reloaded(tmp_path: Path) -> None:
    known = Adapters()
    write_adapter(tmp_path / "a", b"one")
    first = known.digest(Adapter("a", 1, str(tmp_path / "a"), False))
    assert known.digest(Adapter("a", 1, str(tmp_path / "a"), False)) == first
    write_adapter(tmp_path / "a", b"two")
    with pytest.raises(UnknownIdentity, match="changed since"):
        known.digest(Adapter("a", 1, str(tmp_path / "a"), False))
    second = known.digest(Adapter("a", 1, str(tmp_path / "a"), True))
    assert second != first
    assert known.digest(Adapter("a", 1, str(tmp_path / "a"), False)) == second


def test_adapter_number_with_other_place_unknown_until_reloaded(tmp_path: Path) -> None:
    known = Adapters()
    write_adapter(tmp_path / "a", b"one")
    write_adapter(tmp_path / "b", b"two")
    first = known.digest(Adapter("a", 1, str(tmp_path / "a"), False))
    with pytest.raises(UnknownIdentity, match="number 1"):
        known.digest(Adapter("a", 1, str(tmp_path / "b"), False))
    assert known.digest(Adapter("a", 1, str(tmp_path / "a"), False)) == first
    assert known.digest(Adapter("a", 1, str(tmp_path / "b"), True)) != first


def test_adapter_applied_otherwise_is_another_one(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", b"one")
    asked = Adapter("a", 1, str(tmp_path / "a"), False)
    others = [Adapters().digest(asked), Adapters("o_proj alone").digest(asked),
              Adapters().digest(replace(asked, form="fused experts"))]
    assert len(set(others)) == 3 and Adapters("o_proj alone").digest(asked) == others[1]


def test_adapter_whose_files_changed_between_its_loading_and_its_first_request_unknown(tmp_path: Path) -> None:
    """Servers load the adapters of their command line and of their API long before anybody asks for one."""
    known, asked = Adapters(), Adapter("a", 1, str(tmp_path / "a"), False)
    write_adapter(tmp_path / "a", b"one")
    assert not known.loads(asked)
    write_adapter(tmp_path / "a", b"two")
    assert not known.loads(asked)  # it has that number: nothing is loaded
    with pytest.raises(UnknownIdentity, match="changed since the engine loaded"):
        known.digest(asked)
    assert known.loads(replace(asked, reload=True))
    second = known.digest(asked)
    assert not known.loads(replace(asked, reload=True))  # the same files
    write_adapter(tmp_path / "a", b"three")
    assert known.loads(replace(asked, reload=True)) and known.digest(asked) != second


def test_loading_of_an_adapter_told_before_it_happens() -> None:
    done: list[object] = []
    core = SimpleNamespace(add_lora=lambda request: done.append(request) or True)
    side = SimpleNamespace(adapter_loads=done.append)
    updates.watch_adapters(core, side)  # type: ignore[arg-type]
    request = SimpleNamespace(lora_name="a", lora_int_id=3, lora_path="/a", load_inplace=True)
    assert core.add_lora(request) is True
    assert done == [Adapter("a", 3, "/a", True), request]
    updates.watch_adapters(None, side)  # type: ignore[arg-type]


def test_adapter_in_a_users_home_is_where_its_loader_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of")
    request = SimpleNamespace(lora_name="a", lora_int_id=3, lora_path="~/a")
    assert adapter_of(request) == Adapter("a", 3, "/home/of/a", False)


@pytest.mark.parametrize("ahead", [True, False])
def test_requests_that_run_while_their_adapter_is_loaded_again_share_nothing_any_more(
    connection: OneConnection, tmp_path: Path, ahead: bool
) -> None:
    """What they compute from then on is of both; a reset of the caches unloads no adapter either."""
    place = tmp_path / "adapter"
    place.mkdir()
    (place / "adapter_model.safetensors").write_bytes(b"one")
    side, asked = ready(), Adapter("lora", 1, str(place), False)
    connection.store.blocks = 0

    def begins(name: str, adapter: Adapter) -> None:
        add(side, name, adapter=adapter)
        until(lambda: side.match(name, 0) == (0, False) or join(side))

    begins("runs", asked)
    begins("other", Adapter("other", 2, str(place), False))
    add(side, "waits", adapter=asked)
    begins("again", replace(asked, reload=True))  # the same files
    assert side._requests["runs"].planned.may_save
    assert len(side.step_orders({"runs": 2 * SIZE, "other": 2 * SIZE}).saves) == 2
    (place / "adapter_model.safetensors").write_bytes(b"two, longer")
    if ahead:
        side.adapter_loads(replace(asked, reload=True))
    else:
        begins("new", replace(asked, reload=True))
    until(lambda: side.match("waits", 0) == (0, False))
    assert not side._requests["waits"].planned.may_save
    for name in ("runs", "other"):
        side._requests[name].request.computed_tokens = 2 * SIZE  # type: ignore[misc]
    saves = side.step_orders({"runs": 2 * SIZE, "other": 2 * SIZE, **({} if ahead else {"new": SIZE})}).saves
    saved = [one.keys[0][:1] for one in sorted(saves, key=lambda one: one.namespace)]
    assert saved == ([b"o"] if ahead else [b"o", b"n"])
    side.reset()
    (place / "adapter_model.safetensors").write_bytes(b"three, and longer")
    add(side, "late", adapter=asked)
    until(lambda: side.match("late", 0) == (0, False) or join(side))
    assert not side._requests["late"].planned.may_save


def test_request_of_a_known_adapter_waits_for_no_other_adapters_files(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, there, digest = tmp_path / "adapter", threading.Event(), Adapters.digest
    write_adapter(place, b"one")
    known, slow = Adapter("known", 1, str(place), False), Adapter("slow", 2, str(place), False)

    def read(self: Adapters, adapter: Adapter) -> str:
        if adapter.number == 2:
            assert there.wait(WATCHDOG_S)
        return digest(self, adapter)

    monkeypatch.setattr(Adapters, "digest", read)
    side = ready()
    connection.store.blocks = 0
    add(side, "known", adapter=known)
    until(lambda: side.match("known", 0) == (0, False) or join(side))
    add(side, "slow", adapter=slow)
    add(side, "again", adapter=known)
    until(lambda: side.match("again", 0) == (0, False))
    assert side.match("slow", 0) == (None, False) and side._requests["again"].planned.may_save
    readers = [one for one in threading.enumerate() if one.name.startswith("cistern-adapters")]
    assert readers and all(one.daemon for one in readers)  # an engine that ends does not wait either
    there.set()
    until(lambda: side.match("slow", 0) == (0, False) or join(side))
    side.close()


def test_request_that_finds_other_files_than_those_before_it_without_a_reload_shares_nothing(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late its own look at them was."""
    digests = iter(["one", "two", "two", "two"])
    monkeypatch.setattr(Adapters, "digest", lambda self, adapter: next(digests))
    side = ready()
    connection.store.blocks = 0
    shared = []
    for name, reload in (("first", False), ("late", False), ("new", True), ("after", False)):
        add(side, f"{name} one", adapter=Adapter("a", 1, str(tmp_path), reload))
        until(lambda name=name: side.match(f"{name} one", 0) == (0, False) or join(side))
        side.step_orders({f"{name} one": SIZE})
        shared.append(side._requests[f"{name} one"].planned.may_save)
    assert shared == [True, False, True, True]
    assert not side._requests["first one"].planned.may_save


def test_request_computed_before_the_one_that_loads_its_adapter_again_shares_nothing_of_that(
    connection: OneConnection, tmp_path: Path
) -> None:
    """The engine still has the former: another one goes first while a request waits for its match."""
    side, place = ready(), tmp_path / "adapter"
    connection.store.blocks = 0
    write_adapter(place, b"one")

    def begins(name: str, reload: bool) -> bool:
        add(side, name, adapter=Adapter("a", 1, str(place), reload))
        until(lambda: side.match(name, 0) == (0, False) or join(side))
        return side._requests[name].planned.may_save

    assert begins("first", False)
    side.step_orders({"first": SIZE})
    write_adapter(place, b"two, longer")
    assert begins("new", True) and begins("other new", True) and not begins("early", False)
    side.step_orders({"new": SIZE})
    assert all(side._requests[name].planned.may_save for name in ("new", "other new"))
    assert begins("after", False)


@pytest.mark.parametrize("reload", [True, False])
def test_what_an_engine_loads_while_its_files_change_is_not_what_they_are_later(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reload: bool
) -> None:
    """As of one that is asked for while it is still being copied to its place."""
    side, place, digest = ready(), tmp_path / "adapter", Adapters._digest
    connection.store.blocks = 0
    write_adapter(place, b"one")

    def changed(self: Adapters, adapter: Adapter) -> str:
        write_adapter(place, b"two, longer")
        return digest(self, adapter)

    def begins(name: str, reload: bool) -> bool:
        add(side, name, adapter=Adapter("a", 1, str(place), reload))
        until(lambda: side.match(name, 0) == (0, False) or join(side))
        may = side._requests[name].planned.may_save
        side.step_orders({name: SIZE})
        return may

    with monkeypatch.context() as patched:
        patched.setattr(Adapters, "_digest", changed)
        assert not begins("first", reload)
    assert not begins("second", False)
    assert begins("again", True) and begins("last", False)


def test_adapter_for_which_the_node_has_no_room_makes_no_request_wait(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Adapters, "digest", lambda self, adapter: adapter.name)
    side = ready()
    connection.opens = False
    add(side, "lora", adapter=Adapter("lora", 1, str(tmp_path), False))
    until(lambda: side.match("lora", 0) == (None, False) and connection.spec and len(connection.spec.fields) == 2)
    assert side.match("lora", 0) == (None, False)
    connection.lacking = "all namespaces are taken"
    assert side.match("lora", 0) == (0, False)
    add(side, "base")
    assert side.match("base", 0) == (3 * SIZE, True)


def test_connection_says_what_its_session_lacks_until_it_has_it() -> None:
    full = threading.Event()
    full.set()

    def attach(spec: object, **more: object) -> object:
        if full.is_set():
            raise Busy("all namespaces are taken")
        return object()

    spec = SessionSpec(1, "", "default", None, ((),), (), SIZE, False, "", "")
    store = SimpleNamespace(attach=attach, report=lambda: None, close=lambda: None)
    kept = Connection(logging.getLogger("test.cistern"))
    try:
        kept._spec, kept.session = spec, Session(spec, store, [object()])  # type: ignore[arg-type,list-item]
        kept.open(replace(spec, fields=((), (("adapter", "lora"),))))
        until(lambda: kept.lacking == "all namespaces are taken")
        full.clear()
        until(lambda: not kept.lacking)
        assert kept.session is not None and len(kept.session.namespaces) == 2
    finally:
        kept.close()


def test_adapter_whose_files_cannot_be_named_or_read_ends_no_engine(
    connection: OneConnection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "adapter"
    write_adapter(place, b"one")
    (place / os.fsdecode(b"\xff.bin")).write_bytes(b"two")
    side = ready()
    connection.store.blocks = 0
    add(side, "odd", adapter=Adapter("odd", 1, str(place), False))
    until(lambda: side.match("odd", 0) == (0, False) or join(side))
    assert side._requests["odd"].planned.may_save
    add(side, "wrong", adapter=Adapter("wrong", 2, None, False))  # type: ignore[arg-type]
    until(lambda: side.match("wrong", 0) == (0, False))
    assert not side._requests["wrong"].planned.may_save and "share no KV" in caplog.text


def test_drop_at_reset_goes_on_behind_a_namespace_that_is_dropped_already(
    connection: OneConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an operator or a neighbour, or by this call itself, which is repeated where the node was late."""
    side = ready(on_reset="drop")
    monkeypatch.setattr(Adapters, "digest", lambda self, adapter: adapter.name)
    add(side, "lora", adapter=Adapter("lora", 1, "/nowhere", False))
    until(lambda: side.match("lora", 0) != (None, False) or join(side))
    session = connection.session
    assert session is not None and len(session.namespaces) == 2
    dropped: list[object] = []

    def drop(namespace: object, **more: object) -> None:
        if namespace is session.namespaces[0]:
            raise Missed("the namespace was dropped")
        dropped.append(namespace)

    monkeypatch.setattr(connection.store, "drop_namespace", drop)
    side.reset()
    for work in connection.work:
        work(session)
    assert dropped == [session.spec.namespace_spec(0), session.namespaces[1]]


@pytest.mark.parametrize("replaced", [False, True])
def test_blocks_of_an_adapter_replaced_before_its_engine_loaded_it_never_show(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """An engine loads an adapter with the first step that needs it, or anew when it had no room for it meanwhile: long
    after the request came, whose look at the files says under which name it is shared."""
    place, published = tmp_path / "adapter", []
    write_adapter(place, b"one")
    monkeypatch.setattr(connection.store, "publish", lambda namespace, puts, **more: published.extend(puts))
    side = ready()
    connection.store.blocks = 0
    add(side, "lora", adapter=Adapter("lora", 1, str(place), False))
    until(lambda: side.match("lora", 0) == (0, False) or join(side))
    if replaced:
        write_adapter(place, b"two, longer")
    orders = side.step_orders({"lora": 4 * SIZE + 1})
    (order,) = orders.saves
    side.handle_reports([RankReport(0, orders.step, saves=[SaveReport(0, order.id, len(order.keys))])], set())
    until(lambda: side.step_orders({}) and not side.pending)
    assert connection.session is not None
    for work in connection.work:
        work(connection.session)
    abandoned = [put for _, puts in connection.store.abandoned for put in puts]
    assert (abandoned if replaced else published) == order.put_ids[0] and not (published if replaced else abandoned)


class LateLook:
    """A side that knows an adapter, a request of which begins to be computed before its look at the files."""

    def __init__(self, connection: OneConnection, place: Path, known: bool, reload: bool) -> None:
        self.place, self.there = place, threading.Event()
        write_adapter(place, b"one")
        self.side, self.asked = ready(), Adapter("a", 1, str(place), reload)
        connection.store.blocks = 0
        if known:
            self.begin("known")
        adapted = self.side._adapted
        for one in (adapted._adapters._looks, adapted._adapters._reads):
            one.submit(1, lambda: self.there.wait(WATCHDOG_S))
        adapted._late.add(1)  # as after a look that was late
        add(self.side, "late", adapter=self.asked)
        assert self.side.match("late", 0) == (0, False)
        assert not self.side.step_orders({"late": 2 * SIZE}).saves

    def begin(self, name: str, **more: object) -> bool:
        """Whether it may be shared."""
        add(self.side, name, adapter=replace(self.asked, **more))  # type: ignore[arg-type]
        until(lambda: self.side.match(name, 0) == (0, False) or join(self.side))
        return self.side._requests[name].planned.may_save

    def looked(self) -> list[str]:
        """The look takes place; the requests that are saved with the next steps."""
        self.there.set()
        until(self.side._requests["late"].adapter.done)  # type: ignore[union-attr]
        join(self.side)
        self.side._requests["late"].request.computed_tokens = 2 * SIZE  # type: ignore[misc]
        self.side.step_orders({"late": SIZE})
        join(self.side)
        self.side.step_orders({"late": 1})
        return [one.request for one in self.side._plan._saves.values()]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("reload", [True, False])
def test_request_that_began_before_its_look_shares_nothing_of_files_that_came_meanwhile(
    connection: OneConnection, tmp_path: Path, known: bool, reload: bool
) -> None:
    """The engine has loaded the former for it, and has them for those that come later and load nothing."""
    late = LateLook(connection, tmp_path / "adapter", known, reload)
    write_adapter(late.place, b"two, longer")
    assert late.looked() == []
    assert not late.begin("after", reload=False)
    assert late.begin("again", reload=True)
    late.side.step_orders({"again": SIZE})
    assert late.begin("last", reload=False)


@pytest.mark.parametrize("reload", [True, False])
def test_request_that_began_before_its_look_is_shared_where_its_files_stand(
    connection: OneConnection, tmp_path: Path, reload: bool
) -> None:
    late = LateLook(connection, tmp_path / "adapter", True, reload)
    assert late.looked() == ["late"]
    assert late.begin("after", reload=False)


def test_request_that_shares_nothing_waits_for_the_look_at_what_is_loaded_for_it(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Later ones get that as well."""
    there = threading.Event()
    monkeypatch.setattr(Adapters, "digest", lambda self, adapter: there.wait(WATCHDOG_S) and adapter.name)
    side = make(load=False)
    add(side, "lora", adapter=Adapter("lora", 1, str(tmp_path), False))
    assert side.match("lora", 0) == (None, False)
    there.set()
    until(lambda: side.match("lora", 0) == (0, False))
    side.close()
