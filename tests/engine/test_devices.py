# SPDX-License-Identifier: Apache-2.0
"""Both page movers move the same bytes. The one for devices runs here on host memory, with streams that
are as late as a test likes: what it does to a device's memory it does through torch alone."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness import Node  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from cistern import Code, Group, NamespaceSpec, Store, new_put_id  # noqa: E402
from cistern.engine.devices import check_device  # noqa: E402
from cistern.engine.layout import Layout, group_layout  # noqa: E402
from cistern.engine.mover import Batch, HostMover, Mover, UnknownDevice  # noqa: E402
from cistern.engine.staging import StagedMover  # noqa: E402

LAYERS, PAGES, CONTENT = 3, 9, 4096


class LateStreams:
    """Queued work is done when somebody asks how far it is, not before."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], object]] = []
        self.done = 0

    def staging(self, size_bytes: int) -> Any:
        return torch.zeros(size_bytes, dtype=torch.uint8)

    def computed(self) -> None:
        return None

    def queue(self, kind: str, work: Callable[[], object], after: None) -> int:
        self.queued.append(work)
        return len(self.queued)

    def reached(self, event: int) -> bool:
        if self.done < len(self.queued):
            self.queued[self.done]()
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


class StreamsThatTell(LateStreams):
    """Says who waited for what: which work was queued behind which event, and which thread waited."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = 0
        self.behind: list[tuple[str, int]] = []
        self.waited: list[int] = []
        self.pinned: list[tuple[int, int]] = []
        self.copies: CopiesOf | None = None
        self.broken: set[str] = set()
        """Kinds of work for which the device has no memory."""

    def staging(self, size_bytes: int) -> Any:
        made = super().staging(size_bytes)
        self.pinned.append((made.data_ptr(), made.data_ptr() + size_bytes))
        return made

    def computed(self) -> int:  # type: ignore[override]
        self.marks += 1
        return self.marks

    def queue(self, kind: str, work: Callable[[], object], after: int) -> int:  # type: ignore[override]
        self.behind.append((kind, after))
        if kind in self.broken:
            raise torch.OutOfMemoryError("out of memory")
        copies = self.copies

        def watched() -> None:
            with copies or contextlib.nullcontext():
                work()

        return super().queue(kind, watched, None)

    def wait(self, event: int) -> None:
        self.waited.append(threading.get_ident())
        super().wait(event)


class CopiesOf(TorchFunctionMode):
    """Collects the tensors that are copied to or from, each with whether it has gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[int, bool]] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.Tensor.to, torch.Tensor.copy_):
            self.seen.append((args[0].data_ptr(), args[0].is_contiguous()))
        return function(*args, **(kwargs or {}))


def in_namespace(store: Store, name: str, *layouts: Layout) -> Any:
    groups = tuple(Group(f"g{i}", part_bytes=(one.page_bytes,)) for i, one in enumerate(layouts))
    return store.attach(NamespaceSpec({"test": name}, groups=groups))


def test_transfer_waits_for_what_the_engine_had_queued_when_it_asked(node: Node) -> None:
    _, layout = make(1)
    streams = StreamsThatTell()
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "order", layout)
        mover = StagedMover(store, [layout], streams, 0, staging_bytes=4 * layout.page_bytes)
        keys, puts = [bytes([i]) * 32 for i in range(1, 9)], [new_put_id() for _ in range(8)]
        mover.save(Batch(namespace, 0, 0, keys, range(1, 9), 5_000_000, 0, [None, *keys[:-1]], puts))
        asked = streams.marks
        drain(mover)
        assert streams.marks == asked == 1  # not what it queues while the pieces come to their turns
        assert streams.behind == [("save", 1)] * 8
        store.publish(namespace, puts)
        mover.load(Batch(namespace, 0, 0, keys, range(1, 9), 5_000_000))
        drain(mover)
        assert streams.behind[8:] == [("load", 2)] * 8
        assert not streams.waited
        mover.close()


def test_transfer_moves_on_without_the_engine(node: Node) -> None:
    """Nobody polls: the block is in the store all the same."""
    _, layout = make(1)
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "beside", layout)
        mover = StagedMover(store, [layout], LateStreams(), 0, staging_bytes=4 * layout.page_bytes)
        put = new_put_id()
        mover.save(Batch(namespace, 0, 0, [bytes(32)], [3], 5_000_000, 0, [None], [put]))
        until = time.monotonic() + 60
        while store.status()["now"]["pending"] == 0:
            assert time.monotonic() < until, "nothing moves while the engine does not step"
        drain(mover)
        mover.close()


