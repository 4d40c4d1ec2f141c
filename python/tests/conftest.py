# SPDX-License-Identifier: Apache-2.0
"""A node of a test's own, and what tests do with it."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import tempfile
from collections.abc import Iterator

import pytest

import cistern

TIMEOUT_S = 300
FOREVER_US = TIMEOUT_S * 1_000_000


class Node:
    """A cisternd; ready when the constructor returns."""

    def __init__(self, directory: pathlib.Path, memory: str = "128MiB", *more: str) -> None:
        self.socket = str(directory / "socket")
        self.command = [
            *("setpriv", "--pdeathsig", "KILL"),  # it is killed with the tests
            cistern.cisternd_path(),
            *("--memory", memory, "--memory-dir", str(directory / "memory"), "--socket", self.socket),
            *more,
        ]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        said = []
        for line in self.process.stderr:
            said.append(line.decode())
            if "node ready" in said[-1]:
                return
        raise AssertionError("".join(said))

    def stop(self) -> None:
        """Hangs it: it neither answers nor goes."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # all of its threads

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=TIMEOUT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def connect(self, owner: bytes | None = None) -> cistern.Store:
        return cistern.Store.connect(self.socket, owner=owner)


@pytest.fixture
def directory() -> Iterator[pathlib.Path]:
    parent = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix=f"cistern-python-{os.getpid()}-", dir=parent) as path:
        yield pathlib.Path(path)


@pytest.fixture
def node(directory: pathlib.Path) -> Iterator[Node]:
    made = Node(directory)
    yield made
    if made.process.poll() is None:
        made.kill()


@pytest.fixture
def store(node: Node) -> Iterator[cistern.Store]:
    with node.connect() as connected:
        yield connected


@pytest.fixture
def namespace(store: cistern.Store) -> cistern.Namespace:
    return store.attach(cistern.NamespaceSpec({"model": "test"}))
