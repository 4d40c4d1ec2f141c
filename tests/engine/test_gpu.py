# SPDX-License-Identifier: Apache-2.0
"""The staged mover on a real GPU: its own streams and pinned memory beside an engine's stream. Needs torch with CUDA,
and no vLLM."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no GPU", allow_module_level=True)

from harness import Node  # noqa: E402
from test_devices import drain, in_namespace  # noqa: E402

from cistern import Store, new_put_id  # noqa: E402
from cistern.engine.layout import Layout, group_layout  # noqa: E402
from cistern.engine.mover import Batch, HostMover, Mover  # noqa: E402
from cistern.engine.staging import StagedMover, Staging, TorchStreams  # noqa: E402

LAYERS, PAGES, PAGE = 8, 200, 16 * 1024
"""Bytes of a page in one layer, in 16 bit."""
BUSY_CYCLES = 1_000_000_000
"""Of the GPU: more than half a second, in which the host does all that it is asked for meanwhile."""
LIMIT_US = 60_000_000


def make(seed: int, device: str) -> tuple[list[Any], Layout]:
    dice = torch.Generator().manual_seed(seed)
    caches = [torch.randn(PAGES, PAGE // 2, generator=dice).to(torch.bfloat16).to(device) for _ in range(LAYERS)]
    names = [f"layer{i}" for i in range(LAYERS)]
    return caches, group_layout(names, dict(zip(names, caches, strict=True)), PAGES, None)


def mover(device: str, layout: Layout, store: Store, slots: int = 16) -> Mover:
    if device == "cpu":
        return HostMover(store, [layout], 0)
    return StagedMover(store, Staging([layout], TorchStreams(device), slots * layout.page_bytes), 0)


def keys_of(count: int) -> list[bytes]:
    return [i.to_bytes(32, "big") for i in range(1, count + 1)]


def save(by: Mover, namespace: Any, pages: list[int]) -> list[int]:
    """Asks, and does not wait. The puts, for publish()."""
    keys, puts = keys_of(len(pages)), [new_put_id() for _ in pages]
    by.save(Batch(namespace, 0, 0, keys, pages, LIMIT_US, parents=[None, *keys[:-1]], put_ids=puts))
    return puts


def publish(by: Mover, store: Store, namespace: Any, puts: list[int]) -> None:
    (done,) = drain(by)
    assert not any(done.outcomes), done
    assert store.publish(namespace, puts) == len(puts)


def load(by: Mover, namespace: Any, pages: list[int]) -> None:
    by.load(Batch(namespace, 0, 0, keys_of(len(pages)), pages, LIMIT_US))


def bits(tensor: Any) -> Any:
    return tensor.view(torch.int16).cpu()


@pytest.mark.parametrize("saver", ["cpu", "cuda"])
@pytest.mark.parametrize("loader", ["cpu", "cuda"])
def test_what_was_saved_is_loaded_exactly(node: Node, saver: str, loader: str) -> None:
    """In pieces, since staging has room for a few: pages backwards, into pages that are elsewhere."""
    (source, from_layout), (target, to_layout) = make(1, saver), make(2, loader)
    before = [bits(cache) for cache in target]
    from_pages, to_pages = list(range(PAGES - 1, PAGES - 101, -1)), list(range(50, 150))
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, saver + loader, from_layout)
        out, back = mover(saver, from_layout, store), mover(loader, to_layout, store)
        publish(out, store, namespace, save(out, namespace, from_pages))
        load(back, namespace, to_pages)
        (done,) = drain(back)
        assert not any(done.outcomes), done
        for cache, other, old in zip(target, source, before, strict=True):
            assert torch.equal(bits(cache)[to_pages], bits(other)[from_pages])
            assert torch.equal(bits(cache)[:50], old[:50]) and torch.equal(bits(cache)[150:], old[150:])
        out.close()
        back.close()


def test_save_has_what_the_engine_had_queued_before_it(node: Node) -> None:
    caches, layout = make(1, "cuda")
    new = [torch.randn_like(cache) for cache in caches]
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "computed", layout)
        out = mover("cuda", layout, store)
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY_CYCLES)
        for cache, one in zip(caches, new, strict=True):
            cache.copy_(one)
        computed = torch.cuda.Event()
        computed.record()
        pages = list(range(1, 65))
        puts = save(out, namespace, pages)
        for _ in range(100):
            assert not out.poll()
        # Asking made nobody wait: the step is still computed.
        assert not computed.query()
        publish(out, store, namespace, puts)
        target, to_layout = make(3, "cpu")
        back = mover("cpu", to_layout, store)
        load(back, namespace, pages)
        (done,) = drain(back)
        assert not any(done.outcomes), done
        assert all(torch.equal(bits(one)[pages], bits(other)[pages]) for one, other in zip(target, new, strict=True))
        out.close()
        back.close()


def test_load_waits_for_the_step_that_reads_its_pages(node: Node) -> None:
    (source, from_layout), (target, to_layout) = make(1, "cpu"), make(2, "cuda")
    old = [bits(cache) for cache in target]
    pages = list(range(1, 65))
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "read before", from_layout)
        out, back = mover("cpu", from_layout, store), mover("cuda", to_layout, store)
        publish(out, store, namespace, save(out, namespace, pages))
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY_CYCLES)
        seen = [cache.clone() for cache in target]
        computed = torch.cuda.Event()
        computed.record()
        load(back, namespace, pages)
        assert not computed.query()
        (done,) = drain(back)
        assert not any(done.outcomes), done
        # What the engine queues from now on sees all of it.
        after = [cache.clone() for cache in target]
        for was, now, one, other in zip(seen, after, old, source, strict=True):
            assert torch.equal(bits(was), one)
            assert torch.equal(bits(now)[pages], bits(other)[pages]) and torch.equal(bits(now)[65:], one[65:])
        out.close()
        back.close()


def test_many_at_once_beside_kernels_that_write_other_pages(node: Node) -> None:
    """Loads and saves side by side, while the engine computes pages that neither has."""
    caches, layout = make(1, "cuda")
    kept = [bits(cache) for cache in caches]
    with Store.connect(node.socket) as store:
        namespace = in_namespace(store, "side by side", layout)
        out, back = mover("cuda", layout, store), mover("cuda", layout, store)
        pages = list(range(1, 41))
        publish(out, store, namespace, save(out, namespace, pages))
        for turn in range(20):
            for cache in caches:
                cache[pages] = 0
            load(back, namespace, pages)
            second = [new_put_id() for _ in range(40)]
            keys = [bytes([turn + 1]) + i.to_bytes(31, "big") for i in range(40)]
            out.save(Batch(namespace, 0, 0, keys, range(41, 81), LIMIT_US, parents=[None, *keys[:-1]], put_ids=second))
            for cache in caches:
                cache[120:].add_(1)
            (loaded,), (saved,) = drain(back), drain(out)
            assert not any(loaded.outcomes) and not any(saved.outcomes), (loaded, saved)
            assert store.publish(namespace, second) == 40
            for cache, one in zip(caches, kept, strict=True):
                assert torch.equal(bits(cache)[:120], one[:120])
        out.close()
        back.close()