def test_copies_of_unequal_groups_without_gaps_and_pinned(node: Node) -> None:
    """A copy between device and host with a gap, or with memory that is not pinned, makes the host wait."""
    (one, large), names = make(1), ["short"]
    small_cache = torch.randn(PAGES, 2, CONTENT // 4)
    small = group_layout(names, {"short": small_cache}, PAGES, None)
    assert small.page_bytes < large.page_bytes
    streams = StreamsThatTell()
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "unequal", large, small)
        mover = StagedMover(store, [large, small], streams, 0, staging_bytes=8 * large.page_bytes)
        keys, puts = [bytes([i]) * 32 for i in range(1, 3)], [new_put_id() for _ in range(4)]
        copies = streams.copies = CopiesOf()
        before = small_cache.clone()
        for group in (0, 1):
            mover.save(
                Batch(namespace, group, 0, keys, [2, 5], 5_000_000, 0, [None, keys[0]], puts[2 * group : 2 * group + 2])
            )
        assert not any(any(done.outcomes) for done in drain(mover))
        store.publish(namespace, puts)
        small_cache[[2, 5]] = 0
        mover.load(Batch(namespace, 1, 0, keys, [2, 5], 5_000_000))
        assert not any(any(done.outcomes) for done in drain(mover))
        assert torch.equal(small_cache, before)
        host = [(at, whole) for at, whole in copies.seen if any(a <= at < b for a, b in streams.pinned)]
        assert len(host) == len(copies.seen) > 0 and all(whole for _, whole in host)
        mover.close()
    del one


@pytest.mark.parametrize("kind", ["save", "load"])
def test_device_without_memory_fails_the_transfer_alone(node: Node, kind: str) -> None:
    _, layout = make(1)
    streams = StreamsThatTell()
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, f"no memory {kind}", layout)
        mover = StagedMover(store, [layout], streams, 0, staging_bytes=4 * layout.page_bytes)
        keys = [bytes([i]) * 32 for i in range(1, 5)]

        def save() -> Any:
            puts = [new_put_id() for _ in keys]
            mover.save(Batch(namespace, 0, 0, keys, range(1, 5), 5_000_000, 0, [None, *keys[:-1]], puts))
            (done,) = drain(mover)
            store.publish(namespace, puts)
            return done

        def load() -> Any:
            mover.load(Batch(namespace, 0, 0, keys, range(1, 5), 5_000_000))
            (done,) = drain(mover)
            return done

        asked = save if kind == "save" else load
        if kind == "load":
            assert not any(save().outcomes)
        streams.broken = {kind}
        failed = asked()
        assert all(failed.outcomes) and "out of memory" in failed.message
        streams.broken = set()
        assert not any(asked().outcomes)  # all of staging came back
        mover.close()


def test_device_that_fails_ends_every_transfer(node: Node) -> None:
    class Failing(LateStreams):
        def reached(self, event: int) -> bool:
            raise RuntimeError("the device is lost")

    _, layout = make(1)
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "lost", layout)
        mover = StagedMover(store, [layout], Failing(), 0, staging_bytes=4 * layout.page_bytes)
        batch = Batch(namespace, 0, 0, [bytes(32)], [3], 5_000_000, 0, [None], [new_put_id()])
        mover.save(batch)
        (done,) = drain(mover)
        assert all(done.outcomes) and "the device is lost" in done.message
        with pytest.raises(RuntimeError, match="the device is lost"):
            mover.save(batch)


def test_closed_mover_reports_everything_and_touches_no_page_any_more(node: Node) -> None:
    """Pieces that wait for staging, are on the device's way, or with the store."""
    class Still(LateStreams):
        def reached(self, event: int) -> bool:
            return False

        def wait(self, event: int) -> None:
            for work in self.queued[self.done : event]:
                work()
            self.done = max(self.done, event)

    _, layout = make(1)
    streams = Still()
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "closed", layout)
        mover = StagedMover(store, [layout], streams, 0, staging_bytes=4 * layout.page_bytes)
        keys = [bytes([i]) * 32 for i in range(1, 9)]
        puts, parents = [new_put_id() for _ in keys], [None, *keys[:-1]]
        saved = mover.save(Batch(namespace, 0, 0, keys, range(1, 9), 60_000_000, 0, parents, puts))
        loaded = mover.load(Batch(namespace, 0, 0, keys, range(1, 9), 60_000_000))
        mover.close()
        done = mover.poll()
        assert sorted(one.id for one in done) == [saved, loaded] and all(all(one.outcomes) for one in done)
        assert streams.done == len(streams.queued) and not mover.in_flight
        with pytest.raises(RuntimeError, match="closed"):
            mover.save(Batch(namespace, 0, 0, keys[:1], [1], 60_000_000, 0, [None], [new_put_id()]))
