# SPDX-License-Identifier: Apache-2.0
"""Both page movers move the same bytes. The one for devices runs here on host memory, with streams that
are as late as a test likes: what it does to a device's memory it does through torch alone."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness import Node  # noqa: E402
from test_rank import FACTS  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

import cistern.engine.rank as rank_module  # noqa: E402
from cistern import Code, Group, NamespaceSpec, Store, Transfers, new_put_id  # noqa: E402
from cistern.engine import options, staging  # noqa: E402
from cistern.engine.devices import check_device  # noqa: E402
from cistern.engine.identity import rank_fields  # noqa: E402
from cistern.engine.layout import Fragment, Layout, group_layout  # noqa: E402
from cistern.engine.mover import Batch, HostMover, Mover, UnknownDevice  # noqa: E402
from cistern.engine.rank import Rank  # noqa: E402
from cistern.engine.staging import Kind, NoStaging, StagedMover, Staging  # noqa: E402
from cistern.vllm import versions  # noqa: E402

LAYERS, PAGES, CONTENT = 3, 9, 4096


class LateStreams:
    """Queued work is done when somebody asks how far it is, not before."""

    def __init__(self) -> None:
        self.queued: list[Callable[[], object]] = []
        self.done = 0

    def staging(self, size_bytes: int) -> Any:
        return torch.zeros(size_bytes, dtype=torch.uint8)

    def scratch(self, size_bytes: int) -> Any:
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
        return StagedMover(store, Staging([layout], LateStreams(), 4 * layout.page_bytes), 0)

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
        out = StagedMover(store, Staging([from_layout], LateStreams(), slots * from_layout.page_bytes), 0)
        saves = [
            out.save(Batch(namespace, 0, 0, keys[a:b], range(a + 1, b + 1), 5_000_000, 0, parents[a:b], puts[a:b]))
            for a, b in ((0, 5), (5, 8))
        ]
        done = drain(out)
        assert sorted(one.id for one in done) == saves and not any(any(one.outcomes) for one in done), done
        assert store.publish(namespace, puts) == 8
        back = StagedMover(store, Staging([to_layout], LateStreams(), slots * to_layout.page_bytes), 0)
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


def isa_told(monkeypatch: pytest.MonkeyPatch, device: str, cpu: str = "") -> str:
    """What a rank whose pages lie on such a device says of it."""
    layout = SimpleNamespace(page_bytes=64, text="x", tensors=[SimpleNamespace(device=SimpleNamespace(type=device))])
    with monkeypatch.context() as patched:
        patched.setattr(rank_module, "group_layout", lambda *given: layout)
        patched.setattr(rank_module, "take_staging", lambda *given: None)
        rank = Rank(options.Options(), FACTS, 0)
        rank.register({}, cpu=cpu)
    report = rank.report()
    rank.close()
    assert report is not None and report.facts is not None and report.facts.device == device
    return report.facts.isa


def test_gpus_with_other_kernels_split_and_alike_ones_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the one quantizes another one multiplies whole, and a byte of MI300's fp8 is twice the number on MI350."""

    def told(capability: tuple[int, int]) -> str:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: capability)
        return isa_told(monkeypatch, "cuda")

    assert [told((8, 0)), told((9, 0)), told((12, 1))] == ["sm_80", "sm_90", "sm_121"]
    monkeypatch.setattr(torch.version, "hip", "7.0")
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def amd(architecture: str) -> str:
        about = SimpleNamespace(gcnArchName=architecture)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *given: about)
        return isa_told(monkeypatch, "cuda")

    assert amd("gfx942:sramecc+:xnack-") == amd("gfx942") == "gfx942" != amd("gfx950:sramecc+:xnack-")

    def intel(**about: Any) -> str:
        monkeypatch.setattr(torch.xpu, "get_device_properties", lambda *given: SimpleNamespace(**about))
        return isa_told(monkeypatch, "xpu")

    assert intel(architecture=1, name="one") == intel(architecture=1, name="other") != intel(architecture=2, name="one")
    assert intel(name="one") == "one"


def test_engine_of_two_kinds_of_gpus_split_by_which_rank_has_which() -> None:
    def told(*isa: str) -> str:
        return dict(rank_fields("cuda", isa, [["x"]] * len(isa), 1))["isa"]

    assert told("sm_90", "sm_90") == told("sm_90")
    assert told("sm_80", "sm_90") != told("sm_90", "sm_80")


def test_cpus_with_other_kernels_split(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*has: str, cpu: str = "") -> str:
        for name in ("amx_tile", "avx512_bf16"):
            monkeypatch.setattr(torch.cpu, f"_is_{name}_supported", lambda name=name: name in has)
        return isa_told(monkeypatch, "cpu", cpu)

    found = [told(), told("avx512_bf16"), told("avx512_bf16", "amx_tile"), told("amx_tile", cpu="amx_fp8")]
    assert len(set(found)) == 4
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *given: (9, 0))
    assert isa_told(monkeypatch, "cuda", "amx_fp8") == "sm_90"  # not what its host is


