# SPDX-License-Identifier: Apache-2.0
"""Every kind of buffer, in and out; and what is no buffer is refused by its place."""

from __future__ import annotations

import array
import ctypes
import mmap
import random
from collections.abc import Callable
from typing import Any

import pytest

import cistern

np = pytest.importorskip("numpy")
SIZE = 100_000
DATA = random.Random(1).randbytes(SIZE)


def of_mmap(data: bytes) -> mmap.mmap:
    made = mmap.mmap(-1, len(data))
    made[:] = data
    return made


def of_ctypes(data: bytes) -> Any:
    return (ctypes.c_char * len(data)).from_buffer(bytearray(data))


WRITABLE: dict[str, Callable[[bytes], Any]] = {
    "bytearray": bytearray,
    "memoryview": lambda data: memoryview(bytearray(data)),
    "slice of a memoryview": lambda data: memoryview(bytearray(b"xx" + data + b"yy"))[2:-2],
    "array": lambda data: array.array("i", data),
    "mmap": of_mmap,
    "ctypes": of_ctypes,
    "numpy uint8": lambda data: np.frombuffer(data, np.uint8).copy(),
    "numpy float32 matrix": lambda data: np.frombuffer(data, np.float32).copy().reshape(100, -1),
    "numpy slice of rows": lambda data: np.frombuffer(data * 2, np.uint8).copy().reshape(4, -1)[1:3],
}
KINDS = {"bytes": bytes, "read-only numpy": lambda data: np.frombuffer(data, np.uint16), **WRITABLE}


def bytes_of(kind: Any) -> bytes:
    return bytes(memoryview(kind).cast("B"))


def test_each_kind_is_written(store: cistern.Store, namespace: cistern.Namespace) -> None:
    for number, (name, make) in enumerate(KINDS.items()):
        key = bytes([number]) * 32
        source = make(DATA)
        assert store.write(namespace, [key], [source]).outcomes == b"\0", name
        assert store.get(namespace, key) == bytes_of(source), name
        assert store.write(namespace, [key[:31]], [[source, b"tail", source]]).outcomes == b"\0", name
        assert store.get(namespace, key[:31]) == bytes_of(source) + b"tail" + bytes_of(source), name


def test_each_writable_kind_is_read_into(store: cistern.Store, namespace: cistern.Namespace) -> None:
    store.put(namespace, b"k" * 32, DATA)
    for name, make in WRITABLE.items():
        into = make(bytes(SIZE))
        assert store.read(namespace, [b"k" * 32], [into]).outcomes == b"\0", name
        assert bytes_of(into) == DATA, name


def test_a_read_scatters_over_buffers_and_ranges(store: cistern.Store, namespace: cistern.Namespace) -> None:
    store.put(namespace, b"k" * 32, DATA)
    draw = random.Random(2)
    for _ in range(50):
        sizes = [draw.randint(0, 20_000) for _ in range(draw.randint(1, 5))]
        pieces = [bytearray(size) for size in sizes]
        assert store.read(namespace, [b"k" * 32], [pieces]).outcomes == b"\0"
        assert b"".join(pieces) == DATA[: sum(sizes)]
        offsets = [draw.randint(0, SIZE - size) for size in sizes]
        ranges = [cistern.Range(bytearray(size), offset=at) for size, at in zip(sizes, offsets, strict=True)]
        assert store.read(namespace, [b"k" * 32], [ranges]).outcomes == b"\0"
        for one, at in zip(ranges, offsets, strict=True):
            assert bytes_of(one.into) == DATA[at : at + len(bytes_of(one.into))]
    past = cistern.Range(bytearray(2), offset=SIZE - 1)
    assert list(store.read(namespace, [b"k" * 32], [[past]]).outcomes) == [cistern.Code.INVALID]


