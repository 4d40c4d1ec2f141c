# SPDX-License-Identifier: Apache-2.0
"""A node and its clients in containers of their own: mount, IPC, PID and user namespaces that the test makes.

A box is a process tree with a root of its own (the host's programs, a /dev/shm and a /tmp of its own), whose users
are other users of the host. The socket's directory is all that two boxes have in common.

Usage: share_test.py BIN_DIR [unittest arguments]
"""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from typing import IO, Any

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
os.umask(0o022)  # other users read what tests give them
TIMEOUT_S = 300
KEYS = [f"{i:032x}" for i in range(1, 4)]

LIBC = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER, NEWIPC, NEWPID = 0x20000, 0x10000000, 0x8000000, 0x20000000
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18
PR_SET_PDEATHSIG = 1

# A map of user or group ids: inside, outside, how many.
WHOLE_HOST = "0 0 4294967295"
GUESTS = "0 100000 1000"


def done(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def unshare(what: int) -> None:
    done(LIBC.unshare(what), "unshare")


def mount(source: object, target: object, kind: str, flags: int = 0, data: str = "") -> None:
    words = [str(word).encode() for word in (source, target, kind)]
    done(LIBC.mount(*words, ctypes.c_ulong(flags), data.encode()), f"mount {source} at {target}")


def make_root(root: pathlib.Path, sockets: pathlib.Path, read_only: bool) -> None:
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("tmpfs", root, "tmpfs", 0, "mode=755")
    for name in ("proc", "dev", "tmp", "sockets", "bin-of-test"):
        (root / name).mkdir()
    for name in ("usr", "bin", "lib", "lib64", "etc"):
        if pathlib.Path("/", name).exists():
            (root / name).mkdir()
            mount(f"/{name}", root / name, "", MS_BIND | MS_REC)
    mount(BIN, root / "bin-of-test", "", MS_BIND)
    mount(sockets, root / "sockets", "", MS_BIND)
    if read_only:
        mount("none", root / "sockets", "", MS_BIND | MS_REMOUNT | MS_RDONLY)
    (root / "tmp").chmod(0o1777)
    for name in ("null", "urandom"):
        (root / "dev" / name).touch()
        mount(f"/dev/{name}", root / "dev" / name, "", MS_BIND)
    (root / "dev/shm").mkdir()
    mount("tmpfs", root / "dev/shm", "tmpfs", 0, "mode=1777,size=512m")


class Box:
    """A process in namespaces of its own, with the given pipes; `end` is of all that runs in it."""

    def __init__(self, root: pathlib.Path, sockets: pathlib.Path, ids: str, read_only: bool, words: list[str],
                 stdin: IO[bytes] | int | None = None) -> None:
        root.mkdir()
        self.stdout, out = os.pipe()
        self.stderr, err = os.pipe()
        unshared, tell_unshared = os.pipe()
        mapped, tell_mapped = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
                unshare(NEWNS)
                make_root(root, sockets, read_only)
                unshare(NEWUSER | NEWNS | NEWIPC | NEWPID)
                os.write(tell_unshared, b"y")
                os.read(mapped, 1)
                os.setgroups([])
                os.setresgid(0, 0, 0)
                os.setresuid(0, 0, 0)
                LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # which a change of the user takes back
                os.chroot(root)
                os.chdir("/")
                self._first_of_its_namespace(words, stdin, out, err)
            except BaseException as error:  # a fork of a test runner has nobody else to tell
                os.write(err, f"box: {error}\n".encode())
                os.write(tell_unshared, b"n")
                os._exit(1)
        for fd in (out, err, tell_unshared, mapped):
            os.close(fd)
        answer = os.read(unshared, 1)
        os.close(unshared)
        if answer == b"y":
            for file in ("uid_map", "gid_map"):
                pathlib.Path(f"/proc/{self.pid}/{file}").write_text(ids)
            os.write(tell_mapped, b"y")
        os.close(tell_mapped)

    @staticmethod
    def _first_of_its_namespace(words: list[str], stdin: IO[bytes] | int | None, out: int, err: int) -> None:
        child = os.fork()
        if child == 0:
            LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            mount("proc", "/proc", "proc")
            source = stdin if isinstance(stdin, int) else os.open("/dev/null", os.O_RDONLY)
            for to, fd in enumerate((source, out, err)):
                os.dup2(fd, to)
            os.closerange(3, 1 << 12)
            os.execv(words[0], words)
        signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)

    def end(self, number: int = signal.SIGTERM) -> int:
        os.kill(self.pid, number)
        return self.wait()

    def wait(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


class Said:
    def __init__(self, code: int, stdout: bytes, stderr: str) -> None:
        self.code, self.stdout, self.stderr = code, stdout, stderr


class SharedHost(unittest.TestCase):
    def setUp(self) -> None:
        if os.geteuid() != 0:
            self.skip("makes namespaces of several users: run as root")
        scratch = tempfile.TemporaryDirectory(prefix=f"cistern-share-{os.getpid()}-", dir="/dev/shm")
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)
        self.directory.chmod(0o755)
        self.sockets = self.directory / "sockets"
        self.sockets.mkdir()
        self.boxes = 0
        said = self.run_in_box(WHOLE_HOST, "true", program="/usr/bin/")
        if said.code != 0:
            self.skip(f"this host gives no namespaces: {said.stderr.strip()}")

    def skip(self, why: str) -> None:
        print(f"{self.id()}: Skipped\n{why}", flush=True)  # as `./dev test` sums them up
        self.skipTest(why)

    def box(self, ids: str, *words: object, program: str = "/bin-of-test/", stdin: int | None = None) -> Box:
        self.boxes += 1
        texts = [str(word) for word in words]
        box = Box(self.directory / f"root-{self.boxes}", self.sockets, ids, ids == GUESTS,
                  [program + texts[0], *texts[1:]], stdin)
        self.addCleanup(lambda: box.pid and box.end(signal.SIGKILL))
        self.addCleanup(lambda: (os.close(box.stdout), os.close(box.stderr)))
        return box

    def run_in_box(self, ids: str, *words: object, program: str = "/bin-of-test/", stdin: bytes = b"") -> Said:
        with tempfile.TemporaryFile() as source:
            source.write(stdin)
            source.seek(0)
            box = self.box(ids, *words, program=program, stdin=source.fileno())
            out, err = read_both(box.stdout, box.stderr)
            return Said(box.wait(), out, err.decode())

    def node(self, *flags: object) -> Box:
        """Ready when it returns. It serves in /sockets and has its memory in a /dev/shm that nobody else sees."""
        box = self.box(WHOLE_HOST, "cisternd", "--memory", "64MiB", "--socket", "/sockets/s", *flags)
        self.until_said(box.stderr, b"node ready")
        return box

    def until_said(self, fd: int, text: bytes) -> None:
        said = b""
        while text not in said:
            more = os.read(fd, 4096)
            self.assertTrue(more, said.decode())
            said += more

    def guest(self, command: str, *words: object, user: str = "any", stdin: bytes = b"") -> Said:
        named = ["--node-user", user] if user else []
        return self.run_in_box(GUESTS, "cistern", command, "--socket", "/sockets/s", *named, *words, stdin=stdin)

    def sessions(self) -> int:
        said = subprocess.run([BIN / "cistern", "status", "--json", "--socket", self.sockets / "s"],
                              capture_output=True, timeout=TIMEOUT_S, check=True)
        status: dict[str, Any] = json.loads(said.stdout)
        return int(status["door"]["sessions"]) - 1  # without the one that asks

    def until(self, so: Callable[[], bool]) -> None:
        while not so():  # ctest has the watchdog
            pass