def test_cpus_that_vllm_quantizes_on_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = pytest.importorskip("vllm._custom_ops")
    monkeypatch.setattr(kernels, "cpu_has_amx_fp8", lambda: True, raising=False)
    assert versions.cpu_features() == "amx_fp8"
    monkeypatch.setattr(kernels, "cpu_has_amx_fp8", lambda: False)
    assert versions.cpu_features() == ""
    monkeypatch.delattr(kernels, "cpu_has_amx_fp8")
    assert versions.cpu_features() == ""


class StreamsThatTell(LateStreams):
    """Says who waited for what: which work was queued behind which event, and which thread waited."""

    def __init__(self) -> None:
        super().__init__()
        self.marks = 0
        self.behind: list[tuple[str, int]] = []
        self.waited: list[int] = []
        self.pinned: list[tuple[int, int]] = []
        self.of_device: list[tuple[int, int]] = []
        self.watch: TorchFunctionMode | None = None
        self.broken: set[str] = set()
        """Kinds of work for which the device has no memory."""

    def staging(self, size_bytes: int) -> Any:
        made = super().staging(size_bytes)
        self.pinned.append((made.data_ptr(), made.data_ptr() + size_bytes))
        return made

    def scratch(self, size_bytes: int) -> Any:
        made = super().scratch(size_bytes)
        self.of_device.append((made.data_ptr(), made.data_ptr() + size_bytes))
        return made

    def computed(self) -> int:  # type: ignore[override]
        self.marks += 1
        return self.marks

    def queue(self, kind: str, work: Callable[[], object], after: int) -> int:  # type: ignore[override]
        self.behind.append((kind, after))
        if kind in self.broken:
            raise torch.OutOfMemoryError("out of memory")
        watch = self.watch

        def watched() -> None:
            with watch or contextlib.nullcontext():
                work()

        return super().queue(kind, watched, None)

    def wait(self, event: int) -> None:
        self.waited.append(threading.get_ident())
        super().wait(event)


class WorkOf(TorchFunctionMode):
    """Collects what is copied between host and device, each with whether it has gaps, and what tensors come about."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[int, int, bool]] = []
        self.made: list[int] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.copy_:
            to, of = args[:2]
            self.copies.append((to.data_ptr(), of.data_ptr(), to.is_contiguous() and of.is_contiguous()))
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.made.append(made.data_ptr())
        return made


def within(at: int, memory: list[tuple[int, int]]) -> bool:
    return any(begin <= at < end for begin, end in memory)


def in_namespace(store: Store, name: str, *layouts: Layout) -> Any:
    groups = tuple(Group(f"g{i}", part_bytes=(one.page_bytes,)) for i, one in enumerate(layouts))
    return store.attach(NamespaceSpec({"test": name}, groups=groups))


def test_transfer_waits_for_what_the_engine_had_queued_when_it_asked(node: Node) -> None:
    _, layout = make(1)
    streams = StreamsThatTell()
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "order", layout)
        mover = StagedMover(store, Staging([layout], streams, 4 * layout.page_bytes), 0)
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


def test_loads_take_turns_on_the_threads_and_saves_keep_to_one(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread copies at a fifth of the bus's pace; but a block's parent is written before it."""
    used: list[tuple[Kind, Transfers]] = []

    def tell(kind: Kind, submit: Callable[..., int]) -> Callable[..., int]:
        def told(lane: Transfers, *given: Any) -> int:
            used.append((kind, lane))
            return submit(lane, *given)

        return told

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    monkeypatch.setattr(staging, "submit_load", tell("load", staging.submit_load))
    monkeypatch.setattr(staging, "submit_save", tell("save", staging.submit_save))
    (source, layout), streams = make(1), LateStreams()
    before = [cache.clone() for cache in source]
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "lanes", layout)
        mover = StagedMover(store, Staging([layout], streams, 4 * layout.page_bytes), 0)
        keys, puts = [bytes([i]) * 32 for i in range(1, 9)], [new_put_id() for _ in range(8)]
        mover.save(Batch(namespace, 0, 0, keys, range(1, 9), 5_000_000, 0, [None, *keys[:-1]], puts))
        assert not any(any(done.outcomes) for done in drain(mover))
        assert store.publish(namespace, puts) == 8
        for cache in source:
            cache[1:] = 0
        mover.load(Batch(namespace, 0, 0, keys, range(1, 9), 5_000_000))
        assert not any(any(done.outcomes) for done in drain(mover))
        assert all(torch.equal(cache, old) for cache, old in zip(source, before, strict=True))
        lanes = mover._lanes
        assert len(lanes) == 4 and used == [("save", lanes[0])] * 8 + [("load", one) for one in [*lanes, *lanes]]
        mover.close()
        limited = StagedMover(store, Staging([layout], streams, 4 * layout.page_bytes), 1 << 30)
        assert len(limited._lanes) == 1  # the limit is a thread's
        limited.close()