def test_a_write_gathers(store: cistern.Store, namespace: cistern.Namespace) -> None:
    draw = random.Random(3)
    for number in range(50):
        cuts = sorted(draw.randint(0, SIZE) for _ in range(draw.randint(0, 40)))
        pieces = [DATA[a:b] for a, b in zip([0, *cuts], [*cuts, SIZE], strict=True)]
        key = number.to_bytes(32, "big")
        assert store.write(namespace, [key], [pieces]).outcomes == b"\0"
        assert store.get(namespace, key) == DATA


def test_cpu_tensors_are_buffers(store: cistern.Store, namespace: cistern.Namespace) -> None:
    torch = pytest.importorskip("torch")
    for number, kind in enumerate((torch.uint8, torch.float32, torch.bfloat16)):
        key = bytes([number]) * 32
        source = torch.arange(1000).to(kind).reshape(10, 100)
        into = torch.zeros_like(source)
        assert store.write(namespace, [key], [source]).outcomes == b"\0"
        assert store.read(namespace, [key], [into]).outcomes == b"\0"
        assert torch.equal(source, into)
    with pytest.raises(cistern.Invalid, match="not contiguous"):
        store.write(namespace, [b"x" * 32], [torch.zeros(10, 10).t()])


def test_a_tensor_whose_items_are_two_numbers_is_moved_whole(
    store: cistern.Store, namespace: cistern.Namespace
) -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("a PyTorch without such a dtype")
    source = torch.arange(64, dtype=torch.uint8)
    store.write(namespace, [b"k" * 32], [source.view(torch.float4_e2m1fn_x2)])
    assert store.get(namespace, b"k" * 32) == bytes(range(64))
    into = torch.zeros_like(source)
    store.read(namespace, [b"k" * 32], [into.view(torch.float4_e2m1fn_x2)])
    assert torch.equal(source, into)


def test_a_tensor_whose_memory_holds_other_numbers_is_refused(
    store: cistern.Store, namespace: cistern.Namespace
) -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.complex(torch.ones(4), torch.ones(4)).conj()
    for lazy, resolve in ((numbers, "resolve_conj"), (numbers[:1].imag, "resolve_neg")):
        with pytest.raises(cistern.Invalid, match=rf"data\[0\] .*{resolve}"):
            store.write(namespace, [b"k" * 32], [lazy])
        made = getattr(lazy, resolve)().contiguous()
        store.write(namespace, [resolve.encode().ljust(32)], [made])
        into = torch.zeros_like(made)
        assert store.read(namespace, [resolve.encode().ljust(32)], [into]).outcomes == b"\0" and torch.equal(into, lazy)


class DeviceTensor:
    """Says of itself what a CUDA tensor says, and fails whoever asks for its memory."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0

    def __dlpack__(self, *, stream: None = None) -> Any:
        raise AssertionError("its pointer was asked for")


class NowhereTensor:
    """What has a shape alone, as PyTorch's device `meta`."""

    def __dlpack_device__(self) -> tuple[int, int]:
        raise ValueError("unknown device")

    def __dlpack__(self, *, stream: None = None) -> Any:
        raise AssertionError("its pointer was asked for")


def test_what_is_no_buffer_is_refused_by_its_place(store: cistern.Store, namespace: cistern.Namespace) -> None:
    keys = [b"a" * 32, b"b" * 32]
    matrix = np.zeros((4, 4))
    for bad, message in [
        (b"read-only", r"into\[1\] of type bytes: .*writable"),
        (matrix.T[:2], r"into\[1\] of type .*ndarray.*contiguous"),
        (5, r"into\[1\] is of type int"),
        ([bytearray(1), 5], r"into\[1\]\[1\] is of type int"),
        ([bytearray(1), cistern.Range(bytearray(1))], r"into\[1\]\[1\]: buffers and Ranges"),
        (DeviceTensor(), r"into\[1\] .*lies on a device"),
        (NowhereTensor(), r"into\[1\] .*where it lies: .*unknown device"),
    ]:
        with pytest.raises(cistern.Invalid, match=message):
            store.read(namespace, keys, [bytearray(1), bad])
    for bad_data, message in [
        (5, r"data\[1\] is of type int"),
        ("text", r"data\[1\] is of type str"),
        (matrix.T[:2], r"data\[1\] of type .*contiguous"),
        (DeviceTensor(), r"data\[1\] .*lies on a device"),
    ]:
        with pytest.raises(cistern.Invalid, match=message):
            store.write(namespace, keys, [b"1", bad_data])
    with pytest.raises(cistern.Invalid, match="has 0 bytes"):
        store.write(namespace, keys, [b"1", b""])
    assert store.match(namespace, keys).blocks == 0, "a refused call wrote nothing"


