# SPDX-License-Identifier: Apache-2.0
"""Whose KV an adapter's is, by its files and by what the engine does with them, without an engine."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from harness import WATCHDOG_S
from scheduler_side import SIZE, OneConnection, add, join, make, name_files, ready, until

import cistern.engine.adapted as adapted_module
import cistern.engine.adapters as adapters_module
from cistern import Busy, Missed
from cistern.engine.adapters import Adapters, LoadedAdapter
from cistern.engine.connection import Connection
from cistern.engine.coordinator import Coordinator
from cistern.engine.files import UnknownIdentity
from cistern.engine.orders import RankReport, SaveReport
from cistern.engine.request import Adapter
from cistern.engine.session import Session, SessionSpec
from cistern.vllm import updates, versions
from cistern.vllm.request import adapter_of


def write_adapter(folder: Path, body: bytes) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(body)


def load(into: Adapters | Coordinator, adapter: Adapter) -> None:
    """The engine loads it ahead of its requests, in place if it has that number."""
    with (into.loading if isinstance(into, Adapters) else into.adapter_loading)(replace(adapter, reload=True)):
        pass


def test_adapter_replaced_in_place_unknown_until_loaded_again(tmp_path: Path) -> None:
    """Also where the former files come back: the engine may have loaded the others meanwhile."""
    known, asked = Adapters(), Adapter("a", 1, str(tmp_path / "current"), False)
    write_adapter(tmp_path / "one", b"one")
    write_adapter(tmp_path / "two", b"two")
    (tmp_path / "current").symlink_to("one")
    first = known.look(asked)
    assert known.look(asked) is first
    for place in ("two", "one"):
        (tmp_path / "current").unlink()
        (tmp_path / "current").symlink_to(place)
        for reload in (False, True):
            with pytest.raises(UnknownIdentity, match="changed since"):
                known.look(replace(asked, reload=reload))
    load(known, asked)
    again = known.look(asked)
    assert again is not first and again.digest == first.digest


def test_adapter_number_with_other_place_unknown_until_loaded_again(tmp_path: Path) -> None:
    known = Adapters()
    write_adapter(tmp_path / "a", b"one")
    write_adapter(tmp_path / "b", b"two")
    one, two = (Adapter("a", 1, str(tmp_path / place), False) for place in "ab")
    first = known.look(one)
    for asked in (two, one):
        with pytest.raises(UnknownIdentity, match="changed since"):
            known.look(asked)
    load(known, two)
    assert known.look(two).digest != first.digest
    with known.loading(one):  # unless it has the number: who knows
        pass
    with pytest.raises(UnknownIdentity, match="changed since"):
        known.look(two)


def test_adapter_applied_otherwise_is_another_one(tmp_path: Path) -> None:
    write_adapter(tmp_path / "a", b"one")
    asked = Adapter("a", 1, str(tmp_path / "a"), False)
    others = [Adapters().look(asked).digest, Adapters("o_proj alone").look(asked).digest,
              Adapters().look(replace(asked, form="fused experts")).digest]
    assert len(set(others)) == 3 and Adapters("o_proj alone").look(asked).digest == others[1]


def test_adapter_whose_files_changed_between_its_loading_and_its_first_request_unknown(tmp_path: Path) -> None:
    """Servers load the adapters of their command line and of their API long before anybody asks for one."""
    known, asked = Adapters(), Adapter("a", 1, str(tmp_path / "a"), False)
    write_adapter(tmp_path / "a", b"one")
    with known.loading(asked):
        pass
    write_adapter(tmp_path / "a", b"two")
    with known.loading(asked):  # it has that number: nothing is loaded
        pass
    with pytest.raises(UnknownIdentity, match="changed since"):
        known.look(asked)
    with known.loading(Adapter("hub", 2, "owner/name", False)):
        pass
    with pytest.raises(UnknownIdentity, match="give their folder"):
        known.look(Adapter("hub", 2, "owner/name", False))
    load(known, asked)
    second = known.look(asked)
    load(known, asked)
    assert known.look(asked) is second  # the same files
    write_adapter(tmp_path / "a", b"three")
    load(known, asked)
    assert known.look(asked).digest != second.digest


def test_adapter_whose_loading_in_place_failed_unknown_until_one_succeeds(tmp_path: Path) -> None:
    """One rank may have either of the two, or another one than the next."""
    known, asked = Adapters(), Adapter("a", 1, str(tmp_path / "a"), False)
    write_adapter(tmp_path / "a", b"one")
    first = known.look(asked)
    write_adapter(tmp_path / "b", b"two")
    with pytest.raises(ValueError, match="rank"), known.loading(replace(asked, path=str(tmp_path / "b"), reload=True)):
        raise ValueError("its rank is too high")
    with pytest.raises(UnknownIdentity, match="failed"):
        known.look(asked)
    load(known, asked)
    assert known.look(asked).digest == first.digest


def test_link_that_leads_elsewhere_and_back_is_noticed(tmp_path: Path) -> None:
    """The engine may have loaded an adapter anew while it led there."""
    (tmp_path / "place").symlink_to("deeper")
    (tmp_path / "deeper").mkdir()
    for name in ("one", "two"):
        write_adapter(tmp_path / name, name.encode())
    link, other = tmp_path / "deeper" / "current", tmp_path / "other"

    def lead_to(name: str) -> None:
        other.symlink_to(f"../{name}")
        other.replace(link)

    lead_to("one")
    known, asked = Adapters(), Adapter("a", 1, str(tmp_path / "place" / "current"), False)
    assert known.look(asked) is known.look(asked)
    lead_to("two")
    lead_to("one")
    with pytest.raises(UnknownIdentity, match="changed since"):
        known.look(asked)
    link.unlink()
    link.symlink_to("current")
    with pytest.raises((UnknownIdentity, OSError)):
        Adapters().look(replace(asked, number=2))


def test_loading_of_an_adapter_told_around_it() -> None:
    done: list[object] = []

    @contextlib.contextmanager
    def loading(adapter: Adapter) -> Iterator[None]:
        done.append(adapter)
        yield
        done.append("loaded")

    core = SimpleNamespace(add_lora=lambda request: done.append(request) or True)
    side = SimpleNamespace(adapter_loading=loading)
    updates.watch_adapters(core, side)  # type: ignore[arg-type]
    request = SimpleNamespace(lora_name="a", lora_int_id=3, lora_path="/a", load_inplace=True)
    assert core.add_lora(request) is True
    assert done == [Adapter("a", 3, "/a", True), request, "loaded"]
    updates.watch_adapters(None, side)  # type: ignore[arg-type]


def test_adapter_in_a_users_home_is_where_its_loader_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of")
    request = SimpleNamespace(lora_name="a", lora_int_id=3, lora_path="~/a")
    found = adapter_of(request)
    assert found == Adapter("a", 3, "/home/of/a", False) and found.cached_by == versions.adapter_key(request)


class OneAdapter:
    """A side whose store has nothing, and an adapter's files."""

    def __init__(self, connection: OneConnection, place: Path) -> None:
        self.side, self.place, self.asked = ready(), place, Adapter("a", 1, str(place), False)
        connection.store.blocks = 0
        write_adapter(place, b"one")

    def begins(self, request: str, **more: Any) -> bool:
        """A request comes, and the first block of it is computed: whether that is saved."""
        add(self.side, request, adapter=replace(self.asked, **more))
        until(lambda: self.side.match(request, 0) == (0, False) or join(self.side))
        return bool(self.side.step_orders({request: SIZE}).saves)

    def goes_on(self, *requests: str) -> int:
        """Another block of each is computed: how many are saved."""
        for one in requests:
            self.side._requests[one].request.computed_tokens += SIZE  # type: ignore[misc]
        return len(self.side.step_orders(dict.fromkeys(requests, SIZE)).saves)


