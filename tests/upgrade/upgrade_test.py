# SPDX-License-Identifier: Apache-2.0
"""An earlier release and this one: clients of each with nodes of each, and what a node of each leaves behind taken over
by one of the other. `./dev upgrade` builds the earlier one from its commit.

Usage: upgrade_test.py BIN_DIR EARLIER_BIN_DIR [unittest arguments]
"""

from __future__ import annotations

import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import unittest
from typing import Any

NEW = pathlib.Path(sys.argv.pop(1)).resolve()
OLD = pathlib.Path(sys.argv.pop(1)).resolve()
TIMEOUT_S = 300
BLOCK_BYTES = 256 << 10


def name(binaries: pathlib.Path) -> str:
    return "this release" if binaries == NEW else "the earlier release"


def key(number: int) -> str:
    return f"{number:032x}"


def body(number: int) -> bytes:
    return random.Random(number).randbytes(BLOCK_BYTES)


class Release:
    """Programs of a release, with the directories of one node: memory, and flash where it has some."""

    def __init__(self, binaries: pathlib.Path, memory: pathlib.Path, flash: pathlib.Path | None) -> None:
        self.binaries, self.memory, self.flash = binaries, memory, flash
        self.socket = memory / "socket"

    def start(self) -> subprocess.Popen[str]:
        words = ["--memory", "64MiB", "--memory-dir", self.memory / "arena", "--socket", self.socket]
        if self.flash is not None:
            words += ["--flash", f"{self.flash}:512MiB", "--flash-write", "through"]
        ends_with_us = ("setpriv", "--pdeathsig", "KILL")
        command = [*ends_with_us, self.binaries / "cisternd", *map(str, words)]
        return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def cistern(self, command: str, *words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        # A busy host's disk takes its time, and a block that would come later than that counts as a miss.
        of_all = ["--socket", self.socket, "--deadline", f"{TIMEOUT_S}s"]
        all_words = [self.binaries / "cistern", *command.split(), *of_all, *words]
        return subprocess.run(all_words, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)


class Upgrade(unittest.TestCase):
    def setUp(self) -> None:
        self.assertNotEqual(NEW, OLD)
        self.make_place()

    def make_place(self) -> None:
        self.memory = self.scratch("/dev/shm")
        self.flash: pathlib.Path | None = None

    def scratch(self, parent: str | pathlib.Path) -> pathlib.Path:
        scratch = tempfile.TemporaryDirectory(prefix=f"cistern-upgrade-{os.getpid()}-", dir=parent)
        self.addCleanup(scratch.cleanup)
        return pathlib.Path(scratch.name)

    def release(self, binaries: pathlib.Path) -> Release:
        return Release(binaries, self.memory, self.flash)

    def serving(self, binaries: pathlib.Path) -> subprocess.Popen[str]:
        node = self.release(binaries).start()
        said = self.until_it_serves_or_ends(node)
        self.assertIsNone(node.poll(), f"{name(binaries)} does not start: {said}")
        return node

    def until_it_serves_or_ends(self, node: subprocess.Popen[str]) -> str:
        def stop() -> None:
            if node.poll() is None:
                node.kill()
                node.wait()
            assert node.stderr is not None
            node.stderr.close()
        self.addCleanup(stop)
        assert node.stderr is not None
        said = ""
        while line := node.stderr.readline():
            said += line
            if "node ready" in line:
                return said
        node.wait(timeout=TIMEOUT_S)
        return said

    def end(self, node: subprocess.Popen[str], number: int) -> None:
        node.send_signal(number)
        node.wait(timeout=TIMEOUT_S)

    def put(self, binaries: pathlib.Path, first: int, last: int) -> None:
        """A chain from `first` to `last`, under the block before."""
        for number in range(first, last + 1):
            parent = ["--parent", key(number - 1)] if number > 1 else []
            put = self.release(binaries).cistern("put", "--namespace", "n", *parent, key(number), "-",
                                                 stdin=body(number))
            self.assertEqual(put.returncode, 0, f"{name(binaries)}, block {number}: {put.stderr.decode()}")

    def assert_has(self, binaries: pathlib.Path, first: int, last: int) -> None:
        for number in range(first, last + 1):
            got = self.release(binaries).cistern("get", "--namespace", "n", key(number), "-")
            self.assertEqual(got.returncode, 0, f"{name(binaries)}, block {number}: {got.stderr.decode()}")
            self.assertEqual(got.stdout, body(number), f"{name(binaries)}, block {number}")

    def status(self, binaries: pathlib.Path) -> dict[str, Any]:
        said = self.release(binaries).cistern("status", "--json")
        self.assertEqual(said.returncode, 0, said.stderr.decode())
        status: dict[str, Any] = json.loads(said.stdout)
        return status

    def crossing(self, writer: pathlib.Path, reader: pathlib.Path, blocks: int) -> None:
        """What a node of one release holds at its end is there in the next one's, in order and after a kill."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self.subTest(signal=number.name):
                self.make_place()  # the writer may not read what the reader has taken over
                node = self.serving(writer)
                self.put(writer, 1, blocks)
                dropped = self.release(writer).cistern("drop", "--namespace", "n", key(blocks))
                self.assertEqual(dropped.returncode, 0, dropped.stderr.decode())
                self.end(node, number)
                node = self.serving(reader)
                self.assert_has(reader, 1, blocks - 1)
                gone = self.release(reader).cistern("get", "--namespace", "n", key(blocks), "-")
                self.assertEqual(gone.returncode, 1, "a block that was dropped is there again")
                self.end(node, signal.SIGTERM)


class InMemory(Upgrade):
    BLOCKS = 40

    def test_the_new_node_is_warm_with_what_the_old_one_left(self) -> None:
        self.crossing(OLD, NEW, self.BLOCKS)

    def test_a_client_of_the_old_release_works_with_a_node_of_the_new(self) -> None:
        self.both_kinds_of_clients(NEW)

    def test_a_client_of_the_new_release_works_with_a_node_of_the_old(self) -> None:
        self.both_kinds_of_clients(OLD)

    def both_kinds_of_clients(self, node: pathlib.Path) -> None:
        self.serving(node)
        self.put(OLD, 1, 3)
        self.put(NEW, 4, 6)
        for client in (OLD, NEW):
            self.assert_has(client, 1, 6)
            self.assertTrue(self.status(client))
            match = self.release(client).cistern("match", "--namespace", "n", "--json", *map(key, range(1, 9)))
            self.assertEqual(json.loads(match.stdout)["blocks"], 6, match.stderr.decode())
        for client, number in ((NEW, 6), (OLD, 5)):
            self.assertEqual(self.release(client).cistern("drop", "--namespace", "n", key(number)).returncode, 0)
        for client in (OLD, NEW):
            self.assert_has(client, 1, 4)
            self.assertEqual(self.release(client).cistern("get", "--namespace", "n", key(5), "-").returncode, 1)

    def named(self, code: str) -> subprocess.CompletedProcess[str]:
        """As an engine with a name does it, in a namespace with a label."""
        python = NEW.parent / "python"
        self.assertTrue((python / "cistern").is_dir(), f"the package is not built at {python}")
        begin = (
            f"import cistern\nstore = cistern.Store.connect({str(self.memory / 'socket')!r}, engine_name='decode-1')\n"
            "ns = store.attach(cistern.NamespaceSpec({'digest': 'd'}, labels={'model': 'llama'}))\n"
            "key = bytes([7]) * 32\n"
        )
        return subprocess.run([sys.executable, "-c", begin + code], env={**os.environ, "PYTHONPATH": str(python)},
                              capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    def assert_named(self, code: str) -> None:
        done = self.named(code)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_engine_with_a_name_and_labels_works_with_a_node_that_knows_neither(self) -> None:
        if "--engine" in subprocess.run([OLD / "cistern", "admin", "--help"], capture_output=True, text=True,
                                        timeout=TIMEOUT_S, check=True).stdout:
            self.skipTest("the earlier release knows both")
        self.serving(OLD)
        self.assert_named("store.put(ns, key, b'x' * 5000)\nassert store.get(ns, key) == b'x' * 5000")
        off = self.release(NEW).cistern("admin", "reads", "off", "--engine", "decode-1")
        self.assertEqual(off.returncode, 1)
        self.assertIn(b"earlier version", off.stderr)
        self.assert_named("assert store.get(ns, key) == b'x' * 5000")

    def test_an_old_node_that_knows_nothing_of_chains_in_a_cell_is_not_understood_wrongly(self) -> None:
        self.serving(OLD)
        self.put(OLD, 1, 1)
        for command in ("cell who", "cell explain"):
            for shown in ([], ["--json"]):
                asked = self.release(NEW).cistern(command, "--namespace", "n", *shown, key(1))
                self.assertEqual((asked.returncode, asked.stdout), (1, b""), asked.stderr)

    def test_what_has_labels_is_kept_by_a_node_that_knows_none(self) -> None:
        """Forth and back: a downgrade forgets the labels, and none of the blocks."""
        node = self.serving(NEW)
        self.assert_named("store.put(ns, key, b'x' * 5000)")
        labels = json.loads(self.release(NEW).cistern("namespaces", "--json").stdout)["namespaces"][0]["labels"]
        self.assertEqual(labels, {"model": "llama"})
        self.end(node, signal.SIGTERM)
        node = self.release(OLD).start()
        said = self.until_it_serves_or_ends(node)
        if node.poll() is None:
            self.assert_named("assert store.get(ns, key) == b'x' * 5000")
            self.end(node, signal.SIGTERM)
        else:
            self.assert_refused(node, said)
        self.serving(NEW)
        self.assert_named("assert store.get(ns, key) == b'x' * 5000")
        self.assertEqual(self.release(NEW).cistern("admin", "drop", "model=llama").stdout, b"1 blocks dropped\n")

    def test_the_old_node_takes_back_what_the_new_one_took_over_or_names_what_it_does_not_read(self) -> None:
        self.back_and_forth(OLD, self.BLOCKS)

    def test_the_old_node_takes_what_the_new_one_made_or_names_what_it_does_not_read(self) -> None:
        self.back_and_forth(NEW, self.BLOCKS)

    def assert_refused(self, node: subprocess.Popen[str], said: str) -> None:
        """The earlier release ended and named what it does not read."""
        print(f"{name(OLD)} says: {said.strip()}", file=sys.stderr)
        self.assertEqual(node.returncode, 1)
        self.assertTrue(any(str(one) in said for one in (self.memory, self.flash) if one is not None), said)

    def back_and_forth(self, maker: pathlib.Path, blocks: int) -> None:
        node = self.serving(maker)
        self.put(maker, 1, blocks // 2)
        self.end(node, signal.SIGTERM)
        node = self.serving(NEW)
        self.put(NEW, blocks // 2 + 1, blocks)
        self.end(node, signal.SIGTERM)
        node = self.release(OLD).start()
        said = self.until_it_serves_or_ends(node)
        if node.poll() is None:
            self.assert_has(OLD, 1, blocks)
            self.end(node, signal.SIGTERM)
        else:
            self.assert_refused(node, said)
        # Neither the attempt nor the stay has lost anything.
        node = self.serving(NEW)
        self.assert_has(NEW, 1, blocks)


class OnFlash(InMemory):
    """Over twice what memory has: most of it is on flash alone."""

    BLOCKS = 300

    def make_place(self) -> None:
        super().make_place()
        self.flash = self.scratch(NEW.parent)

    def test_all_of_it_was_on_flash(self) -> None:
        node = self.serving(OLD)
        self.put(OLD, 1, self.BLOCKS)
        self.end(node, signal.SIGTERM)
        self.serving(NEW)
        now = self.status(NEW)["now"]
        self.assertEqual(now["blocks"], self.BLOCKS)
        self.assertLess(now["records"], self.BLOCKS // 2)


if __name__ == "__main__":
    unittest.main()
