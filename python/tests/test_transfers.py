# SPDX-License-Identifier: Apache-2.0
"""Pages in, pages out: every layout, and a node that is gone or hung in the middle."""

from __future__ import annotations

import random
import select
from collections.abc import Callable, Iterator

import pytest
from conftest import FOREVER_US, TIMEOUT_S, Node

import cistern

np = pytest.importorskip("numpy")
PAGES, LAYERS, HEADS, BLOCK, WIDTH = 24, 3, 2, 16, 24
PART_BYTES = LAYERS * HEADS * BLOCK * WIDTH


class Layout:
    """An engine's pool in one order, and how its pages are found in it."""

    def __init__(self, shape: tuple[int, ...], fragments: list[tuple[int, int, int]], axis: int) -> None:
        self.pool = np.zeros(shape, np.uint8)
        self.pages = cistern.Pages.over([self.pool], [(0, *fragment) for fragment in fragments], PAGES, first_page=1)
        self.axis = axis

    def page(self, id: int) -> bytes:
        return bytes(np.take(self.pool, id, axis=self.axis).tobytes())


PAGE = BLOCK * WIDTH
LAYOUTS: dict[str, Callable[[], Layout]] = {
    "LBHNC": lambda: Layout(
        (LAYERS, PAGES, HEADS, PAGE),
        [(layer * PAGES * HEADS * PAGE, HEADS * PAGE, HEADS * PAGE) for layer in range(LAYERS)],
        1,
    ),
    "BLHNC": lambda: Layout((PAGES, LAYERS * HEADS * PAGE), [(0, PART_BYTES, PART_BYTES)], 0),
    "LHBNC": lambda: Layout(
        (LAYERS, HEADS, PAGES, PAGE), [(i * PAGES * PAGE, PAGE, PAGE) for i in range(LAYERS * HEADS)], 2
    ),
    "kernel blocks": lambda: Layout(
        (LAYERS, PAGES, 2, HEADS * PAGE // 2),
        [
            ((layer * PAGES * 2 + half) * HEADS * PAGE // 2, HEADS * PAGE, HEADS * PAGE // 2)
            for layer in range(LAYERS)
            for half in range(2)
        ],
        1,
    ),
}


@pytest.fixture
def paged(store: cistern.Store) -> cistern.Namespace:
    group = cistern.Group("all", part_bytes=[PART_BYTES])
    return store.attach(cistern.NamespaceSpec({"model": "paged"}, groups=[group]))


@pytest.fixture
def transfers(store: cistern.Store) -> Iterator[cistern.Transfers]:
    with cistern.Transfers(store) as made:
        yield made


def keys_of(seed: int, count: int) -> list[bytes]:
    draw = random.Random(seed)
    return [draw.randbytes(32) for _ in range(count)]


def one(transfers: cistern.Transfers, id: int) -> cistern.Done:
    (done,) = transfers.wait(TIMEOUT_S)
    assert done.id == id
    return done


def fill(layout: Layout, seed: int) -> None:
    layout.pool[...] = np.random.default_rng(seed).integers(0, 256, layout.pool.shape, np.uint8)


@pytest.mark.parametrize("name", LAYOUTS)
def test_what_one_layout_saved_the_same_layout_loads_bit_exact(
    name: str, store: cistern.Store, paged: cistern.Namespace, transfers: cistern.Transfers
) -> None:
    source, target = LAYOUTS[name](), LAYOUTS[name]()
    assert source.pages.part_bytes == PART_BYTES
    fill(source, 1)
    ids = random.Random(1).sample(range(1, PAGES), 10)
    others = random.Random(2).sample(range(1, PAGES), 10)
    chain = cistern.Chain(keys_of(1, 10))
    assert one(transfers, transfers.submit_save(paged, chain, source.pages, ids, held=False)).ok
    done = one(transfers, transfers.submit_load(paged, chain, target.pages, np.array(others, np.int64)))
    assert done.ok and done.moved_bytes == 10 * PART_BYTES and done.kind == "load"
    wanted = dict(zip(others, ids, strict=True))
    for page in range(PAGES):
        expected = source.page(wanted[page]) if page in wanted else bytes(PART_BYTES)
        assert target.page(page) == expected, f"page {page}"
        if page > 0:
            assert target.pages.gather(page) == target.page(page)
    assert store.get(paged, chain[3]) == source.page(ids[3])


def test_pages_are_given_by_address_too_and_bounded_by_their_regions() -> None:
    pool = np.zeros((4, 8, 100), np.uint8)
    regions = [(layer.ctypes.data, layer.nbytes) for layer in pool]
    fragments = [(layer.ctypes.data, 100, 100) for layer in pool]
    pages = cistern.Pages([cistern.Fragment(*one) for one in fragments], 8, regions=regions, keep=pool)
    assert (pages.part_bytes, pages.pages, pages.first_page) == (400, 8, 0)
    pool[2, 5] = 7
    assert pages.gather(5) == bytes(200) + b"\7" * 100 + bytes(100)
    with pytest.raises(cistern.Invalid, match="fragment 3 .*leave the memory"):
        cistern.Pages(fragments, 8, regions=regions[:3] + [(regions[3][0], 799)])
    with pytest.raises(cistern.Invalid, match="page_ids.*is 8"):
        pages.gather(8)
    with pytest.raises(cistern.Invalid, match="fragment 0 .*leave the memory"):
        cistern.Pages.over([pool], [(0, 0, 100, 100)], 33)
    with pytest.raises(cistern.Invalid, match="read-only|writable"):
        cistern.Pages.over([bytes(100)], [(0, 0, 100, 100)], 1)
    growing = bytearray(100)
    held = cistern.Pages.over([growing], [(0, 0, 10, 10)], 10)
    with pytest.raises(BufferError):
        growing.extend(b"more")
    assert held.gather(9) == bytes(10)
    with pytest.raises(cistern.Invalid, match="buffer 1"):
        cistern.Pages.over([pool], [(1, 0, 100, 100)], 1)


def test_what_is_wrong_is_named_and_starts_nothing(
    store: cistern.Store, paged: cistern.Namespace, transfers: cistern.Transfers
) -> None:
    layout = LAYOUTS["LBHNC"]()
    keys = keys_of(3, 2)
    for ids, message in [
        ([0, 1], r"page_ids\[0\] is 0, pages are 1 to 23"),
        ([1, 24], r"page_ids\[1\] is 24"),
        ([1, -1], r"page_ids\[1\] is -1"),
        ([1, 1], "has 1 twice"),
        ([1], "1 page_ids for 2 keys"),
        ([1, "x"], r"page_ids\[1\] is no whole number"),
        (np.zeros(2), "format 'd'"),
    ]:
        with pytest.raises(cistern.Invalid, match=message):
            transfers.submit_load(paged, keys, layout.pages, ids)
    other = cistern.Pages.over([bytearray(1000)], [(0, 0, 100, 100)], 10)
    with pytest.raises(cistern.Invalid, match=f"has {PART_BYTES} bytes and a page 100"):
        transfers.submit_load(paged, keys, other, [1, 2])
    with pytest.raises(cistern.Invalid, match="Pages is needed"):
        transfers.submit_load(paged, keys, layout, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(cistern.Invalid, match="held without put_ids"):
        transfers.submit_save(paged, keys, layout.pages, [1, 2])
    for options, message in [({"queue": 0}, "queue is 0"), ({"queue": 65_537}, "queue is 65537")]:
        with pytest.raises(cistern.Invalid, match=message):
            cistern.Transfers(store, **options)
    assert transfers.in_flight == 0 and transfers.poll() == []


def test_held_saves_are_published_or_abandoned(
    store: cistern.Store, paged: cistern.Namespace, transfers: cistern.Transfers
) -> None:
    layout = LAYOUTS["BLHNC"]()
    keys, puts = keys_of(4, 4), [cistern.new_put_id() for _ in range(4)]
    done = one(transfers, transfers.submit_save(paged, keys, layout.pages, [1, 2, 3, 4], put_ids=puts))
    assert done.ok and list(done.states) == [cistern.State.PENDING] * 4
    assert store.match(paged, keys).blocks == 0
    assert store.publish(paged, puts[:2]) == 2 and store.abandon(paged, puts[2:]) == 2
    assert store.match(paged, keys).blocks == 2
    again = one(transfers, transfers.submit_save(paged, keys[:2], layout.pages, [1, 2], held=False))
    assert list(again.states) == [cistern.State.PRESENT] * 2


def test_a_save_is_its_conversations(
    store: cistern.Store, paged: cistern.Namespace, transfers: cistern.Transfers
) -> None:
    layout = LAYOUTS["BLHNC"]()
    keys = keys_of(5, 4)
    save = transfers.submit_save(paged, keys, layout.pages, [1, 2, 3, 4], held=False, conversation="ann")
    assert one(transfers, save).ok
    assert store.end_conversation(paged, "ann") == 4
    with pytest.raises(cistern.Invalid, match="300 bytes"):
        transfers.submit_save(paged, keys, layout.pages, [1, 2, 3, 4], held=False, conversation="x" * 300)


def test_reports_wake_an_event_loop_and_cancelled_ones_come_too(
    paged: cistern.Namespace, transfers: cistern.Transfers, store: cistern.Store
) -> None:
    layout = LAYOUTS["BLHNC"]()
    poller = select.poll()
    poller.register(transfers.event_fd(), select.POLLIN)
    assert poller.poll(0) == []
    id = transfers.submit_load(paged, keys_of(5, 3), layout.pages, [1, 2, 3])
    assert poller.poll(TIMEOUT_S * 1000) != []
    (done,) = transfers.poll()
    assert done.id == id and list(done.outcomes) == [cistern.Code.MISS] * 3
    assert poller.poll(0) == []
    with cistern.Transfers(store, queue=2, max_bytes_per_s=1) as slow:
        ids = [slow.submit_save(paged, keys_of(n, 1), layout.pages, [1], held=False) for n in range(2)]
        with pytest.raises(cistern.Busy, match="2 saves"):
            slow.submit_save(paged, keys_of(9, 1), layout.pages, [1], held=False)
        slow.cancel(ids[1])
        reports: list[int] = []
        while slow.in_flight:
            reports += [done.id for done in slow.wait(TIMEOUT_S)]
        assert sorted(reports) == ids and not slow.cancel(ids[1])


def begin_some(transfers: cistern.Transfers, paged: cistern.Namespace, layout: Layout, deadline_us: int) -> set[int]:
    ids: set[int] = set()
    for n in range(10):
        keys = keys_of(100 + n, 8)
        ids.add(transfers.submit_load(paged, keys, layout.pages, range(1, 9), deadline_us=deadline_us))
        ids.add(transfers.submit_save(paged, keys, layout.pages, range(9, 17), held=False, deadline_us=deadline_us))
    return ids


def reports_of(transfers: cistern.Transfers) -> list[cistern.Done]:
    reports: list[cistern.Done] = []
    while transfers.in_flight:
        got = transfers.wait(TIMEOUT_S)
        assert got, "a transfer was not reported"
        reports += got
    return reports


def test_a_hung_node_holds_no_transfer_beyond_its_deadline(node: Node) -> None:
    with node.connect() as store:
        paged = store.attach(cistern.NamespaceSpec({"model": "hung"}))
        layout = LAYOUTS["LBHNC"]()
        with cistern.Transfers(store) as transfers:
            known = keys_of(6, 8)
            assert one(transfers, transfers.submit_save(paged, known, layout.pages, range(1, 9), held=False)).ok
            node.stop()
            ids = begin_some(transfers, paged, layout, 300_000)
            resident = transfers.submit_load(paged, known, layout.pages, range(9, 17), deadline_us=FOREVER_US)
            reports = {done.id: done for done in reports_of(transfers)}
            assert set(reports) == ids | {resident}, "each exactly once"
            assert reports[resident].ok, "what is in memory is read without the node"
            for done in reports.values():
                if done.kind == "save":
                    assert set(done.outcomes) <= {cistern.Code.TOO_LATE, cistern.Code.BUSY}
            after = transfers.submit_save(paged, keys_of(7, 8), layout.pages, range(1, 9), held=False, deadline_us=1000)
            assert not one(transfers, after).ok
            node.go_on()
            while not one(
                transfers, transfers.submit_save(paged, keys_of(8, 8), layout.pages, range(1, 9), held=False)
            ).ok:
                pass


def test_first_saves_end_by_deadline_and_cancel_though_the_node_has_granted_no_staging_yet(node: Node) -> None:
    with node.connect() as store:
        paged = store.attach(cistern.NamespaceSpec({"model": "first"}))
        layout = LAYOUTS["LBHNC"]()
        with cistern.Transfers(store) as transfers:
            node.stop()

            def save(seed: int, deadline_us: int) -> int:
                return transfers.submit_save(
                    paged, keys_of(seed, 8), layout.pages, range(1, 9), deadline_us=deadline_us, held=False
                )

            # The node is asked for staging until then, and when the second one comes.
            assert set(one(transfers, save(9, 100_000)).outcomes) == {cistern.Code.TOO_LATE}
            assert transfers.cancel(save(10, FOREVER_US))
            (done,) = transfers.poll()
            assert set(done.outcomes) == {cistern.Code.TOO_LATE}
            node.go_on()


def test_a_node_that_is_killed_ends_every_transfer_once(node: Node) -> None:
    with node.connect() as store:
        paged = store.attach(cistern.NamespaceSpec({"model": "killed"}))
        layout = LAYOUTS["LHBNC"]()
        transfers = cistern.Transfers(store)
        node.stop()
        ids = begin_some(transfers, paged, layout, FOREVER_US)
        node.kill()
        reports = reports_of(transfers)
        assert sorted(done.id for done in reports) == sorted(ids)
        for done in reports:
            if done.kind == "save":
                assert list(done.outcomes) == [cistern.Code.GONE] * 8
        late = one(transfers, transfers.submit_load(paged, keys_of(100, 8), layout.pages, range(1, 9)))
        assert set(late.outcomes) == {cistern.Code.GONE}
        transfers.close()


def test_pages_are_left_when_wait_pages_says_so(
    store: cistern.Store, paged: cistern.Namespace, transfers: cistern.Transfers
) -> None:
    layout = LAYOUTS["LBHNC"]()
    for seed in range(20):
        fill(layout, seed)
        wanted = [layout.page(id) for id in range(1, 9)]
        keys = keys_of(200 + seed, 8)
        id = transfers.submit_save(paged, keys, layout.pages, range(1, 9), held=False)
        assert transfers.wait_pages([id], TIMEOUT_S)
        layout.pool[...] = 0
        assert one(transfers, id).ok
        assert [store.get(paged, key) for key in keys] == wanted
    assert transfers.wait_pages()


def test_close_reports_what_was_in_flight(store: cistern.Store, paged: cistern.Namespace) -> None:
    layout = LAYOUTS["LBHNC"]()
    transfers = cistern.Transfers(store)
    ids = begin_some(transfers, paged, layout, FOREVER_US)
    transfers.close()
    transfers.close()
    assert {done.id for done in transfers.poll()} == ids
    with pytest.raises(cistern.Gone):
        transfers.submit_load(paged, keys_of(1, 1), layout.pages, [1])
    store.close()
