# SPDX-License-Identifier: Apache-2.0
"""The store against a dictionary: whatever is done, it answers what the dictionary would."""

from __future__ import annotations

import os
import pathlib
import random
from collections.abc import Callable

import pytest
from conftest import Node

import cistern

SEEDS = [int(seed) for seed in os.environ.get("CISTERN_TEST_SEEDS", "1 2 3").split()]
STEPS = 1500


class Model:
    """The expected content: a tree of blocks, each with its bytes."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}
        self.parent: dict[bytes, bytes | None] = {}
        self.of: dict[bytes, set[str]] = {}  # who wrote and used it, of those that have not ended

    def put(self, key: bytes, parent: bytes | None, data: bytes, conversation: str = "") -> None:
        self.data[key], self.parent[key] = data, parent
        if conversation:
            self.of[key] = {conversation}
            if parent is not None:
                self.use(parent, conversation)

    def use(self, key: bytes, conversation: str) -> None:
        """Of the noted blocks from here up it is one of those who use them."""
        at: bytes | None = key if conversation and key in self.data else None
        while at is not None:
            if at in self.of:
                self.of[at].add(conversation)
            at = self.parent[at]

    def end(self, conversation: str) -> int:
        its_own = [key for key, of in self.of.items() if of == {conversation}]
        for of in self.of.values():
            of.discard(conversation)
        return self.drop(its_own)

    def chain(self, key: bytes) -> list[bytes]:
        keys: list[bytes] = []
        at: bytes | None = key
        while at is not None:
            keys.append(at)
            at = self.parent[at]
        return keys[::-1]

    def drop(self, roots: list[bytes]) -> int:
        gone = [key for key in self.data if any(root in self.chain(key) for root in roots)]
        for key in gone:
            del self.data[key]
        for key in gone:
            del self.parent[key]
            self.of.pop(key, None)
        return len(gone)


class Run:
    def __init__(self, node: Node, seed: int) -> None:
        self.random = random.Random(seed)
        self.writer = node.connect()
        self.stores = [self.writer, node.connect(owner=self.writer.owner), node.connect()]
        self.spec = cistern.NamespaceSpec({"model": f"random {seed}"})
        self.attach()
        self.model = Model()
        self.held: dict[bytes, tuple[bytes, bytes | None, bytes, str]] = {}

    def attach(self) -> None:
        self.namespaces = [store.attach(self.spec) for store in self.stores]

    def any(self, owners: bool = False) -> tuple[cistern.Store, cistern.Namespace]:
        at = self.random.randrange(2 if owners else 3)
        return self.stores[at], self.namespaces[at]

    def content(self) -> bytes:
        return self.random.randbytes(self.random.choice([1, 100, 4096, 65536, 65537, 150_000]))

    def key(self) -> bytes:
        return self.random.randbytes(self.random.choice([16, 20, 32]))

    def known(self) -> bytes:
        if self.model.data and self.random.random() < 0.9:
            return self.random.choice(list(self.model.data))
        return self.key()

    def write(self) -> None:
        parent = self.random.choice([None, *self.model.data])
        count = self.random.randint(1, 5)
        keys, data = [self.key() for _ in range(count)], [self.content() for _ in range(count)]
        store, namespace = self.any()
        conversation = self.conversation()
        result = store.write(namespace, keys, data, parent=parent, conversation=conversation)
        assert result.outcomes == bytes(count), result.message
        assert result.states == bytes([cistern.State.PUBLISHED]) * count
        for i, key in enumerate(keys):
            self.model.put(key, parent if i == 0 else keys[i - 1], data[i], conversation)

    def conversation(self) -> str:
        return self.random.choice(["", "ann", "bob", "carl"])

    def write_again(self) -> None:
        if not self.model.data:
            return
        key = self.random.choice(list(self.model.data))
        store, namespace = self.any()
        conversation = self.conversation()
        result = store.write(
            namespace, [key], [self.content()], parent=self.model.parent[key], conversation=conversation
        )
        assert list(result.states) == [cistern.State.PRESENT], "the first published wins"
        self.model.use(key, conversation)

    def hold(self) -> None:
        put, key, data = cistern.new_put_id(), self.key(), self.content()
        parent = self.random.choice([None, *self.model.data])
        store, namespace = self.any(owners=True)
        conversation = self.conversation()
        result = store.write(
            namespace, [key], [data], parent=parent, put_ids=[put], held=True, conversation=conversation
        )
        assert list(result.states) == [cistern.State.PENDING]
        self.held[put] = (key, parent, data, conversation)

    def settle(self) -> None:
        if not self.held:
            return
        put = self.random.choice(list(self.held))
        key, parent, data, conversation = self.held.pop(put)
        store, namespace = self.any(owners=True)
        alive = parent is None or parent in self.model.data
        if self.random.random() < 0.5:
            assert store.publish(namespace, [put]) == int(alive)
            if alive:
                self.model.put(key, parent, data, conversation)
        else:
            assert store.abandon(namespace, [put]) == int(alive)

    def read(self) -> None:
        keys = [self.known() for _ in range(self.random.randint(1, 6))]
        wanted = [self.model.data.get(key) for key in keys]
        into = [bytearray(len(data) if data is not None else 10) for data in wanted]
        store, namespace = self.any()
        result = store.read(namespace, keys, into)
        codes = [cistern.Code.MISS if data is None else cistern.Code.OK for data in wanted]
        assert list(result.outcomes) == codes
        for data, got in zip(wanted, into, strict=True):
            assert data is None or got == data
        assert result.leading_hits == next((i for i, code in enumerate(codes) if code), len(codes))

    def get(self) -> None:
        store, namespace = self.any()
        key = self.known()
        assert store.get(namespace, key) == self.model.data.get(key)

    def acquire(self) -> None:
        keys = [self.known() for _ in range(self.random.randint(1, 6))]
        store, namespace = self.any()
        with store.acquire(namespace, keys, lease_us=60_000_000) as lease:
            got = [None if view is None else view.tobytes() for view in lease]
        assert got == [self.model.data.get(key) for key in keys]

    def match(self) -> None:
        if not self.model.data:
            return
        chain = self.model.chain(self.random.choice(list(self.model.data)))
        at = self.random.randint(0, len(chain))
        broken = self.random.random() < 0.5
        keys = [*chain[:at], self.key(), *chain[at:]] if broken else chain
        store, namespace = self.any()
        found = store.match(namespace, keys if self.random.random() < 0.5 else cistern.Chain(keys))
        assert found.blocks == (at if broken else len(chain))
        assert sum(run.blocks for run in found.runs) == found.blocks

    def touch(self) -> None:
        store, namespace = self.any()
        keys, conversation = [self.known() for _ in range(4)], self.conversation()
        touched = store.touch(namespace, keys, conversation=conversation)
        assert touched == sum(key in self.model.data for key in keys)
        for key in keys:
            self.model.use(key, conversation)

    def end(self) -> None:
        if self.random.random() < 0.8:
            return
        store, namespace = self.any()
        conversation = self.random.choice(["ann", "bob", "carl", "nobody"])
        assert store.end_conversation(namespace, conversation) == self.model.end(conversation)

    def drop(self) -> None:
        if self.random.random() < 0.9:
            return
        store, namespace = self.any()
        keys = [self.known() for _ in range(self.random.randint(1, 2))]
        assert store.drop(namespace, keys) == self.model.drop(keys)

    def drop_namespace(self) -> None:
        if self.random.random() < 0.95:
            return
        store, namespace = self.any()
        fresh, blocks = store.drop_namespace(namespace)
        assert blocks == len(self.model.data)
        assert fresh.incarnation != namespace.incarnation
        self.model, self.held = Model(), {}
        self.attach()

    def go(self) -> None:
        steps: list[Callable[[], None]] = [
            self.write, self.write_again, self.hold, self.settle, self.read, self.read, self.get, self.acquire,
            self.match, self.match, self.touch, self.end, self.drop, self.drop_namespace,
        ]  # fmt: skip
        for _ in range(STEPS):
            self.random.choice(steps)()
            if sum(map(len, self.model.data.values())) > 40 << 20:  # nothing is to be evicted
                self.model.drop(list(self.model.data))
                self.stores[0].drop_namespace(self.namespaces[0])
                self.held = {}
                self.attach()
        for store in self.stores:
            store.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_store_is_a_dictionary_of_trees(directory: pathlib.Path, seed: int) -> None:
    node = Node(directory, memory="512MiB")
    try:
        Run(node, seed).go()
    finally:
        node.kill()
