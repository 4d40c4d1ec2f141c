# SPDX-License-Identifier: Apache-2.0
"""Pages of every layout that vLLM has, on synthetic tensors: what a save would gather of a page is exactly the bytes
that belong to it, and a scatter of them writes exactly those."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import pytest

torch = pytest.importorskip("torch")

from cistern.engine.layout import Layout, UnknownLayout, group_layout  # noqa: E402

L, B, H, N, C = 3, 7, 2, 4, 5  # layers, blocks, heads, tokens of a block, content of a token


def gather(layout: Layout, page: int) -> bytes:
    return b"".join(ctypes.string_at(one.address + page * one.stride, one.bytes) for one in layout.fragments)


def scatter(layout: Layout, page: int, body: bytes) -> None:
    at = 0
    for one in layout.fragments:
        ctypes.memmove(one.address + page * one.stride, body[at : at + one.bytes], one.bytes)
        at += one.bytes


def layers(order: str, blocks: int = B) -> list[torch.Tensor]:
    """One logical [B, H, N, C] view a layer, of one buffer whose physical order of axes is `order`."""
    sizes = {"L": L, "B": blocks, "H": H, "N": N, "C": C}
    whole = torch.arange(L * blocks * H * N * C, dtype=torch.float32).view([sizes[axis] for axis in order])
    logical = whole.permute([order.index(axis) for axis in "LBHNC"])
    return [logical[layer] for layer in range(L)]


def check_pages(layout: Layout, caches: Sequence[torch.Tensor], of_page: list[list[torch.Tensor]]) -> None:
    """`of_page[p]`: views of exactly what page p is. Every byte of it is in the page's body and no other's, and
    writing the body elsewhere moves all of it."""
    for page, views in enumerate(of_page):
        body = gather(layout, page)
        want = sorted(float(value) for view in views for value in view.flatten())
        assert sorted(torch.frombuffer(bytearray(body), dtype=views[0].dtype).float().tolist()) == want
        assert len(body) == layout.page_bytes
    first, last = gather(layout, 0), gather(layout, len(of_page) - 1)
    before = [view.clone() for views in of_page[1:-1] for view in views]
    moved = [view.clone() for view in of_page[0]]
    scatter(layout, len(of_page) - 1, first)
    assert gather(layout, len(of_page) - 1) == first and first != last
    for view, want_view in zip(of_page[-1], moved, strict=True):
        assert torch.equal(view, want_view)
    for view, want_view in zip([v for views in of_page[1:-1] for v in views], before, strict=True):
        assert torch.equal(view, want_view)


@pytest.mark.parametrize(
    ("order", "fragments"), [("LBHNC", L), ("LBNHC", L), ("LHBNC", L * H), ("BLHNC", 1), ("BLNHC", 1)]
)
def test_each_order_of_axes(order: str, fragments: int) -> None:
    caches = layers(order)
    names = [f"layer{i}" for i in range(L)]
    layout = group_layout(names, dict(zip(names, caches, strict=True)), B, L * H * N * C * 4)
    assert len(layout.fragments) == fragments
    check_pages(layout, caches, [[cache[b] for cache in caches] for b in range(B)])


@pytest.mark.parametrize("order", ["LBHNC", "LBNHC", "LHBNC", "BLHNC"])
def test_page_count_not_part_of_the_text(order: str) -> None:
    names = [f"layer{i}" for i in range(L)]
    few, many = (
        group_layout(names, dict(zip(names, layers(order, blocks), strict=True)), blocks, None) for blocks in (B, 3 * B)
    )
    assert few.text == many.text


def test_other_axis_order_other_text() -> None:
    names = [f"layer{i}" for i in range(L)]
    texts = {
        group_layout(names, dict(zip(names, layers(order), strict=True)), B, None).text
        for order in ("LBHNC", "LBNHC", "LHBNC")
    }
    assert len(texts) == 3


def test_k_and_v_apart() -> None:
    cache = torch.arange(2 * B * N * H * C, dtype=torch.float32).view(2, B, N, H, C)
    layout = group_layout(["a"], {"a": cache}, B, 2 * N * H * C * 4)
    assert len(layout.fragments) == 2
    check_pages(layout, [cache], [[cache[0, b], cache[1, b]] for b in range(B)])


def test_mla() -> None:
    caches = [torch.arange(B * N * 9, dtype=torch.float32).view(B, N, 9) + 10000 * i for i in range(L)]
    names = [f"layer{i}" for i in range(L)]
    layout = group_layout(names, dict(zip(names, caches, strict=True)), B, L * N * 9 * 4)
    check_pages(layout, caches, [[cache[b] for cache in caches] for b in range(B)])


@pytest.mark.parametrize("kernel", [2, 4])
def test_kernel_blocks(kernel: int) -> None:
    cache = torch.arange(B * kernel * H * N * C, dtype=torch.float32).view(B * kernel, H, N, C)
    layout = group_layout(["a"], {"a": cache}, B, kernel * H * N * C * 4)
    check_pages(layout, [cache], [[cache[b * kernel + i] for i in range(kernel)] for b in range(B)])


def test_kernel_blocks_of_k_and_v_apart() -> None:
    cache = torch.arange(2 * B * 2 * N * C, dtype=torch.float32).view(2, B * 2, N, C)
    layout = group_layout(["a"], {"a": cache}, B, None)
    check_pages(layout, [cache], [[cache[kv, 2 * b + i] for kv in (0, 1) for i in (0, 1)] for b in range(B)])


def test_padded_pages_without_their_padding() -> None:
    page = H * N * C
    raw = torch.arange(B * (page + 6), dtype=torch.float32)
    cache = torch.as_strided(raw, (B, H, N, C), (page + 6, N * C, C, 1))
    layout = group_layout(["a"], {"a": cache}, B, page * 4)
    assert layout.page_bytes == page * 4
    check_pages(layout, [cache], [[cache[b]] for b in range(B)])
    assert raw[page : page + 6].tolist() == [float(page + i) for i in range(6)]
    with pytest.raises(UnknownLayout, match="the engine says"):
        group_layout(["a"], {"a": cache}, B, (page + 6) * 4)


def test_packed_layers_of_different_sizes_in_one_block() -> None:
    sizes = [5, 9, 2]
    raw = torch.arange(B * sum(sizes), dtype=torch.float32).view(B, sum(sizes))
    caches, at = [], 0
    for size in sizes:
        caches.append(raw[:, at : at + size])
        at += size
    names = [f"layer{i}" for i in range(3)]
    layout = group_layout(names, dict(zip(names, caches, strict=True)), B, sum(sizes) * 4)
    assert len(layout.fragments) == 1
    check_pages(layout, caches, [[cache[b] for cache in caches] for b in range(B)])


def test_groups_over_the_same_bytes_each_their_own() -> None:
    raw = torch.arange(B * H * N * C, dtype=torch.float32)
    one, other = raw.view(B, H, N, C), raw.view(B, N, H, C)
    first = group_layout(["a"], {"a": one}, B, None)
    second = group_layout(["b"], {"b": other}, B, None)
    assert first.fragments == second.fragments and first.text != second.text


def test_layer_reading_anothers_kv_counted_once() -> None:
    cache = torch.arange(B * H * N * C, dtype=torch.float32).view(B, H, N, C)
    layout = group_layout(["a", "b"], {"a": cache, "b": cache}, B, None)
    assert layout.page_bytes == H * N * C * 4


def test_inline_scales() -> None:
    content, scale = 16, 4
    raw = (torch.arange(B * H * N * (content + scale)) % 251).to(torch.uint8).view(B, H, N, content + scale)
    layout = group_layout(["a"], {"a": raw}, B, H * N * (content + scale))
    check_pages(layout, [raw], [[raw[b]] for b in range(B)])


def test_scales_in_a_tensor_of_their_own() -> None:
    cache = torch.arange(B * H * N * C, dtype=torch.float32).view(B, H, N, C)
    scales = torch.arange(B * H, dtype=torch.float32).view(B, H) + 9000
    layout = group_layout(["a"], {"a": [cache, scales]}, B, None)
    check_pages(layout, [cache, scales], [[cache[b], scales[b]] for b in range(B)])


@pytest.mark.parametrize(
    ("tensor", "why"),
    [
        (torch.zeros(5, 6), "does not say"),  # neither dimension counts 7 blocks
        (torch.zeros(2, 14, 3).as_strided((7, 4), (2, 1)), "overlap|every"),  # pages share bytes
        (torch.zeros(1).expand(7, 4), "repeat"),
        (torch.zeros(100).as_strided((7, 3, 3), (9, 2, 1)), "overlaps itself"),
        ("no tensor", "neither"),
    ],
)
def test_unknown_tensor_refused(tensor: object, why: str) -> None:
    with pytest.raises(UnknownLayout, match=why):
        group_layout(["a"], {"a": tensor}, 7, None)  # type: ignore[dict-item]


@pytest.mark.parametrize("kernel_blocks", [2, 4])
def test_too_few_pages_to_tell_k_and_v_from_blocks(kernel_blocks: int) -> None:
    with pytest.raises(UnknownLayout, match="does not say"):
        group_layout(["a"], {"a": torch.zeros(2, kernel_blocks, 3)}, 2, None)


def test_partly_overlapping_layers_refused() -> None:
    raw = torch.zeros(B * 20)
    one = raw.as_strided((B, 12), (20, 1))
    other = raw.as_strided((B, 12), (20, 1), 8)
    with pytest.raises(UnknownLayout, match="overlap"):
        group_layout(["a", "b"], {"a": one, "b": other}, B, None)
