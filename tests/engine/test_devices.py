# SPDX-License-Identifier: Apache-2.0
"""Both page movers move the same bytes. The one for devices runs here on host memory, with streams that
are as late as a test likes: what it does to a device's memory it does through torch alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness import Node  # noqa: E402

from cistern import Code, Group, NamespaceSpec, Store, new_put_id  # noqa: E402
from cistern.engine.devices import check_device  # noqa: E402
from cistern.engine.layout import Layout, group_layout  # noqa: E402
from cistern.engine.mover import Batch, HostMover, Mover, UnknownDevice  # noqa: E402
from cistern.engine.staging import StagedMover  # noqa: E402

LAYERS, PAGES, CONTENT = 3, 9, 4096


class LateStreams:
    """Queued work is done when somebody asks how far it is, not before."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], object]] = []
        self.done = 0

    def staging(self, size_bytes: int) -> Any:
        return torch.zeros(size_bytes, dtype=torch.uint8)

    def after_compute(self, work: Callable[[], object]) -> int:
        self.queue.append(work)
        return len(self.queue)

    def reached(self, event: int) -> bool:
        if self.done < len(self.queue):
            self.queue[self.done]()
            self.done += 1
        return self.done >= event

    def wait(self, event: int) -> None:
        while not self.reached(event):
            pass


def make(seed: int) -> tuple[list[Any], Layout]:
    dice = torch.Generator().manual_seed(seed)
    caches = [torch.randn(PAGES, 4, CONTENT // 4, generator=dice) for _ in range(LAYERS)]
    names = [f"layer{i}" for i in range(LAYERS)]
    return caches, group_layout(names, dict(zip(names, caches, strict=True)), PAGES, None)


def drain(mover: Mover) -> list[Any]:
    done = []
    while mover.in_flight:
        done += mover.wait(10)
    return done


@pytest.mark.parametrize("saver", ["host", "staged"])
@pytest.mark.parametrize("loader", ["host", "staged"])
def test_either_mover_loads_what_the_other_saved(node: Node, saver: str, loader: str) -> None:
    def mover(kind: str, layout: Layout, store: Store) -> Mover:
        if kind == "host":
            return HostMover(store, [layout], 0)
        return StagedMover(store, [layout], LateStreams(), 0, staging_bytes=4 * layout.page_bytes)

    (source, from_layout), (target, to_layout) = make(1), make(2)
    before = [cache.clone() for cache in target]
    with Store.connect(node.socket) as store:
        namespace = store.attach(
            NamespaceSpec({"test": saver + loader}, groups=(Group("g", part_bytes=(from_layout.page_bytes,)),))
        )
        keys, puts = [bytes([i]) * 32 for i in range(1, 4)], [new_put_id() for _ in range(3)]
        out = mover(saver, from_layout, store)
        number = out.save(Batch(namespace, 0, 0, keys, [7, 2, 5], 5_000_000, parents=[None, *keys[:2]], put_ids=puts))
        (done,) = drain(out)
        assert done.id == number and done.kind == "save" and not any(done.outcomes), done
        assert store.publish(namespace, puts) == 3
        back = mover(loader, to_layout, store)
        number = back.load(Batch(namespace, 0, 0, keys, [1, 8, 3], 5_000_000))
        (done,) = drain(back)
        assert done.id == number and not any(done.outcomes), done
        for cache, other, old in zip(target, source, before, strict=True):
            assert torch.equal(cache[[1, 8, 3]], other[[7, 2, 5]])
            assert torch.equal(cache[[0, 2, 4, 5, 6, 7]], old[[0, 2, 4, 5, 6, 7]])
        # A block that is not there: reported, and its page stays what it was.
        number = back.load(Batch(namespace, 0, 0, [keys[0], bytes(31) + b"x"], [4, 6], 5_000_000))
        (done,) = drain(back)
        assert done.id == number and done.outcomes[1] != Code.OK
        if loader == "staged":
            assert all(torch.equal(cache[6], old[6]) for cache, old in zip(target, before, strict=True))
        out.close()
        back.close()


@pytest.mark.parametrize("slots", [1, 3, 8])
def test_transfer_larger_than_staging_in_pieces(node: Node, slots: int) -> None:
    (source, from_layout), (target, to_layout) = make(1), make(2)
    with Store.connect(node.socket) as store:
        namespace = store.attach(
            NamespaceSpec({"test": f"pieces {slots}"}, groups=(Group("g", part_bytes=(from_layout.page_bytes,)),))
        )
        keys, puts = [bytes([i]) * 32 for i in range(1, 9)], [new_put_id() for _ in range(8)]
        parents = [None, *keys[:-1]]
        out = StagedMover(store, [from_layout], LateStreams(), 0, staging_bytes=slots * from_layout.page_bytes)
        saves = [
            out.save(Batch(namespace, 0, 0, keys[a:b], range(a + 1, b + 1), 5_000_000, 0, parents[a:b], puts[a:b]))
            for a, b in ((0, 5), (5, 8))
        ]
        done = drain(out)
        assert sorted(one.id for one in done) == saves and not any(any(one.outcomes) for one in done), done
        assert store.publish(namespace, puts) == 8
        back = StagedMover(store, [to_layout], LateStreams(), 0, staging_bytes=slots * to_layout.page_bytes)
        # Both at once: the second waits for room. Page 8 - i takes block i.
        loads = [
            back.load(Batch(namespace, 0, 0, keys[a:b], range(8 - a, 8 - b, -1), 5_000_000))
            for a, b in ((0, 5), (5, 8))
        ]
        done = drain(back)
        assert sorted(one.id for one in done) == loads and not any(any(one.outcomes) for one in done), done
        for cache, other in zip(target, source, strict=True):
            assert torch.equal(cache[1:].flip(0), other[1:])
        # No room until the deadline: reported as such, and nothing else.
        late = back.load(Batch(namespace, 0, 0, keys, range(1, 9), 0))
        (one,) = drain(back)
        assert one.id == late and set(one.outcomes) == {Code.TOO_LATE}, one
        out.close()
        back.close()


def test_unknown_device_refused_by_name() -> None:
    check_device("cpu")
    check_device("cuda")
    with pytest.raises(UnknownDevice, match="tpu"):
        check_device("tpu")
