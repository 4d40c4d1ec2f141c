# SPDX-License-Identifier: Apache-2.0
"""Views: read-only, without a copy, never dangling, and never taken for good once their lease ended."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from conftest import Node

import cistern

KEYS = [bytes([i]) * 32 for i in range(4)]
DATA = [bytes([i]) * 100_000 for i in range(3)]


@pytest.fixture
def filled(store: cistern.Store, namespace: cistern.Namespace) -> cistern.Namespace:
    assert store.write(namespace, KEYS[:3], DATA).outcomes == b"\0\0\0"
    return namespace


def test_views_are_the_blocks_read_only_and_none_for_a_miss(store: cistern.Store, filled: cistern.Namespace) -> None:
    with store.acquire(filled, KEYS, lease_us=60_000_000) as lease:
        assert len(lease) == 4 and lease.good
        assert lease[3] is None
        for view, data in zip(lease, DATA, strict=False):
            assert view is not None and view.nbytes == len(data)
            memory = view.memoryview()
            assert memory == data and memory.readonly
            with pytest.raises(TypeError):
                memory[0] = 1


def test_nothing_there_is_a_lease_of_nothing(store: cistern.Store, namespace: cistern.Namespace) -> None:
    with store.acquire(namespace, KEYS) as lease:
        assert list(lease) == [None] * 4
        assert lease.good


def test_after_release_every_use_says_lapsed(store: cistern.Store, filled: cistern.Namespace) -> None:
    np = pytest.importorskip("numpy")
    lease = store.acquire(filled, KEYS[:3], lease_us=60_000_000)
    view = lease[0]
    assert view is not None
    memory, matrix = view.memoryview(), view.numpy("uint16", (1000, 50))
    part = matrix[5:]
    assert int(matrix.sum()) == 0 and type(matrix + 1) is np.ndarray
    lease.release()
    lease.release()
    for use in (
        lambda: view.memoryview(), lambda: view.tobytes(), lambda: view.numpy(), lambda: matrix[0],
        lambda: part[0], lambda: matrix + 1, lambda: matrix.sum(), lambda: np.concatenate([matrix]),
        lambda: matrix.tobytes(), lambda: matrix.copy(), lambda: matrix.tolist(), lease.check,
    ):  # fmt: skip
        with pytest.raises(cistern.LeaseLapsed):
            use()
    with pytest.raises(ValueError):
        memory[0]
    assert not lease.good


def test_memory_under_a_view_stays_mapped_after_everything_is_gone(
    store: cistern.Store, filled: cistern.Namespace
) -> None:
    np = pytest.importorskip("numpy")
    lease = store.acquire(filled, KEYS[:3], lease_us=60_000_000)
    assert lease[1] is not None
    plain = lease[1].numpy().view(np.ndarray)
    lease.release()
    del lease
    store.close()
    gc.collect()
    assert len(plain) == 100_000 and int(plain.sum()) >= 0


def test_a_drop_ends_the_views_of_what_it_drops(store: cistern.Store, filled: cistern.Namespace) -> None:
    lease = store.acquire(filled, KEYS[:3], lease_us=60_000_000)
    assert store.drop(filled, [KEYS[1]]) == 2
    assert not lease.good
    with pytest.raises(cistern.LeaseLapsed):
        memoryview(lease[2]._native)  # type: ignore[union-attr]
    with pytest.raises(cistern.LeaseLapsed), lease:
        pass


def test_a_with_block_that_raised_raises_that(store: cistern.Store, filled: cistern.Namespace) -> None:
    with pytest.raises(KeyError), store.acquire(filled, KEYS[:1], lease_us=60_000_000) as lease:
        store.drop(filled, KEYS[:1])
        raise KeyError
    assert not lease.good


def test_a_lease_lapses_by_its_deadline(store: cistern.Store, filled: cistern.Namespace) -> None:
    lease = store.acquire(filled, KEYS[:1], lease_us=1)
    while lease.good:
        store.status()
    with pytest.raises(cistern.LeaseLapsed):
        lease.check()


def test_views_outlive_their_node_and_store(node: Node) -> None:
    store = node.connect()
    namespace = store.attach(cistern.NamespaceSpec({"model": "test"}))
    store.write(namespace, KEYS[:3], DATA)
    lease = store.acquire(namespace, KEYS[:3], lease_us=60_000_000)
    view = lease[2]
    assert view is not None
    memory = view.memoryview()
    node.kill()
    store.close()
    assert bytes(memory[:10]) == DATA[2][:10] or not lease.good
    del lease, view
    gc.collect()
    assert len(bytes(memory)) == len(DATA[2])


def test_a_view_has_whole_items_only(store: cistern.Store, filled: cistern.Namespace) -> None:
    pytest.importorskip("numpy")
    with store.acquire(filled, KEYS[:1], lease_us=60_000_000) as lease:
        view = lease[0]
        assert view is not None
        with pytest.raises(cistern.Invalid, match="100000 bytes as"):
            view.numpy("V7")
        with pytest.raises(cistern.Invalid, match=r"in shape \(3, 3\)"):
            view.numpy("uint8", (3, 3))


def test_a_match_that_holds_keeps_what_matched(store: cistern.Store, filled: cistern.Namespace) -> None:
    found = store.match(filled, KEYS, hold_us=60_000_000)
    assert found.blocks == 3 and found.hold is not None and found.hold.good
    assert store.status()["now"]["leases"] == 1
    found.hold.release()
    while store.status()["now"]["leases"] > 0:
        pass
    assert store.match(filled, KEYS[3:], hold_us=1000).hold is None


def test_each_way_of_computing_asks_the_leases_of_all_arrays_and_gives_a_plain_one(
    store: cistern.Store, filled: cistern.Namespace
) -> None:
    """What an engine does with a block first, a change of its dtype, asked none; its answer was refused later."""
    np = pytest.importorskip("numpy")
    former, lease = (store.acquire(filled, KEYS[1:2], lease_us=60_000_000) for _ in range(2))
    assert former[0] is not None and lease[0] is not None
    lapsed, array = former[0].numpy("uint16", (1000, 50)), lease[0].numpy("uint16", (1000, 50))
    uses: list[Callable[[Any], Any]] = [
        lambda one: one.astype("float32"), lambda one: one.argmax(), lambda one: one.argsort(), lambda one: one.item(0),
        lambda one: one.take([0]), lambda one: one.dot(np.ones(50)), lambda one: one.flatten(), lambda one: one.dumps(),
        lambda one: one.nonzero(), lambda one: one.repeat(2), lambda one: one.round(), lambda one: one.byteswap(),
        lambda one: one.compress([True]), lambda one: one.T.ravel(), lambda one: copy.copy(one), pickle.dumps,
        lambda one: copy.deepcopy(one), lambda one: array + one, lambda one: np.concatenate([array, one]),
        lambda one: np.linalg.svd(one[:2, :2]), lambda one: np.clip(one, 0, 1, dtype="uint16"),
    ]  # fmt: skip
    for use in uses:
        made = use(lapsed)
        assert not any(isinstance(one, type(lapsed)) for one in (made if isinstance(made, tuple) else (made,)))
    own = lapsed.astype("float32")
    views = [np.transpose(lapsed), lapsed.astype("uint16", copy=False), lapsed.reshape(-1, 2), *np.split(lapsed, 2)]
    former.release()
    assert float(own[0, 0]) == 257.0 and array[0, 0] == 257
    for use in uses:
        with pytest.raises(cistern.LeaseLapsed):
            use(lapsed)
    for view in views:
        with pytest.raises(cistern.LeaseLapsed):
            view[0]


def test_a_number_and_items_one_by_one_ask_the_lease(store: cistern.Store, filled: cistern.Namespace) -> None:
    pytest.importorskip("numpy")
    lease = store.acquire(filled, KEYS[1:2], lease_us=60_000_000)
    assert lease[0] is not None
    one = lease[0].numpy("uint16")[:1].reshape(())
    uses: list[Callable[[Any], Any]] = [bool, complex, float, int, operator.index, lambda one: list(one.flat)]
    assert [use(one) for use in uses] == [True, 257, 257, 257, 257, [257]]
    lease.release()
    for use in uses:
        with pytest.raises(cistern.LeaseLapsed):
            use(one)