def read_both(out: int, err: int) -> tuple[bytes, bytes]:
    texts = []
    for fd in (out, err):  # what they write fits a pipe
        text = b""
        while more := os.read(fd, 1 << 16):
            text += more
        texts.append(text)
    return texts[0], texts[1]


class Boxes(SharedHost):
    def test_another_user_in_other_namespaces_puts_and_gets_over_the_sockets_directory_alone(self) -> None:
        self.node("--clients", "user:100000")
        body = os.urandom(40_000)
        put = self.guest("put", "--namespace", "n", KEYS[0], "-", stdin=body)
        self.assertEqual(put.code, 0, put.stderr)
        got = self.guest("get", "--namespace", "n", KEYS[0], "-")
        self.assertEqual((got.code, got.stdout), (0, body), got.stderr)
        # And the node's own user, from outside.
        got_here = subprocess.run([BIN / "cistern", "get", "--socket", self.sockets / "s", "--namespace", "n",
                                   KEYS[0], "-"], capture_output=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual((got_here.returncode, got_here.stdout), (0, body), got_here.stderr)

    def test_who_is_let_in_does_not_steer(self) -> None:
        self.node("--clients", "any")
        for steering in (("reads", "off"), ("memory", "64MiB")):
            said = self.guest("admin", *steering)
            self.assertEqual(said.code, 1, steering)
            self.assertIn("steering a node is its own user's", said.stderr)
        here = subprocess.run([BIN / "cistern", "admin", "--socket", self.sockets / "s", "reads", "off"],
                              capture_output=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(here.returncode, 0, here.stderr)

    def test_the_doctor_of_a_user_who_is_not_let_in_says_who_is_to_ask(self) -> None:
        self.node()
        said = self.guest("doctor").stdout.decode()
        self.assertIn("denied: ", said)
        self.assertIn("run this as the node's user", said)
        self.assertNotIn("start one", said)

    def test_a_group_lets_its_members_in(self) -> None:
        self.node("--clients", "group:100000")
        self.assertEqual(self.guest("status").code, 0)

    def test_who_is_not_named_is_told_what_to_write(self) -> None:
        self.node("--clients", "user:7")
        # The mode of the socket's file lets it try; who it is, the kernel says.
        said = self.guest("status")
        self.assertEqual(said.code, 1)
        self.assertIn('this client is user 100000: name it in the node\'s setting clients, as in clients = '
                      '["user:100000"]', said.stderr)

    def test_who_listens_is_believed_only_where_that_was_said(self) -> None:
        self.node("--clients", "any")
        # The node's user has no number in the client's namespace.
        said = self.guest("status", user="")
        self.assertEqual(said.code, 1)
        self.assertIn("a user without a number in this namespace listens there", said.stderr)
        self.assertIn("set node_user to any", said.stderr)
        said = self.guest("status", user="990")
        self.assertEqual(said.code, 1)

    def test_r15_a_session_ends_with_its_process_in_another_pid_namespace(self) -> None:
        self.node("--clients", "any")
        top = self.box(GUESTS, "cistern", "top", "--socket", "/sockets/s", "--node-user", "any")
        self.until_said(top.stdout, b"\n")
        self.assertEqual(self.sessions(), 1)
        top.end(signal.SIGKILL)
        self.until(lambda: self.sessions() == 0)

    def test_a_node_that_ends_is_seen_from_another_pid_namespace(self) -> None:
        node = self.node("--clients", "any")
        top = self.box(GUESTS, "cistern", "top", "--socket", "/sockets/s", "--node-user", "any")
        self.until_said(top.stdout, b"\n")
        node.end(signal.SIGKILL)
        self.until_said(top.stdout, b"/sockets/s")


if __name__ == "__main__":
    unittest.main()