@pytest.mark.parametrize(
    ("width", "padding", "word"),
    [(8, 0, torch.int64), (8, 4, torch.int32), (6, 0, torch.int16), (7, 0, torch.uint8), (8, 1, torch.uint8)],
)
def test_rows_copied_within_the_device_by_the_longest_word(
    node: Node, width: int, padding: int, word: torch.dtype
) -> None:
    """Kernels take a number at a time: of bytes an eighth of the pace. Fragments begin where they like."""
    whole = torch.randint(0, 256, (PAGES, 3 * width + padding), dtype=torch.uint8)
    cut = [whole[:, begin : begin + size] for begin, size in ((0, width), (width, 2 * width))]
    fragments = tuple(Fragment(one.data_ptr(), whole.shape[1], one.shape[1]) for one in cut)
    layout = Layout(fragments, ((whole.data_ptr(), whole.nbytes),), PAGES, "cut", (whole,))
    before = whole.clone()
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, f"words {width} {padding}", layout)
        place = Staging([layout], LateStreams(), 4 * layout.page_bytes)
        assert place._words == [word]
        mover = StagedMover(store, place, 0)
        keys, puts = [bytes([i]) * 32 for i in range(1, 4)], [new_put_id() for _ in range(3)]
        mover.save(Batch(namespace, 0, 0, keys, [7, 2, 5], 5_000_000, 0, [None, *keys[:2]], puts))
        assert not any(any(done.outcomes) for done in drain(mover))
        assert store.publish(namespace, puts) == 3
        whole[:, : 3 * width] = 0
        mover.load(Batch(namespace, 0, 0, keys, [7, 2, 5], 5_000_000))
        assert not any(any(done.outcomes) for done in drain(mover))
        assert torch.equal(whole[[7, 2, 5]], before[[7, 2, 5]]) and not whole[[1, 3, 4, 6], : 3 * width].any()
        mover.close()


def test_transfer_moves_on_without_the_engine(node: Node) -> None:
    """Nobody polls: the block is in the store all the same."""
    _, layout = make(1)
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "beside", layout)
        mover = StagedMover(store, Staging([layout], LateStreams(), 4 * layout.page_bytes), 0)
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
        mover = StagedMover(store, Staging([large, small], streams, 8 * large.page_bytes), 0)
        keys, puts = [bytes([i]) * 32 for i in range(1, 3)], [new_put_id() for _ in range(4)]
        work = streams.watch = WorkOf()
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
        assert work.copies
        for to, of, whole in work.copies:
            assert whole
            assert sorted((within(to, streams.pinned), within(of, streams.pinned))) == [False, True]
            assert sorted((within(to, streams.of_device), within(of, streams.of_device))) == [False, True]
        # Nothing is asked of the device that was not taken at the start.
        pages = [region for layout in (large, small) for region in layout.regions]
        known = streams.pinned + streams.of_device + [(begin, begin + size) for begin, size in pages]
        assert work.made and all(within(at, known) for at in work.made)
        assert len(streams.of_device) == 4
        mover.close()
    del one


def test_device_without_memory_for_staging_is_refused_when_pages_are_registered() -> None:
    class Full(LateStreams):
        def scratch(self, size_bytes: int) -> Any:
            raise torch.OutOfMemoryError(f"tried to allocate {size_bytes} bytes")

    _, layout = make(1)
    with pytest.raises(NoStaging, match=r"of the device\): tried to allocate"):
        Staging([layout], Full())


def test_movers_of_two_sessions_share_staging_and_one_that_closes_gives_its_part_back(node: Node) -> None:
    class Held(LateStreams):
        held = True

        def reached(self, event: int) -> bool:
            return not self.held and super().reached(event)

        def wait(self, event: int) -> None:
            while not super().reached(event):
                pass

    (source, layout), streams = make(1), Held()
    shared = Staging([layout], streams, 4 * layout.page_bytes)
    keys = [bytes([i]) * 32 for i in range(1, 9)]
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "two sessions", layout)

        def save(mover: StagedMover) -> None:
            puts = [new_put_id() for _ in keys]
            mover.save(Batch(namespace, 0, 0, keys, range(1, 9), 60_000_000, 0, [None, *keys[:-1]], puts))

        former, later = StagedMover(store, shared, 0), StagedMover(store, shared, 0)
        save(former)
        while len(former._slots) < 4:  # all that there are
            os.sched_yield()
        save(later)
        former.close()
        assert all(all(done.outcomes) for done in former.poll())
        streams.held = False
        (done,) = drain(later)
        assert not any(done.outcomes), done
        later.close()
    del source


@pytest.mark.parametrize("kind", ["save", "load"])
def test_device_without_memory_fails_the_transfer_alone(node: Node, kind: str) -> None:
    _, layout = make(1)
    streams = StreamsThatTell()
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, f"no memory {kind}", layout)
        mover = StagedMover(store, Staging([layout], streams, 4 * layout.page_bytes), 0)
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
        mover = StagedMover(store, Staging([layout], Failing(), 4 * layout.page_bytes), 0)
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
        mover = StagedMover(store, Staging([layout], streams, 4 * layout.page_bytes), 0)
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
