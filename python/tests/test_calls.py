# SPDX-License-Identifier: Apache-2.0
"""The calls: their memory, sharing, refusals and messages."""

from __future__ import annotations

import json
import pathlib
import subprocess
import threading
from queue import SimpleQueue
from typing import Any

import pytest
from conftest import FOREVER_US, TIMEOUT_S, Node

import cistern

KEYS = [bytes([i]) * 32 for i in range(100)]


def test_a_chain_is_its_keys(store: cistern.Store, namespace: cistern.Namespace) -> None:
    chain = cistern.Chain(KEYS[:3])
    chain.extend(KEYS[3:5])
    assert list(chain) == KEYS[:5] and len(chain) == 5
    assert chain[1] == KEYS[1] and chain[-1] == KEYS[4] and chain[1:3] == KEYS[1:3]
    with pytest.raises(IndexError):
        chain[5]
    assert list(cistern.Chain.from_buffer(b"".join(KEYS), 32)) == KEYS
    assert list(cistern.Chain.from_buffer(bytearray(b"abcd"), 2)) == [b"ab", b"cd"]
    with pytest.raises(cistern.Invalid, match="no multiple"):
        cistern.Chain.from_buffer(b"abc", 2)
    with pytest.raises(cistern.Invalid, match="key_bytes is 33"):
        cistern.Chain.from_buffer(b"abc", 33)
    with pytest.raises(cistern.Invalid, match=r"keys\[1\]: .*33 bytes"):
        chain.extend([b"k", b"k" * 33])
    assert len(chain) == 5, "a refused extend added nothing"


def test_of_a_cell_a_node_in_none_knows_nothing(store: cistern.Store, namespace: cistern.Namespace) -> None:
    with pytest.raises(cistern.Missed, match="cell"):
        store.cell_holders(namespace, KEYS[:3])
    with pytest.raises(cistern.Missed, match="cell"):
        store.cell_explanation(namespace, KEYS[:3])


def test_a_chain_remembers_for_as_long_as_is_asked(store: cistern.Store, namespace: cistern.Namespace) -> None:
    chain = cistern.Chain(KEYS[:10])
    forever = 3_600_000_000
    assert store.match(namespace, chain, max_age_us=forever).blocks == 0
    store.write(namespace, KEYS[:10], [b"data"] * 10)
    assert store.match(namespace, chain, max_age_us=forever).blocks == 0, "remembered"
    assert store.match(namespace, chain).blocks == 10, "looked"
    chain.extend(KEYS[10:12])
    store.write(namespace, KEYS[10:11], [b"data"], parent=KEYS[9])
    assert store.match(namespace, chain, max_age_us=forever).blocks == 11, "it had ended at the old end"
    chain.extend(KEYS[12:13])
    store.drop(namespace, KEYS[:1])
    assert store.match(namespace, chain, max_age_us=forever).blocks == 11, "it had ended before the old end"
    other = store.attach(cistern.NamespaceSpec({"model": "other"}))
    assert store.match(other, chain, max_age_us=forever).blocks == 0, "of this namespace"
    with pytest.raises(cistern.Invalid, match="goes with a Chain"):
        store.match(namespace, KEYS, max_age_us=1)
    with pytest.raises(cistern.Invalid, match="does not go with hold_us"):
        store.match(namespace, chain, max_age_us=1, hold_us=1)


def test_hints_are_checked_and_change_no_answer(store: cistern.Store, namespace: cistern.Namespace) -> None:
    told = cistern.Hints("tool", "keep", next_turn_ms=30_000, partial=True)
    assert store.match(namespace, KEYS[:3], hints=told).blocks == 0
    store.write(namespace, KEYS[:3], [b"data"] * 3)
    assert store.match(namespace, KEYS[:4], hints=told).blocks == 3
    assert store.begin_match(namespace, KEYS[:4], hold_us=1_000, hints=cistern.Hints("ended")).result().blocks == 3
    for wrong, message in (
        (cistern.Hints("alive"), "no outlook 'alive'; known: unknown, extended, ended, tool"),  # type: ignore[arg-type]
        (cistern.Hints(importance="top"), "importance: there is no importance 'top'"),  # type: ignore[arg-type]
        (cistern.Hints(next_turn_ms=86_400_001), "at most 86400000"),
        (cistern.Hints(next_turn_ms=-1), "next_turn_ms is -1"),
        (cistern.Hints("ended", next_turn_ms=1), "after which there is no turn"),
    ):
        with pytest.raises(cistern.Invalid, match=message):
            store.match(namespace, KEYS[:4], hints=wrong)


