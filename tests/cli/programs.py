# SPDX-License-Identifier: Apache-2.0
"""The programs, for the tests of this folder: run to their end, a node of a test's own, a page that one wrote. Taken
from BIN_DIR, a test's first argument, which importing this takes away."""

from __future__ import annotations

import contextlib
import html.parser
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Callable
from typing import Any

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
os.umask(0o022)  # other users read what tests give them
TIMEOUT_S = 300
SAYS_S = 100  # until a node has said what it was to say
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")  # before a command: it is killed when who starts it is
KEYS = [f"{i:032x}" for i in range(1, 9)]


def run(*words: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [str(BIN / str(words[0])), *map(str, words[1:])]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=TIMEOUT_S, check=False)


def free_port(ports: int = 1) -> int:
    """The first of so many in a row that nobody uses now, below those that the system gives to connections."""
    while True:
        first = random.SystemRandom().randrange(15_000, 20_000)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + ports):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


class Node:
    """A cisternd; ready when the constructor returns, or ended."""

    memory: tuple[object, ...] = ("--memory", "128MiB")

    def __init__(self, directory: pathlib.Path, *flags: object) -> None:
        self.socket = directory / "socket"
        self.memory_dir = directory / "memory"
        self.flags = flags
        self.on_line: Callable[[str], None] = lambda line: None  # of what it says until it is ready
        self.start()

    def start(self, *flags: object) -> None:
        """With these flags, or with the constructor's. `said` is what it says until it is ready."""
        words = (*self.memory, "--memory-dir", self.memory_dir, "--socket", self.socket, *(flags or self.flags))
        self.command = [str(BIN / "cisternd"), *map(str, words)]
        self.process = subprocess.Popen([*ENDS_WITH_US, *self.command], stderr=subprocess.PIPE, text=True)
        self.said = ""
        while "node ready" not in self.said and (line := self.line()):
            self.said += line
            self.on_line(line)

    def line(self) -> str:
        """The next that it says; nothing where it has ended."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def says(self, *texts: str) -> list[str]:
        """Its lines until one has each text, in this order. A node that does not say them is killed."""
        watchdog = threading.Timer(SAYS_S, self.process.kill)
        watchdog.start()
        lines = []
        try:
            for text in texts:
                while True:
                    lines.append(self.line())
                    assert lines[-1], f"the node ended without saying {text!r}; it said {lines}"
                    if text in lines[-1]:
                        break
        finally:
            watchdog.cancel()
        return lines

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(timeout=TIMEOUT_S)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code

    def cistern(self, command: str, *words: object, stdin: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        return run("cistern", command, "--socket", self.socket, *words, stdin=stdin)

    def json(self, command: str, *words: object) -> Any:
        said = self.cistern(command, *words, "--json")
        assert said.stdout, said.stderr
        return json.loads(said.stdout)


class ProgramTest(unittest.TestCase):
    """A test in a directory of its own, in memory."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(prefix=f"cistern-cli-{os.getpid()}-", dir="/dev/shm")
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)

    def check_ready(self, node: Node) -> None:
        """It ends with the test at the latest."""
        self.addCleanup(lambda: node.process.poll() is None and node.end(signal.SIGKILL))
        self.assertIn("node ready", node.said)

    def run_on_tmpfs(self, mount: pathlib.Path, options: str, script: str) -> subprocess.CompletedProcess[bytes]:
        """A shell's script, in a mount namespace in which `mount`, which is made, is a tmpfs with these options."""
        mount.mkdir()
        result = subprocess.run(
            ["unshare", "--mount", "--map-root-user", "sh", "-c",
             f"mount -t tmpfs -o {options} none {mount} || exit 99; {script}"],
            capture_output=True, timeout=TIMEOUT_S, check=False,
        )
        if result.returncode == 99 or result.stderr.startswith(b"unshare:"):
            self.skipTest("no mount namespace can be made here")
        return result

    def assert_says(self, result: subprocess.CompletedProcess[bytes], code: int, *texts: str) -> None:
        said = result.stderr.decode()
        self.assertEqual(result.returncode, code, said)
        for text in texts:
            self.assertIn(text, said)


class Page(html.parser.HTMLParser):
    """What a page is made of, and what it asks for from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.asks: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.asks += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "srcset", "data")]
