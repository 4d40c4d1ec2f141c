# SPDX-License-Identifier: Apache-2.0
"""Places of an engine's pages: from KV cache tensors to a list of fragments.

A *fragment* is one contiguous run of a page's bytes, at a constant stride from page to page. The order of the
fragments is the order of the page's bytes in the store: layer after layer in the group's order, within a layer
by address. A page's content is opaque, but its bytes must mean the same on both sides: all that they depend on is
in `Layout.text`, and nothing else is (not how many pages there are, nor where they lie).

Nothing is guessed: a tensor whose pages cannot be told for sure is refused with its name and shape.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import torch

    LayerCache: TypeAlias = "torch.Tensor | Sequence[torch.Tensor]"

MAX_FRAGMENTS = 4096


class UnknownLayout(ValueError):
    """The tensors are of a kind that this connector does not know; the message names the layer."""


@dataclass(frozen=True)
class Fragment:
    address: int
    stride: int
    bytes: int


@dataclass(frozen=True)
class Layout:
    """One group's pages in this process."""

    fragments: tuple[Fragment, ...]
    regions: tuple[tuple[int, int], ...]
    """(address, bytes) of the memory of all fragments."""
    pages: int
    text: str
    """Meaning of a page's bytes: equal texts, equal meaning."""
    tensors: tuple[Any, ...]
    """Owners of the memory."""

    @property
    def page_bytes(self) -> int:
        return sum(fragment.bytes for fragment in self.fragments)


def group_layout(
    layers: Sequence[str], caches: Mapping[str, LayerCache], pages: int, page_bytes: int | None
) -> Layout:
    """The layout of one group: `layers` share a block table of `pages` engine blocks. `page_bytes`: bytes of a
    page without padding, over all layers, as the engine says; a difference is refused; None: it does not say."""
    fragments: list[Fragment] = []
    regions: list[tuple[int, int]] = []
    tensors: list[Any] = []
    words: list[str] = []
    seen: dict[tuple[Fragment, ...], str] = {}
    for layer in layers:
        if layer not in caches:
            raise UnknownLayout(f"layer {layer}: the engine registered no KV cache for it")
        mine: list[Fragment] = []
        for tensor in _tensors_of(layer, caches[layer]):
            runs, inner = _runs(layer, tensor, pages)
            mine += runs
            regions.append(_region(tensor))
            tensors.append(tensor)
            words.append(f"{layer}:{inner}")
        mine_key = tuple(mine)
        if mine_key in seen:  # a layer that reads another's KV
            words.append(f"{layer}={seen[mine_key]}")
            continue
        seen[mine_key] = layer
        fragments += mine
    if not fragments:
        raise UnknownLayout("a group without layers")
    _refuse_overlap(layers[0], fragments)
    merged = _merge(fragments)
    if len(merged) > MAX_FRAGMENTS:
        raise UnknownLayout(
            f"layer {layers[0]} and its group: a page lies in {len(merged)} fragments, the limit is {MAX_FRAGMENTS}"
        )
    total = sum(fragment.bytes for fragment in merged)
    if page_bytes is not None and total != page_bytes:
        raise UnknownLayout(
            f"layer {layers[0]} and its group: the tensors hold {total} bytes a page, the engine says {page_bytes}"
        )
    text = f"{total} bytes, " + hashlib.sha256("\n".join(words).encode()).hexdigest()
    return Layout(tuple(merged), tuple(regions), pages, text, tuple(tensors))


def _tensors_of(layer: str, cache: LayerCache) -> list[torch.Tensor]:
    if hasattr(cache, "data_ptr"):
        return [cache]
    if isinstance(cache, Sequence) and cache and all(hasattr(one, "data_ptr") for one in cache):
        return list(cache)
    raise UnknownLayout(f"layer {layer}: its KV cache is a {type(cache).__name__}, neither a tensor nor a list of them")


def _region(tensor: torch.Tensor) -> tuple[int, int]:
    storage = tensor.untyped_storage()
    return storage.data_ptr(), storage.nbytes()