def test_processes_of_one_owner_publish_each_others_puts(node: Node) -> None:
    spec = cistern.NamespaceSpec({"model": "ranks"}, groups=[cistern.Group("all", part_bytes=[4, 4])])
    with node.connect() as scheduler, node.connect(scheduler.owner) as rank, node.connect() as stranger:
        namespaces = [store.attach(spec) for store in (scheduler, rank, stranger)]
        put = cistern.new_put_id()
        scheduler.write(namespaces[0], KEYS[:1], [b"left"], put_ids=[put], part=0, held=True)
        rank.write(namespaces[1], KEYS[:1], [b"rght"], put_ids=[put], part=1, held=True)
        assert stranger.match(namespaces[2], KEYS[:1]).blocks == 0
        with pytest.raises(cistern.Denied):
            stranger.publish(namespaces[2], [put])
        assert scheduler.publish(namespaces[0], [put]) == 1
        into = [bytearray(4), bytearray(4)]
        ranges = [cistern.Range(into[0], part=0), cistern.Range(into[1], part=1)]
        assert stranger.read(namespaces[2], KEYS[:1], [ranges]).outcomes == b"\0"
        assert into == [b"left", b"rght"]


def test_ending_a_conversation_removes_what_it_alone_used(store: cistern.Store, namespace: cistern.Namespace) -> None:
    def say(conversation: str, keys: list[bytes], parent: bytes | None = None) -> None:
        store.write(namespace, keys, [b"data"] * len(keys), parent=parent, conversation=conversation)

    say("", KEYS[:2])
    say("ann", KEYS[2:8], KEYS[1])
    say("bob", KEYS[10:13], KEYS[3])
    assert store.touch(namespace, KEYS[:5], conversation="carl") == 5
    assert store.status()["now"]["conversations"] == 3
    assert store.end_conversation(namespace, "ann") == 3
    assert store.match(namespace, KEYS).blocks == 5
    assert store.end_conversation(namespace, "ann") == 0
    assert store.end_conversation(namespace, "bob") == 3
    assert store.match(namespace, KEYS).blocks == 5
    assert store.end_conversation(namespace, "carl") == 3, "it was the last to have used what ann wrote"
    assert store.match(namespace, KEYS).blocks == 2
    for wrong, message in [("", "without a name"), ("x" * 257, "257 bytes, the limit is 256")]:
        with pytest.raises(cistern.Invalid, match=message):
            store.end_conversation(namespace, wrong)
    with pytest.raises(cistern.Invalid, match="257 bytes"):
        store.write(namespace, KEYS[:1], [b"data"], conversation="x" * 257)


def test_a_node_in_this_process_is_warm_when_it_is_opened_again(directory: pathlib.Path) -> None:
    spec = cistern.NamespaceSpec({"model": "embedded"})
    for round in range(3):
        with cistern.Store.open(memory_bytes=64 << 20, memory_dir=directory / "memory") as store:
            namespace = store.attach(spec)
            assert store.match(namespace, KEYS).blocks == round * 10
            parent = KEYS[round * 10 - 1] if round else None
            store.write(namespace, KEYS[round * 10 :][:10], [b"data"] * 10, parent=parent)
            if round == 0:
                with pytest.raises(cistern.Busy):
                    cistern.Store.open(memory_bytes=64 << 20, memory_dir=directory / "memory")
    with pytest.raises(cistern.Gone, match="was closed"):
        store.status()


def put_when_there_is_room(
    store: cistern.Store, namespace: cistern.Namespace, key: bytes, data: bytes, parent: bytes | None
) -> None:
    """A chain that memory alone has no room for grows as fast as flash takes it."""
    while True:  # pytest-timeout, or the suite's, ends it
        try:
            return store.put(namespace, key, data, parent=parent)
        except cistern.Busy:
            pass