def test_requests_that_run_while_their_adapter_is_loaded_again_share_nothing_any_more(
    connection: OneConnection, tmp_path: Path
) -> None:
    """What they compute from then on is of both."""
    one = OneAdapter(connection, tmp_path / "adapter")
    write_adapter(tmp_path / "other", b"other")
    assert one.begins("runs") and one.begins("other", name="other", number=2, path=str(tmp_path / "other"))
    load(one.side, one.asked)  # the same files
    assert one.goes_on("runs", "other") == 2
    add(one.side, "waits", adapter=one.asked)
    until(lambda: one.side.match("waits", 0) == (0, False))
    assert one.side._requests["waits"].planned.may_load
    write_adapter(one.place, b"two, longer")
    load(one.side, one.asked)
    connection.store.blocks = 3
    assert one.side.match("waits", 0) == (0, False) and not one.side._requests["waits"].planned.may_load
    assert one.goes_on("runs", "other") == 1


def test_adapter_loaded_in_place_shared_once_the_prefix_cache_was_emptied(
    connection: OneConnection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then the engine finds blocks of the former files there under the same hashes."""
    one = OneAdapter(connection, tmp_path / "adapter")
    assert one.begins("first")
    one.side.end_request("first", ([*range(1, 6)],))
    write_adapter(one.place, b"two, longer")
    load(one.side, one.asked)
    add(one.side, "found", adapter=one.asked)
    until(lambda: one.side.match("found", 2 * SIZE) == (0, False) or join(one.side))
    one.side._requests["found"].request.computed_tokens = 2 * SIZE  # type: ignore[misc]
    assert not one.side.step_orders({"found": SIZE}).saves and "reset_prefix_cache" in caplog.text
    assert not one.begins("late")
    assert not one.begins("unloaded", number=2)  # and another number has the same hashes
    assert one.begins("renamed", name="b", number=3)
    one.side.prefix_cache_emptied()
    one.side._changes.asks = False  # the ranks have answered
    assert one.begins("again")


def test_request_that_waited_looks_again_before_it_loads(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its engine may have had no room for the adapter meanwhile, and have loaded what is there by now."""
    one = OneAdapter(connection, tmp_path / "adapter")
    connection.store.blocks = 3
    for name in ("waits", "late"):
        add(one.side, name, adapter=one.asked)
        until(lambda name=name: one.side.match(name, 0) == (3 * SIZE, True) or join(one.side))
    monkeypatch.setattr(adapted_module, "FRESH_S", 0.0)
    until(lambda: one.side.match("waits", 0) == (3 * SIZE, True))
    write_adapter(one.place, b"two, longer")
    until(lambda: one.side.match("late", 0) == (0, False))
    assert one.side.match("late", 0) == (0, False)


def test_blocks_that_were_loaded_are_of_what_the_adapter_was_then(connection: OneConnection, tmp_path: Path) -> None:
    """Also where their request ended before anything was computed for it."""
    one = OneAdapter(connection, tmp_path / "adapter")
    connection.store.blocks = 3
    add(one.side, "loads", adapter=one.asked)
    until(lambda: one.side.match("loads", 0) == (3 * SIZE, True) or join(one.side))
    one.side.begin_load("loads", ([*range(1, 4)],), 3 * SIZE)
    one.side.end_request("loads", ([*range(1, 4)],))
    connection.store.blocks = 0
    write_adapter(one.place, b"two, longer")
    load(one.side, one.asked)
    assert not one.begins("new")


def test_adapter_asked_for_at_another_place_is_not_shared_by_the_names_that_it_had(
    connection: OneConnection, tmp_path: Path
) -> None:
    """What is found out of it counts for what the engine had cached by then."""
    one = OneAdapter(connection, tmp_path / "adapter")
    assert one.begins("first")
    write_adapter(tmp_path / "other", b"other")
    assert not one.begins("other", name="b", path=str(tmp_path / "other"))
    assert not one.begins("unloaded", number=2) and one.begins("renamed", name="c", number=2)


@pytest.mark.parametrize("by_path", [True, False])
def test_adapter_loaded_from_another_place_shared_where_its_blocks_are_found_by_that(
    connection: OneConnection, tmp_path: Path, by_path: bool
) -> None:
    """As in vLLM 0.32: what was computed with the former files is found by none of its requests."""
    one = OneAdapter(connection, tmp_path / "first")
    write_adapter(tmp_path / "second", b"other")

    def asked(number: int, place: str) -> Adapter:
        path = str(tmp_path / place)
        return replace(one.asked, number=number, path=path, cached_by=path if by_path else "a")

    one.asked = asked(1, "first")
    assert one.begins("first")
    one.asked = asked(2, "second")
    with one.side.adapter_loading(one.asked):
        pass
    assert one.begins("second") == by_path
    write_adapter(tmp_path / "second", b"another one")
    load(one.side, one.asked)
    assert not one.begins("third")  # other files at the same place


def test_what_vllm_finds_an_adapters_blocks_by_is_what_it_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core import kv_cache_utils

    request = SimpleNamespace(lora_name="a", lora_int_id=3, lora_path="/one")
    for hashed in (lambda one: [("lora", one.lora_request.lora_name, one.lora_request.lora_path)],
                   lambda one: [one.lora_request.lora_name]):
        versions._hashes_adapter_path.cache_clear()
        with monkeypatch.context() as patched:
            patched.setattr(kv_cache_utils, "_gen_lora_extra_hash_keys", hashed)
            first, second = versions.adapter_key(request), versions.adapter_key(replaced(request, lora_path="/two"))
            assert (first != second) == (len(hashed(SimpleNamespace(lora_request=request))[0]) == 3)
            assert first != versions.adapter_key(replaced(request, lora_name="b"))
    versions._hashes_adapter_path.cache_clear()


def replaced(request: SimpleNamespace, **more: object) -> SimpleNamespace:
    return SimpleNamespace(**{**vars(request), **more})


def test_request_that_loads_its_adapter_again_with_other_files_is_not_shared(
    connection: OneConnection, tmp_path: Path
) -> None:
    """Another one of its batch, which does not, may stand for both: nothing is loaded then."""
    one = OneAdapter(connection, tmp_path / "adapter")
    assert one.begins("first") and one.begins("again", reload=True)
    write_adapter(one.place, b"two, longer")
    assert not one.begins("new", reload=True) and not one.begins("plain")
    assert one.goes_on("first", "again", "new", "plain") == 0
    one.side.prefix_cache_emptied()
    one.side._changes.asks = False
    assert not one.begins("last", reload=True)


def test_request_of_a_known_adapter_waits_for_no_other_adapters_files(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, there, look = tmp_path / "adapter", threading.Event(), Adapters.look
    write_adapter(place, b"one")
    known, slow = Adapter("known", 1, str(place), False), Adapter("slow", 2, str(place), False)

    def read(self: Adapters, adapter: Adapter) -> LoadedAdapter:
        if adapter.number == 2:
            assert there.wait(WATCHDOG_S)
        return look(self, adapter)

    monkeypatch.setattr(Adapters, "look", read)
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


def test_what_an_engine_loads_while_its_files_change_is_not_what_they_are_later(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of one that is asked for while it is still being copied to its place."""
    one, digest = OneAdapter(connection, tmp_path / "adapter"), Adapters._digest

    def changed(self: Adapters, adapter: Adapter) -> str:
        write_adapter(one.place, b"two, longer")
        return digest(self, adapter)

    with monkeypatch.context() as patched:
        patched.setattr(Adapters, "_digest", changed)
        assert not one.begins("first")
    assert not one.begins("second")
    one.side.prefix_cache_emptied()
    one.side._changes.asks = False
    load(one.side, one.asked)
    assert one.begins("again")


def test_adapter_whose_files_could_not_be_looked_at_for_a_moment_is_shared(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, look, failed = OneAdapter(connection, tmp_path / "adapter"), adapters_module.folder_state, []

    def state(folder: Path) -> object:
        if len(failed) < 2:
            failed.append(OSError(errno.ESTALE, "stale"))
            raise UnknownIdentity("stale") from failed[-1]
        return look(folder)

    monkeypatch.setattr(adapters_module, "folder_state", state)
    assert one.begins("first") and len(failed) == 2


def test_adapter_for_which_the_node_has_no_room_makes_no_request_wait(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_files(monkeypatch)
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
    name_files(monkeypatch)
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


class LateLook(OneAdapter):
    """A side that knows an adapter, a request of which begins to be computed before its look at the files."""

    def __init__(self, connection: OneConnection, place: Path, known: bool) -> None:
        super().__init__(connection, place)
        self.there = threading.Event()
        if known:
            self.begins("known")
        adapted = self.side._adapted
        for one in (adapted._adapters._looks, adapted._adapters._reads):
            one.submit(1, lambda: self.there.wait(WATCHDOG_S))
        adapted._late.add(1)  # as after a look that was late
        add(self.side, "late", adapter=self.asked)
        assert self.side.match("late", 0) == (0, False)
        assert not self.side.step_orders({"late": 2 * SIZE}).saves

    def looked(self) -> bool:
        """The look takes place; whether the request is saved with the next steps."""
        self.there.set()
        until(self.side._requests["late"].adapter.done)  # type: ignore[union-attr]
        join(self.side)
        self.side._requests["late"].request.computed_tokens = 2 * SIZE  # type: ignore[misc]
        self.side.step_orders({"late": SIZE})
        join(self.side)
        self.side.step_orders({"late": 1})
        return any(one.request == "late" for one in self.side._plan._saves.values())


@pytest.mark.parametrize("known", [True, False])
def test_request_that_began_before_its_look_shares_nothing_of_files_that_came_meanwhile(
    connection: OneConnection, tmp_path: Path, known: bool
) -> None:
    """The engine has loaded the former for it, and has them for those that come later."""
    late = LateLook(connection, tmp_path / "adapter", known)
    write_adapter(late.place, b"two, longer")
    assert not late.looked() and not late.begins("after")
    late.side.prefix_cache_emptied()
    late.side._changes.asks = False
    load(late.side, late.asked)
    assert late.begins("again")


def test_request_that_began_before_its_look_is_shared_where_its_files_stand(
    connection: OneConnection, tmp_path: Path
) -> None:
    late = LateLook(connection, tmp_path / "adapter", True)
    assert late.looked() and late.begins("after")


def test_request_whose_look_comes_behind_a_loading_in_place_is_shared_by_what_that_saw(
    connection: OneConnection, tmp_path: Path
) -> None:
    one = OneAdapter(connection, tmp_path / "adapter")
    add(one.side, "unused", adapter=one.asked)
    until(lambda: one.side.match("unused", 0) == (0, False))
    write_adapter(one.place, b"two, longer")
    load(one.side, one.asked)
    there = threading.Event()
    for beside in (one.side._adapted._adapters._looks, one.side._adapted._adapters._reads):
        beside.submit(1, lambda: there.wait(WATCHDOG_S))
    one.side._adapted._late.add(1)
    assert not one.begins("late", reload=True)
    there.set()
    until(one.side._requests["late"].adapter.done)  # type: ignore[union-attr]
    until(lambda: join(one.side) or one.goes_on("late"))


def test_request_that_shares_nothing_waits_for_the_look_at_its_adapter(
    connection: OneConnection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be saved."""
    there = threading.Event()
    name_files(monkeypatch)
    monkeypatch.setattr(adapters_module, "_state", lambda adapter: there.wait(WATCHDOG_S) and adapter.path)
    side = make(load=False)
    add(side, "lora", adapter=Adapter("lora", 1, str(tmp_path), False))
    assert side.match("lora", 0) == (None, False)
    there.set()
    until(lambda: side.match("lora", 0) == (0, False))
    side.close()