def test_arrays_of_objects_are_refused_by_their_dtype(store: cistern.Store, namespace: cistern.Namespace) -> None:
    objects = np.array([b"a", b"b"], dtype=object)
    fields = np.zeros(2, dtype=[("Old", "i4"), ("what", "O")])
    for wrong in (objects, fields):
        message = r"data\[0\] of type ndarray of dtype .*(object|'O').* Python objects"
        with pytest.raises(cistern.Invalid, match=message):
            store.write(namespace, [b"o" * 32], [wrong])
        with pytest.raises(cistern.Invalid, match="Python objects"):
            store.read(namespace, [b"o" * 32], [wrong])
    named = np.zeros(2, dtype=[("Old", "i4")])
    assert store.write(namespace, [b"n" * 32], [named]).outcomes == b"\0"
    with store.acquire(namespace, [b"n" * 32]) as lease:
        view = lease[0]
        assert view is not None
        with pytest.raises(cistern.Invalid, match="no Python objects"):
            view.numpy(dtype=object)
    with pytest.raises(cistern.Invalid, match="of dtype float32.*contiguous"):
        store.write(namespace, [b"t" * 32], [np.zeros((10, 10), np.float32).T[:3]])


def test_a_range_says_which_of_its_numbers_is_wrong(store: cistern.Store, namespace: cistern.Namespace) -> None:
    for wrong, message in (
        (cistern.Range(bytearray(1), offset=-1), r"into\[0\]\[0\]: offset is -1, a whole number from 0"),
        (cistern.Range(bytearray(1), part=70_000), r"part is 70000, a whole number from 0 to 65535"),
        (cistern.Range(bytearray(1), offset="x"), "offset is 'x'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(cistern.Invalid, match=message):
            store.read(namespace, [b"k" * 32], [[wrong]])


def test_a_message_does_not_end_at_a_zero_byte(node: object, store: cistern.Store) -> None:
    with pytest.raises(cistern.Invalid, match="tenant \"a\0b\" has 3 bytes"):
        cistern.Store.connect(node.socket, tenant="a\0b")  # type: ignore[attr-defined]


class Clears:
    """An item that empties the list in which it lies when it is looked at."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __getattr__(self, name: str) -> Any:
        self.items.clear()
        raise AttributeError(name)

    def __index__(self) -> int:
        self.items.clear()
        return 1


def test_a_list_that_changes_while_it_is_looked_at_ends_nothing_but_the_call(
    store: cistern.Store, namespace: cistern.Namespace
) -> None:
    """What an item's own code does, or another thread meanwhile."""
    keys, pages = [bytes([i]) * 32 for i in range(100)], cistern.Pages.over([bytearray(400)], [(0, 0, 4, 4)], 100)
    with cistern.Transfers(store) as transfers:
        for use in (
            lambda items: store.write(namespace, keys, items), lambda items: store.read(namespace, keys, items),
            lambda items: store.write(namespace, keys[:1], [items]),
            lambda items: store.read(namespace, keys[:1], [items]),
            lambda items: transfers.submit_load(namespace, keys, pages, items),
        ):  # fmt: skip
            items: list[Any] = []
            items += [Clears(items) for _ in keys]
            with pytest.raises(cistern.Invalid):
                use(items)
