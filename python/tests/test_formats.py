# SPDX-License-Identifier: Apache-2.0
"""Readers written from docs/formats alone find in a node's files all that was put, so the pages are what it writes."""

from __future__ import annotations

import itertools
import mmap
import pathlib
import random
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

import pytest
from conftest import TIMEOUT_S, Node

import cistern

SPEC = cistern.NamespaceSpec(
    {"model": "formats", "dtype": "bf16"},
    groups=(
        cistern.Group("layers", part_bytes=(1 << 20, 70_000)),
        cistern.Group("slide", reach="window", window_tokens=64),
    ),
    name="formats", block_tokens=16, flash_admit="all", labels={"model": "m"}, copies=2,
)
KEYS = [random.Random(number).randbytes(16 + number % 17) for number in range(24)]
"""Two regions of flash and a bit."""
SLIDE = [random.Random(-number).randbytes(900 + number) for number in range(24)]
DROPPED = 23
UNIT = 4096
HEADER_BYTES = 32 << 20
"""Of slots, for each chunk header."""

Item = TypeVar("Item")

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data: bytes, crc: int = 0) -> int:
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def number(data: bytes | mmap.mmap, at: int, size: int = 8) -> int:
    return int.from_bytes(data[at : at + size], "little")


def up(size: int) -> int:
    return (size + UNIT - 1) // UNIT * UNIT


class Record(NamedTuple):
    key: bytes
    parent: bytes
    group: int
    incarnation: int
    body: int
    born: int
    sequence: int
    conversation: int
    expiry: int
    parts: int


class Trailer(NamedTuple):
    record: Record
    place: tuple[int, int, int]
    """Region, its epoch, and where in it."""
    crcs: list[int]
    """Of the segments."""