def _page_dimension(layer: str, shape: Sequence[int], pages: int) -> int:
    """The dimension that counts pages (or kernel blocks, a whole number of them a page): 0, or 1 behind a 2 for K and
    V. Where it could be either, the tensor is refused."""
    first = shape[0] >= pages and shape[0] % pages == 0
    second = len(shape) > 2 and shape[0] == 2 and shape[1] >= pages and shape[1] % pages == 0
    if first and second and shape[0] != shape[1]:
        # [2, B, ...] with so few pages that 2 is a multiple of their number; B is the exact one, and of two pages 2
        # may be either.
        first, second = shape[0] == pages and pages != 2, shape[1] == pages
    if first == second:
        raise UnknownLayout(
            f"layer {layer}: shape {tuple(shape)} does not say which dimension counts its {pages} blocks"
        )
    return 0 if first else 1


def _runs(layer: str, tensor: torch.Tensor, pages: int) -> tuple[list[Fragment], str]:
    shape, strides, size = list(tensor.shape), list(tensor.stride()), tensor.element_size()
    if tensor.ndim < 2:
        raise UnknownLayout(f"layer {layer}: shape {tuple(shape)} has no pages")
    at = _page_dimension(layer, shape, pages)
    kernel = shape[at] // pages
    page_stride = strides[at] * size
    rest = [(n, s * size) for d, (n, s) in enumerate(zip(shape, strides, strict=True)) if d != at and n > 1]
    if page_stride <= 0 or any(stride <= 0 for _, stride in rest):
        raise UnknownLayout(f"layer {layer}: strides {tuple(strides)} repeat or reverse bytes")
    rest.sort(key=lambda one: one[1])
    run = size
    outer: list[tuple[int, int]] = []
    for count, stride in rest:
        if not outer and stride == run:
            run *= count
        else:
            if stride < run:
                raise UnknownLayout(
                    f"layer {layer}: shape {tuple(shape)} with strides {tuple(strides)} overlaps itself"
                )
            outer.append((count, stride))
    if kernel > 1:
        # Kernel blocks of one page lie one after the other; the page's stride is theirs together.
        outer.append((kernel, page_stride))
    page_stride *= kernel
    offsets = [0]
    for count, stride in outer:
        offsets = [offset + i * stride for i in range(count) for offset in offsets]
        if len(offsets) > MAX_FRAGMENTS:
            raise UnknownLayout(f"layer {layer}: a page lies in more than {MAX_FRAGMENTS} fragments")
    base = tensor.data_ptr()
    runs = [Fragment(base + offset, page_stride, run) for offset in sorted(offsets)]
    # A stride that reaches over other pages (K and V apart, heads outermost) depends on how many there are: only
    # its rank among such is told.
    far = sorted({stride for _, stride in rest if stride >= strides[at] * size})
    inner = ",".join(
        f"{n}x{'far' + str(far.index(s * size)) if s * size in far else s}"
        for d, (n, s) in enumerate(zip(shape, strides, strict=True))
        if d != at and n > 1
    )
    return _merge(runs), f"{tensor.dtype}[{inner}] kernel {kernel} run {run}"


def _merge(fragments: Sequence[Fragment]) -> list[Fragment]:
    """Runs that follow each other without a gap are one."""
    merged: list[Fragment] = []
    for fragment in fragments:
        last = merged[-1] if merged else None
        if last and last.stride == fragment.stride and last.address + last.bytes == fragment.address:
            merged[-1] = Fragment(last.address, last.stride, last.bytes + fragment.bytes)
        else:
            merged.append(fragment)
    return merged


def _refuse_overlap(layer: str, fragments: Sequence[Fragment]) -> None:
    """No byte of a page may belong to two fragments: one would be written twice, in whatever order."""
    ordered = sorted(fragments, key=lambda one: one.address)
    for before, after in zip(ordered, ordered[1:], strict=False):
        if before.address + before.bytes > after.address:
            raise UnknownLayout(f"layer {layer} and its group: two layers' pages overlap without being the same")
    for fragment in ordered:
        if fragment.bytes > fragment.stride:
            raise UnknownLayout(
                f"layer {layer} and its group: a page of {fragment.bytes} bytes every {fragment.stride}"
            )