def test_what_a_node_in_this_process_has_on_flash_outlives_its_memory(
    directory: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    body, count = b"kv" * (1 << 19), 100  # more than the memory
    keys = [bytes([i]) * 32 for i in range(1, count + 1)]
    for round in range(2):
        memory = directory / f"memory{round}"
        with cistern.Store.open(memory_bytes=64 << 20, memory_dir=memory, flash=[(tmp_path, 256 << 20)]) as store:
            namespace = store.attach(cistern.NamespaceSpec({"model": "embedded"}))
            if round == 0:
                for i, key in enumerate(keys):
                    put_when_there_is_room(store, namespace, key, body, keys[i - 1] if i else None)
                while store.status()["store"]["written_down"] < count:
                    pass
            assert store.match(namespace, keys).blocks == count
            assert all(store.get(namespace, key, deadline_us=FOREVER_US) == body for key in keys)
            assert store.status()["flash"]["fetched_records"] > 0


def test_threads_share_a_store(store: cistern.Store, namespace: cistern.Namespace) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        try:
            keys = [bytes([number, i]) * 16 for i in range(50)]
            for i, key in enumerate(keys):
                store.put(namespace, key, key * 1000, parent=keys[i - 1] if i else None)
            chain = cistern.Chain(keys)
            for _ in range(20):
                if store.match(namespace, chain).blocks != 50:
                    wrong.append("match")
                into = [bytearray(32_000) for _ in keys]
                if any(store.read(namespace, chain, into).outcomes):
                    wrong.append("read")
                if any(got != key * 1000 for got, key in zip(into, keys, strict=True)):
                    wrong.append("bytes")
        except Exception as error:  # noqa: BLE001
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_call_that_waits_lets_other_threads_run(node: Node, store: cistern.Store) -> None:
    namespace = store.attach(cistern.NamespaceSpec({"model": "gil"}))
    node.stop()
    failed: list[BaseException] = []

    def wait() -> None:
        try:
            store.touch(namespace, KEYS, deadline_us=5_000_000)
        except cistern.TooLate as error:
            failed.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    turns = 0
    while waiting.is_alive():  # would be a handful, if the call held the GIL
        turns += 1
    assert len(failed) == 1 and turns > 1000
    node.go_on()


def test_a_node_that_is_gone_is_gone_and_one_that_comes_back_has_what_was_published(node: Node) -> None:
    store = node.connect()
    namespace = store.attach(cistern.NamespaceSpec({"model": "back"}))
    store.write(namespace, KEYS[:10], [b"data"] * 10)
    node.kill()
    for call in (
        lambda: store.status(), lambda: store.write(namespace, KEYS[:1], [b"data"]),
        lambda: store.touch(namespace, KEYS), lambda: store.acquire(namespace, KEYS),
    ):  # fmt: skip
        with pytest.raises(cistern.Gone):
            call()
    node.start()
    with pytest.raises(cistern.Gone):
        store.match(namespace, KEYS)
    with node.connect() as again:
        assert again.match(again.attach(namespace.spec), KEYS).blocks == 10


def test_bad_input_is_named(store: cistern.Store, namespace: cistern.Namespace, directory: pathlib.Path) -> None:
    for call, kind, message in [
        (lambda: cistern.Store.connect(directory / "nobody"), cistern.Gone, "no node listens at"),
        (lambda: cistern.Store.connect(owner=b"short"), cistern.Invalid, "owner has 5 bytes"),
        (lambda: cistern.Store.open(memory_bytes=1, memory_dir=directory / "m"), cistern.Invalid, "memory"),
        (lambda: cistern.Store.open(loop="none", memory_dir=directory / "m"), cistern.Invalid, "none"),
        (lambda: cistern.Store.open(flash=[(directory / "none", 1 << 30)]), cistern.Invalid, "flash: .*none"),
        (lambda: cistern.Store.open(flash_write="sometimes"), cistern.Invalid, "flash_write: .*sometimes"),
        (lambda: store.attach(cistern.NamespaceSpec({"a": 5})), cistern.Invalid, "field a is 5"),  # type: ignore[dict-item]
        (lambda: store.attach(cistern.NamespaceSpec({}, groups=[])), cistern.Invalid, "group"),
        (
            lambda: store.attach(cistern.NamespaceSpec({}, groups=[cistern.Group("g", reach="some")])),  # type: ignore[arg-type]
            cistern.Invalid,
            r'groups\[0\].reach is "some"',
        ),
        (lambda: store.match(namespace, "text"), cistern.Invalid, "keys is of type str"),  # type: ignore[arg-type]
        (lambda: store.match(namespace, [b"k" * 32, "k"]), cistern.Invalid, r"keys\[1\] is of type str"),  # type: ignore[list-item]
        (lambda: store.match(namespace, KEYS, deadline_us=0), cistern.Invalid, "deadline_us is 0"),
        (lambda: store.acquire(namespace, KEYS, lease_us=61_000_000), cistern.Invalid, "lease_us is 61000000"),
        (lambda: store.read(namespace, KEYS[:2], [bytearray(1)]), cistern.Invalid, "1 destinations for 2 keys"),
        (lambda: store.write(namespace, KEYS[:2], [b"1"]), cistern.Invalid, "1 buffers of data for 2 keys"),
        (lambda: store.write(namespace, KEYS[:1], [b"1"], held=True), cistern.Invalid, "held without put_ids"),
        (
            lambda: store.write(namespace, KEYS[:1], [b"1"], put_ids=[b"1"]),
            cistern.Invalid,
            r"put_ids\[0\] has 1 bytes",
        ),
        (lambda: store.write(namespace, KEYS[:1], [b"1"], put_ids=[bytes(16)]), cistern.Invalid, "all zero"),
        (lambda: store.write(namespace, KEYS[:1], [b"1"], parents=[]), cistern.Invalid, "0 parents for 1 keys"),
        (
            lambda: store.write(namespace, KEYS[:1], [b"1"], parents=[None], parent=KEYS[1]),
            cistern.Invalid,
            "both parent and parents",
        ),
        (lambda: store.write(namespace, KEYS[:1], [b"1"], group=1), cistern.Invalid, "group 1 of 1"),
        (lambda: store.put(namespace, KEYS[1], b"1", parent=KEYS[0]), cistern.Missed, "waits for its parent"),
    ]:
        with pytest.raises(kind, match=message):
            call()  # type: ignore[no-untyped-call]
    short = store.write(namespace, [b"short"], [b"1"])
    assert list(short.outcomes) == [cistern.Code.INVALID] and "under 16" in short.message


def test_a_namespace_with_another_list_under_its_name_is_a_mismatch(store: cistern.Store) -> None:
    store.attach(cistern.NamespaceSpec({"dtype": "bf16"}, name="model"))
    with pytest.raises(cistern.Mismatch, match="dtype"):
        store.attach(cistern.NamespaceSpec({"dtype": "fp8"}, name="model"))


def test_what_a_namespace_asks_of_its_cell_is_checked_and_strict_is_another_list(store: cistern.Store) -> None:
    kept = store.attach(cistern.NamespaceSpec({"model": "of its own"}, mesh="off"))
    store.put(kept, KEYS[0], b"1")
    assert store.get(store.attach(cistern.NamespaceSpec({"model": "of its own"})), KEYS[0]) == b"1"
    strict = store.attach(cistern.NamespaceSpec({"model": "of its own"}, strict=True))
    assert store.get(strict, KEYS[0]) is None
    store.put(strict, KEYS[0], b"2")
    assert store.get(strict, KEYS[0]) == b"2", "a node that never was in a cell serves it"
    with pytest.raises(cistern.Invalid, match="mesh"):
        store.attach(cistern.NamespaceSpec({"model": "of its own"}, mesh="no"))


def steer(node: Node, *words: str, fails: bool = False) -> str:
    command = [cistern.cistern_path(), "admin", "--socket", node.socket, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == fails, done.stderr
    return done.stderr if fails else done.stdout


def test_labels_find_a_namespace_for_an_operator_and_share_nothing(store: cistern.Store, node: Node) -> None:
    one, other = (
        store.attach(cistern.NamespaceSpec({"model_config": digest}, labels={"model": "llama", "role": digest}))
        for digest in ("d1", "d2")
    )
    store.put(one, KEYS[0], b"1")
    assert store.get(other, KEYS[0]) is None
    assert store.get(store.attach(cistern.NamespaceSpec({"model_config": "d1"})), KEYS[0]) == b"1"
    store.put(other, KEYS[0], b"2")
    assert "may be any of" in steer(node, "drop", "model=llama", fails=True)
    assert steer(node, "drop", "role=d1") == "1 blocks dropped\n"
    assert store.get(one, KEYS[0]) is None and store.get(other, KEYS[0]) == b"2"
    one = store.attach(cistern.NamespaceSpec({"model_config": "d1"}))  # anew, and its labels are as they were
    store.put(one, KEYS[0], b"1")
    assert steer(node, "drop", "model=llama", "--each") == "2 blocks dropped\n"
    assert store.get(one, KEYS[0]) is None and store.get(other, KEYS[0]) is None
    for labels, message in [({"a": 5}, "label a is 5"), ({"a=b": "c"}, "label"), ({"a": "x" * 127}, "limit is 127")]:
        with pytest.raises(cistern.Invalid, match=message):
            store.attach(cistern.NamespaceSpec({"model": "x"}, labels=labels))  # type: ignore[arg-type]


def test_one_engine_is_switched_off_by_its_name_and_stays_so_when_it_comes_again(
    store: cistern.Store, node: Node
) -> None:
    spec = cistern.NamespaceSpec({"model": "m"})
    store.put(store.attach(spec), KEYS[0], b"1")

    def has(name: str) -> bool:
        with cistern.Store.connect(node.socket, engine_name=name) as engine:
            return engine.get(engine.attach(spec), KEYS[0]) is not None

    with cistern.Store.connect(node.socket, engine_name="decode-1") as engine:
        attached = engine.attach(spec)
        assert engine.get(attached, KEYS[0]) == b"1"
        assert "decode-1 (1 sessions" in steer(node, "reads", "off", "--engine", "decode-1")
        assert engine.get(attached, KEYS[0]) is None
        assert [one for one in store.status()["by_engine"] if not one["reads_on"]][0]["engine"] == "decode-1"
        assert store.get(store.attach(spec), KEYS[0]) == b"1"
    assert not has("decode-1") and has("decode-2") and has("")
    steer(node, "reads", "on", "--engine", "decode-1")
    assert has("decode-1")
    for wrong in ("a b", "x" * 65, "caf\u00e9", "a\n"):
        with pytest.raises(cistern.Invalid, match="engine_name"):
            cistern.Store.connect(node.socket, engine_name=wrong)


def test_copies_of_a_namespace_hold_until_its_users_say_others(node: Node) -> None:
    def said(copies: int) -> object:
        with node.connect() as store:
            store.attach(cistern.NamespaceSpec({"model": "copied"}, copies=copies))
        command = [cistern.cistern_path(), "namespaces", "--socket", node.socket, "--json"]
        listed = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout
        (copied,) = json.loads(listed)["namespaces"]
        return copied["copies"]

    assert [said(copies) for copies in (0, 3, 0, 1, 8)] == [None, 3, 3, 1, 8]
    for wrong in (9, 255, 256, 2**32 - 1):
        with pytest.raises(cistern.Invalid, match="copies"):
            said(wrong)
    with pytest.raises(cistern.Invalid, match="copies"):
        said(-1)
    assert said(0) == 8, "what is refused changes nothing"


def test_scalar_that_is_wrong_is_named(store: cistern.Store, namespace: cistern.Namespace) -> None:
    """As an engine computes them, such as a time to live of what has expired: no TypeError gets past its handlers."""
    key, data = KEYS[0], [b"data"]
    transfers = cistern.Transfers(store)
    pages = cistern.Pages.over([bytearray(64)], [(0, 0, 16, 16)], 4)
    calls: dict[str, Any] = {
        "ttl_s is -1, a whole number from 0 to 4294967295 is needed": lambda: store.put(namespace, key, b"", ttl_s=-1),
        "ttl_s is 4294967296": lambda: store.write(namespace, [key], data, ttl_s=2**32),
        "ttl_s is 1.5": lambda: store.put(namespace, key, b"data", ttl_s=1.5),  # type: ignore[arg-type]
        "held is 1, a bool": lambda: store.write(namespace, [key], data, held=1),  # type: ignore[arg-type]
        "conversation is 7, a text": lambda: store.touch(namespace, [key], conversation=7),  # type: ignore[arg-type]
        "group is 65536": lambda: store.acquire(namespace, [key], group=65536),
        "part is -1": lambda: store.read(namespace, [key], [bytearray(1)], part=-1),
        "deadline_us is 1500000.0, a whole number of 64 bits": lambda: store.get(namespace, key, deadline_us=1.5e6),  # type: ignore[arg-type]
        "deadline_us is None": lambda: store.status(deadline_us=None),  # type: ignore[arg-type]
        "hold_us is None": lambda: store.match(namespace, [key], hold_us=None),  # type: ignore[arg-type]
        "hold_us is 'long'": lambda: store.begin_match(namespace, [key], hold_us="long"),  # type: ignore[arg-type]
        "key is of type NoneType, bytes are needed": lambda: store.get(namespace, None),  # type: ignore[arg-type]
        "data is of type NoneType": lambda: store.put(namespace, key, None),  # type: ignore[arg-type]
        "keys is of type NoneType": lambda: store.match(namespace, None),  # type: ignore[arg-type]
        "key_bytes is -1": lambda: cistern.Chain.from_buffer(b"", -1),
        "fields is of type list, a mapping": lambda: store.attach(cistern.NamespaceSpec([("q", "1")])),  # type: ignore[arg-type]
        "page is -1": lambda: pages.gather(-1),
        "first_page is -1": lambda: cistern.Pages([(0, 1, 1)], 1, first_page=-1),
        "queue is -1": lambda: cistern.Transfers(store, queue=-1),
        "timeout_s is 'long', a number": lambda: transfers.wait("long"),  # type: ignore[arg-type]
        "worth_us is 1.5": lambda: transfers.submit_load(namespace, [key], pages, [0], worth_us=1.5),  # type: ignore[arg-type]
        "staging_bytes is -1": lambda: cistern.Store.connect("nowhere", staging_bytes=-1),
        "socket is 5, a text or a path": lambda: cistern.Store.connect(5),  # type: ignore[arg-type]
        "memory_bytes is -1": lambda: cistern.Store.open(memory_bytes=-1),
        "poll_us is 8589934592": lambda: cistern.Store.open(poll_us=2**33),
        "loop is 5, a text": lambda: cistern.Store.open(loop=5),  # type: ignore[arg-type]
        r"flash\[0\]\[1\] is -1": lambda: cistern.Store.open(flash=[("/tmp", -1)]),
        r"flash\[0\]": lambda: cistern.Store.open(flash=["/tmp"]),  # type: ignore[list-item]
        r"flash\[0\] is \('/tmp',\), a directory or device and its bytes": lambda: cistern.Store.open(
            flash=[("/tmp",)],  # type: ignore[list-item]
        ),
    }
    for message, call in calls.items():
        with pytest.raises(cistern.Invalid, match=message):
            call()
    transfers.close()


def test_codes_and_errors_are_each_others() -> None:
    for code in cistern.Code:
        if code is not cistern.Code.OK:
            assert cistern.errors.ERROR_OF[code].code is code
    assert issubclass(cistern.TooLate, TimeoutError) and issubclass(cistern.Gone, ConnectionError)


def test_what_an_engine_reports_adds_up_in_the_nodes_metrics(node: Node, store: cistern.Store) -> None:
    store.report(promised_tokens=512, delivered_tokens=500, saved_us=3_000_000, spent_us=250_000)
    store.report(promised_tokens=8)
    with pytest.raises(cistern.Invalid, match="promised_tokens is -1"):
        store.report(promised_tokens=-1)
    other = node.connect()
    # pytest-timeout, or the suite's, ends it
    while (engines := other.status()["engines"])["promised_tokens"] < 520:
        pass
    assert engines == {"promised_tokens": 520, "delivered_tokens": 500, "saved_us": 3_000_000, "spent_us": 250_000}


def test_answer_of_a_pending_match_is_given_to_one_of_two_threads(node: Node) -> None:
    with node.connect() as store:
        namespace = store.attach(cistern.NamespaceSpec({"model": "pending"}))
        node.stop()
        pending = store.begin_match(namespace, KEYS, deadline_us=FOREVER_US)
        said: SimpleQueue[Any] = SimpleQueue()

        def take() -> None:
            try:
                said.put(pending.result())
            except cistern.Error as error:
                said.put(error)

        for _ in range(2):
            threading.Thread(target=take, daemon=True).start()
        assert isinstance(said.get(timeout=TIMEOUT_S), cistern.Invalid)  # at once: the other one waits for the node
        node.go_on()
        assert said.get(timeout=TIMEOUT_S).blocks == 0