def trailer(data: bytes) -> Trailer:
    """docs/formats/record.md."""
    seal = data[64:]
    assert (data[:4], seal[:4], number(seal, 8, 2), number(seal, 52, 4)) == (b"CSTM", b"CSEL", 1, 65536)
    parts, segments = number(seal, 12, 2), number(seal, 48, 4)
    crcs_at = 120 + (4 * parts if parts > 1 else 0)
    assert number(seal, 4, 4) == crc32c(seal[8 : crcs_at + 4 * segments])
    assert number(data, 4, 4) == crc32c(seal[4:8], crc32c(data[8:64]))
    lengths = [number(seal, 120 + 4 * part, 4) for part in range(parts)] if parts > 1 else [number(seal, 24)]
    assert sum(lengths) == number(seal, 24) and sum(-(-length // 65536) for length in lengths) == segments
    record = Record(
        seal[56 : 56 + seal[14]], seal[88 : 88 + seal[15]], number(seal, 10, 2), number(seal, 16), number(seal, 24),
        number(data, 24), number(data, 16), number(data, 32), number(data, 44, 4), parts,
    )
    place = (number(data, 40, 4), number(data, 8), number(data, 48, 4))
    return Trailer(record, place, [number(seal, crcs_at + 4 * segment, 4) for segment in range(segments)])


def arena_entry(data: bytes) -> Record:
    return Record(
        data[: data[64]], data[32 : 32 + data[65]], number(data, 66, 2), number(data, 72), number(data, 80, 4),
        number(data, 88), number(data, 104), number(data, 112), number(data, 84, 4), number(data, 120, 4),
    )


def mapped(path: pathlib.Path) -> mmap.mmap:
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def arena(data: mmap.mmap) -> Iterator[tuple[Record, bytes]]:
    """docs/formats/arena.md: each record, and its slot."""
    assert data[:8] == b"CISARENA" and (number(data, 8), number(data, 16)) == (1, UNIT)
    count, served = number(data, 24), number(data, 88)
    size = UNIT + 8192 * (8 + 128)
    slots = -(-(UNIT + count * size) // (2 << 20)) * (2 << 20)
    heads = [data[UNIT + header * size : UNIT + (header + 1) * size] for header in range(served)]
    for first, head in enumerate(heads):
        carve, slot_bytes, headers = (number(head, at) for at in (0, 8, 16))
        if carve % 2 or carve == 0:
            continue
        assert number(head, 32) == crc32c(struct.pack("<4Q", first, carve, slot_bytes, headers))
        for within in range(0, headers * HEADER_BYTES - slot_bytes + 1, slot_bytes):
            offset = first * HEADER_BYTES + within
            of, unit = heads[offset // HEADER_BYTES], offset % HEADER_BYTES // 4096
            generation = number(of, 4096 + 8 * unit)
            if generation == 0 or generation % 2:
                continue
            entry = of[69_632 + 128 * unit : 69_760 + 128 * unit]
            assert number(entry, 96) == generation and number(entry, 124, 4) == crc32c(entry[:124], offset // UNIT)
            slot = data[slots + offset : slots + offset + slot_bytes]
            record = arena_entry(entry)
            assert trailer(slot[up(record.body) :])[:2] == (record, (offset // UNIT, generation, 0))
            yield record, slot


def flash_entry(data: bytes) -> tuple[Record, int, int]:
    """The record, where it begins in its region, and how long it is there."""
    assert not any(data[118:])
    return (
        Record(
            data[: data[116]], data[32 : 32 + data[117]], number(data, 112, 2), number(data, 64),
            number(data, 100, 4), number(data, 72), number(data, 80), number(data, 88), number(data, 96, 4),
            number(data, 114, 2),
        ),
        number(data, 108, 4), number(data, 104, 4),
    )


def table(region: bytes, epoch: int) -> list[bytes] | None:
    """The entries that a closed region ends with; None: it is open."""
    locator = region[-UNIT:]
    if locator[:4] != b"TBLB" or number(locator, 8) != epoch:
        return None
    assert number(locator, 4, 4) == crc32c(locator[8:64])
    at, left, entries = number(locator, 24, 4) * UNIT, number(locator, 28, 4), []
    while left > 0:
        count = number(region, at + 20, 4)
        assert region[at : at + 4] == b"PAGE" and number(region, at + 8) == epoch
        assert number(region, at + 4, 4) == crc32c(region[at + 8 : at + 128 * (count + 1)])
        entries += [region[at + 128 * entry : at + 128 * (entry + 1)] for entry in range(1, count + 1)]
        left -= count
        at += 65536
    return entries


def flash(data: mmap.mmap) -> Iterator[tuple[Record, bytes]]:
    """docs/formats/flash.md: each record by the batches, and its bytes there."""
    assert data[:8] == b"CSTRNFL1" and number(data, 8, 4) == 1 and number(data, 12, 4) == crc32c(data[16:64])
    device, region_bytes, regions = number(data, 16), number(data, 32), number(data, 44, 4)
    closed = 0
    for number_of in range(regions):
        begin = 65536 + number_of * region_bytes
        if data[begin : begin + 4] != b"REGN" or number(data, begin + 8) != device:
            continue
        region = data[begin : begin + region_bytes]
        assert number(region, 4, 4) == crc32c(region[8:64]) and number(region, 32, 4) == number_of
        epoch, at, entries = number(region, 16), UNIT, []
        while region[at : at + 4] == b"BTCH" and number(region, at + 8) == epoch:
            count = number(region, at + 20, 4)
            head = region[at : at + 64 + 128 * count]
            assert number(head, 4, 4) == crc32c(head[8:]) and number(head, 16, 4) * UNIT == at
            entries += [head[64 + 128 * entry : 192 + 128 * entry] for entry in range(count)]
            at += number(head, 24, 4) * UNIT
        listed = table(region, epoch)
        assert listed is None or listed == entries
        closed += listed is not None
        for entry in entries:
            record, unit, size = flash_entry(entry)
            found = region[unit * UNIT : unit * UNIT + size]
            assert trailer(found[up(record.body) :])[:2] == (record, (number_of, epoch, unit))
            yield record, found
    assert closed > 0


class Taken:
    """Fields that follow each other."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def bytes(self, size: int) -> bytes:
        assert size <= len(self.data)
        taken, self.data = self.data[:size], self.data[size:]
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.bytes(size), "little")

    def text(self) -> str:
        return self.bytes(self.number(4)).decode()

    def pairs(self) -> dict[str, str]:
        return {self.text(): self.text() for _ in range(self.number(4))}

    def many(self, item: Callable[[], Item]) -> list[Item]:
        return [item() for _ in range(self.number(4))]


def namespace(data: bytes) -> cistern.NamespaceSpec:
    """The journal's encoding of one, of the version that copies take, without labels."""
    taken = Taken(data)
    assert (taken.number(1), taken.number(1)) == (3, 0)
    taken.bytes(4 + 8)  # slot, incarnation
    tokens = taken.number(4)
    (name,) = taken.many(taken.text)
    fields = taken.pairs()
    groups = taken.many(
        lambda: cistern.Group(
            taken.text(), ("full", "window")[taken.number(1)], taken.number(4),
            tuple(taken.many(lambda: taken.number(4))),
        )
    )
    assert taken.number(1) == 0 and taken.number(1) > 0  # when a block is written: not said
    admitted = ("", "all", "second-hit", "worth")[taken.number(1)]
    assert taken.number(1) == 0  # mesh: not said
    copies = taken.number(1)
    assert taken.data == b""
    return cistern.NamespaceSpec(
        fields, tuple(groups), name=name, block_tokens=tokens, flash_admit=admitted, copies=copies
    )


def journal(data: bytes) -> list[tuple[int, bytes]]:
    """docs/formats/journal.md: kind and payload of each record."""
    assert data[:8] == b"CIJOURNL" and number(data, 8) == 2 and number(data, 32, 4) == crc32c(data[:32])
    assert data[36:40] == bytes(4)
    records, batches = [], Taken(data[40:])
    while batches.data:
        crc, size = batches.number(4), batches.number(4)
        batch = Taken(batches.bytes(size))
        assert crc == crc32c(struct.pack("<I", size) + batch.data)
        while batch.data:
            payload = batch.number(4)
            records.append((batch.number(1), batch.bytes(payload)))
    return records


def body(block: int) -> bytes:
    return random.Random(block).randbytes((1 << 20) + 70_000)


@pytest.fixture(scope="module")
def directory() -> Iterator[pathlib.Path]:
    """Of a node that was killed behind a drain, which put on flash all that memory has."""
    with tempfile.TemporaryDirectory(prefix="cistern-formats-", dir=pathlib.Path.cwd()) as path:
        root = pathlib.Path(path)
        node = Node(root, "128MiB", "--flash", f"{root}:256MiB")
        with node.connect() as store:
            space = store.attach(SPEC)
            for block, key in enumerate(KEYS):
                put, parent, data = [cistern.new_put_id()], KEYS[block - 1] if block else None, body(block)
                for part, share in enumerate((data[: 1 << 20], data[1 << 20 :])):
                    store.write(space, [key], [share], parent=parent, part=part, put_ids=put, conversation="c")
                written = store.write(space, [key], [SLIDE[block]], parent=parent, group=1, ttl_s=3600)
                assert written.states == bytes([cistern.State.PUBLISHED]), written
            assert store.drop(space, [KEYS[DROPPED]]) == 1
        drain = [cistern.cistern_path(), "admin", "drain", "--socket", node.socket]
        subprocess.run(drain, check=True, timeout=TIMEOUT_S)
        node.kill()
        yield root


def check(records: list[tuple[Record, bytes]]) -> None:
    """They are the blocks that were put, each in both groups, and not the one that was dropped."""
    found = {(record.key, record.group): (record, data) for record, data in records}
    assert found.keys() >= {(key, group) for key in KEYS[:DROPPED] for group in (0, 1)}
    for block, key in enumerate(KEYS[:DROPPED]):
        for group, wanted in enumerate((body(block), SLIDE[block])):
            record, data = found[key, group]
            assert data[: record.body] == wanted
            assert record.parent == (KEYS[block - 1] if block else b"")
            assert record.parts == (2, 1)[group] and (record.expiry > 0) == (group == 1)
    record, data = found[KEYS[0], 0]
    ends = [15 << 16, 1 << 20, 17 << 16, record.body]
    of_last = [crc32c(data[begin:end]) for begin, end in itertools.pairwise(ends)]
    assert trailer(data[up(record.body) :]).crcs[15:] == of_last


def test_an_arena(directory: pathlib.Path) -> None:
    records = list(arena(mapped(directory / "memory" / "default" / "arena")))
    assert (KEYS[DROPPED], 0) not in {(record.key, record.group) for record, _ in records}
    check(records)


def test_flash(directory: pathlib.Path) -> None:
    check(list(flash(mapped(directory / "default" / "flash"))))


def test_a_journal(directory: pathlib.Path) -> None:
    data = (directory / "default" / "journal").read_bytes()
    assert data == (directory / "default" / "journal.copy").read_bytes()
    records = journal(data)
    (space,) = [payload for kind, payload in records if kind == 2]
    assert namespace(space) == cistern.NamespaceSpec(**{**vars(SPEC), "labels": {}})
    (labels,) = [Taken(payload[4:]) for kind, payload in records if kind == 11]
    assert labels.pairs() == SPEC.labels
    (dropped,) = [payload for kind, payload in records if kind == 3]
    assert dropped[17 : 17 + dropped[16]] == KEYS[DROPPED]
    assert records.index((8, b"")) > 0
