# SPDX-License-Identifier: Apache-2.0
"""A node with flash as people and scripts meet it: what it finds again, what its devices do, bad input.

Usage: flash_test.py BIN_DIR [unittest arguments]
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import tempfile
import time
import unittest
from typing import Any

from programs import BIN, TIMEOUT_S, Node, ProgramTest, run

JOURNAL = ("journal", "journal.copy")
BODY_BYTES = 2 << 20
MANY = 100  # of these, more than the memory below


def key(number: int) -> str:
    return f"{number + 1:032x}"


def body(number: int) -> bytes:
    return bytes([number % 251 + 1]) * BODY_BYTES


class FlashNode(Node):
    def put(self, number: int) -> None:
        result = self.cistern("put", "--namespace", "demo", key(number), "-", stdin=body(number))
        assert result.returncode == 0, result.stderr.decode()

    def get(self, number: int) -> bytes | None:
        """None: a miss. An answer that a loaded host makes late is asked for again, and any other fails the test."""
        while True:
            result = self.cistern("get", "--namespace", "demo", key(number), "-")
            if result.returncode == 0:
                return result.stdout
            if b"too_late: " not in result.stderr:
                said = result.stderr.decode()
                assert f": miss: block {key(number)} is not here" in said or ": miss: namespace demo" in said, said
                return None

    def put_many(self, count: int) -> None:
        """Returns when all of them are on flash. Never are there more that are not than memory has room for: those
        would be evicted unwritten."""
        for number in range(count):
            self.put(number)
            if number % 10 == 9 or number + 1 == count:
                self.await_written(number + 1)

    def await_written(self, count: int) -> None:
        until = time.monotonic() + TIMEOUT_S
        while self.status()["store"]["written_down"] < count:
            assert time.monotonic() < until, "flash does not take what was put"

    def status(self) -> dict[str, Any]:
        return dict(self.json("status"))


class FlashTest(ProgramTest):
    def setUp(self) -> None:
        super().setUp()
        # Beside the programs, on a disk.
        disk = tempfile.TemporaryDirectory(prefix=f"cistern-flash-{os.getpid()}-", dir=BIN.parent)
        self.addCleanup(disk.cleanup)
        self.disk = pathlib.Path(disk.name)
        self.flash = f"{self.disk}:1GiB"

    def node(self, *flags: object) -> FlashNode:
        node = FlashNode(self.directory, *flags)
        self.check_ready(node)
        return node

    def refused(self, code: int, *texts: str, flags: tuple[object, ...]) -> None:
        """Such a node does not start, and says why; what it was given on disk is as before."""
        before = self.files()
        where = ("--memory", "128MiB", "--memory-dir", self.directory / "m", "--socket", self.directory / "s")
        self.assert_says(run("cisternd", *where, *flags), code, *texts)
        self.assertEqual(self.files(), before)

    def files(self) -> dict[str, int]:
        """Of the flash directory, with their sizes. A lock and an empty journal hold nothing, and the journal of a
        node that runs grows by itself."""
        found = (path for path in self.disk.rglob("*") if path.is_file() and path.name != "lock")
        sizes = {path: path.stat().st_size for path in found}
        return {
            str(path): 1 if path.name in JOURNAL else size
            for path, size in sizes.items()
            if size > 0 or path.name not in JOURNAL
        }

    def tool(self, *words: object) -> str:
        """A program of the system, as root; the test is skipped where it cannot run."""
        if shutil.which(str(words[0])) is None:
            self.skipTest(f"{words[0]} is not installed")
        result = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        if result.returncode != 0:
            self.skipTest(f"{words[0]} cannot run here: {result.stderr.strip()}")
        return result.stdout.strip()

    def loop_device(self, size_bytes: int, *flags: object) -> str:
        """A block device over a file of zeroes in memory. It is there as long as anybody has it open: as this test
        has, whose end, however it comes, is its own."""
        image = self.directory / "image"
        with open(image, "wb") as file:
            file.truncate(size_bytes)
        device = self.tool("losetup", "--find", "--show", *flags, image)
        self.addCleanup(os.close, os.open(device, os.O_RDONLY | os.O_CLOEXEC))
        self.tool("losetup", "--detach", device)
        return device

    def mounted(self, size_bytes: int = 1 << 30) -> pathlib.Path:
        """A file system that a test may freeze or fill."""
        mounted = self.disk / "mounted"
        device = self.loop_device(size_bytes)
        self.tool("mkfs.ext4", "-q", device)
        mounted.mkdir()
        self.tool("mount", device, mounted)
        self.addCleanup(lambda: subprocess.run(["umount", "--lazy", mounted], check=False))
        return mounted


class WhatANodeDoes(FlashTest):
    def test_what_memory_has_no_room_for_is_found_on_flash(self) -> None:
        node = self.node("--flash", self.flash)
        node.put_many(MANY)
        wrong = [number for number in range(MANY) if node.get(number) != body(number)]
        self.assertEqual(wrong, [])
        flash = node.status()["flash"]
        self.assertGreater(flash["fetched_records"], 0)
        self.assertGreaterEqual(flash["live_bytes"], MANY * BODY_BYTES // 2)
        self.assertGreaterEqual(flash["write_amplification"], 1)
        said = node.cistern("status").stdout
        self.assertIn(b"flash.live_bytes", said)
        self.assertIn(b"flash.devices.0.in_service", said)

    def test_flash_is_there_after_a_kill_and_after_a_reboot(self) -> None:
        node = self.node("--flash", self.flash)
        node.put_many(MANY)
        node.end(signal.SIGKILL)
        node.start()
        self.assertEqual([n for n in range(MANY) if node.get(n) != body(n)], [])
        node.end(signal.SIGTERM)
        shutil.rmtree(node.memory_dir)  # what a reboot takes
        node.start()
        self.assertEqual([n for n in range(MANY) if node.get(n) != body(n)], [])

    def test_a_start_beside_a_device_that_hangs_is_without_it(self) -> None:
        mounted = self.mounted()
        node = self.node("--flash", f"{mounted}:512MiB", "--journal-dir", self.disk)
        node.put_many(4)
        node.end(signal.SIGKILL)  # with a region that the start has to close
        self.tool("fsfreeze", "--freeze", mounted)

        def thaw(line: str = "after 93 s it is still") -> None:
            if "after 93 s it is still" in line:
                subprocess.run(["fsfreeze", "--unfreeze", mounted], capture_output=True, check=False)

        self.addCleanup(thaw)
        node.on_line = thaw
        node.start()
        self.assertRegex(node.said, f"{mounted}/default: is out of service: a .* has hung")
        self.assertIn("node ready", node.said)
        self.assertEqual([node.get(n) for n in range(4)], [body(n) for n in range(4)])
        thaw()
        until = time.monotonic() + TIMEOUT_S
        while node.cistern("device", "bring-back", mounted).returncode != 0:
            self.assertLess(time.monotonic(), until, "a device that has thawed is not taken in")
        self.assertEqual([device["in_service"] for device in node.json("device", "list")["devices"]], [True])
        node.end()

    def test_an_end_beside_a_device_that_hangs_says_what_it_waits_for(self) -> None:
        mounted = self.mounted()
        node = self.node("--flash", f"{mounted}:512MiB", "--journal-dir", self.disk)
        node.put(0)
        node.await_written(1)
        self.tool("fsfreeze", "--freeze", mounted)
        thaw = ["fsfreeze", "--unfreeze", mounted]
        self.addCleanup(subprocess.run, thaw, capture_output=True, check=False)
        node.put(1)
        node.process.send_signal(signal.SIGTERM)
        said = node.says("node end: after 3 s it is still")
        self.assertIn(f"waiting for transfers of flash ({mounted}/default)", said[-1])
        self.tool(*thaw)
        self.assertEqual(node.end(), 0)

    def test_a_start_that_a_file_system_keeps_waiting_says_so(self) -> None:
        mounted = self.mounted()
        node = self.node("--flash", f"{mounted}:512MiB")
        node.put(0)
        node.end()
        self.tool("fsfreeze", "--freeze", mounted)

        def thaw(line: str = "it is still") -> None:
            if "it is still" in line:
                subprocess.run(["fsfreeze", "--unfreeze", mounted], capture_output=True, check=False)

        self.addCleanup(thaw)
        node.on_line = thaw
        node.start()
        self.assertRegex(node.said, "after 3 s it is still .*; a file system that is frozen")
        self.assertIn("node ready", node.said)
        self.assertEqual(node.get(0), body(0))
        node.end()

    def test_dropped_stays_dropped_when_only_flash_is_left(self) -> None:
        node = self.node("--flash", self.flash)
        node.put_many(4)
        node.end()
        node.start()
        node.cistern("drop", "--namespace", "demo", key(1))
        node.end(signal.SIGKILL)
        shutil.rmtree(node.memory_dir)
        node.start()
        self.assertEqual([node.get(n) == body(n) for n in range(4)], [True, False, True, True])
        store = node.status()["store"]
        self.assertGreaterEqual(store["recovery_dropped"], 1)
        self.assertEqual(store["recovery_refused"], 0)

    def test_a_node_that_begins_to_have_flash_keeps_what_it_had(self) -> None:
        node = self.node()
        node.put(0)
        node.put(1)
        node.cistern("drop", "--namespace", "demo", key(1))
        node.end()
        node.start("--flash", self.flash)
        self.assertIn("taken along", node.said)
        self.assertEqual(node.get(0), body(0))
        self.assertIsNone(node.get(1))
        self.assertEqual(list(self.directory.rglob("journal")), [])
        self.assertEqual(node.status()["node"]["journal"], str(self.disk / "default"))
        node.end()
        node.start("--loop", "epoll")
        self.assertIn("not believed", node.said)
        self.assertGreaterEqual(node.status()["store"]["recovery_refused"], 1)
        self.assertIsNone(node.get(0))
        self.assertIsNone(node.get(1), "dropped under the other journal")

    def test_another_alignment_takes_nothing_from_flash(self) -> None:
        node = self.node("--flash", self.flash)
        node.put_many(20)
        device = node.json("device", "list")["devices"][0]["id"]
        node.end()
        node.start("--flash", self.flash, "--alignment", "512B")
        self.assertIn("keeps the alignment 4096", node.said)
        self.assertEqual(node.json("device", "list")["devices"][0]["id"], device)
        self.assertEqual([n for n in range(20) if node.get(n) != body(n)], [])
        node.put(20)
        node.await_written(1)
        node.cistern("drop", "--namespace", "demo", *(key(n) for n in range(21)))
        self.assertEqual([n for n in range(21) if node.get(n) is not None], [])
        self.assertEqual(node.status()["flash"]["live_bytes"], 0)
        self.assertEqual(node.end(), 0)

    def test_flash_that_is_new_has_the_alignment_of_the_memory_that_is_there(self) -> None:
        node = self.node("--alignment", "512B")
        node.end()
        node.start("--flash", self.loop_device(512 << 20), "--journal-dir", self.disk)
        node.put_many(20)
        self.assertEqual(node.end(), 0)

    def test_what_was_dropped_in_a_start_without_flash_stays_away(self) -> None:
        node = self.node("--flash", self.flash)
        node.put_many(2)
        node.end()
        node.start("--loop", "epoll")  # no flash
        node.put(0)
        self.assert_says(node.cistern("drop", "--namespace", "demo", key(0)), 0)
        node.end()
        node.start("--flash", self.flash)
        self.assertIsNone(node.get(0))
        self.assertIn("a node ran without it", node.said)
        node.put(1)
        self.assertEqual(node.get(1), body(1))

    def test_what_fits_is_kept_in_another_size(self) -> None:
        node = self.node("--flash", self.flash)
        node.put_many(20)
        node.end()
        shutil.rmtree(node.memory_dir)
        for size in ("2GiB", "1GiB"):  # what was written lies at the front
            node.start("--flash", f"{self.disk}:{size}")
            self.assertEqual([n for n in range(20) if node.get(n) != body(n)], [], size)
            node.end()

    def test_a_device_is_taken_out_and_brought_back(self) -> None:
        second = tempfile.TemporaryDirectory(prefix=f"cistern-flash-{os.getpid()}-", dir=BIN.parent)
        self.addCleanup(second.cleanup)
        node = self.node("--flash", self.flash, "--flash", f"{second.name}:1GiB")
        node.put(0)
        listed = node.json("device", "list")["devices"]
        self.assertEqual([device["in_service"] for device in listed], [True, True])
        out = node.json("device", "take-out", second.name)["devices"]
        self.assertEqual([device["in_service"] for device in out], [True, False])
        self.assertEqual([device["read_estimate_us"] is None for device in out], [False, True])
        self.assertNotEqual(out[1]["why"], "")
        self.assertIn(b"out of service", node.cistern("device", "list").stdout)
        node.put(1)
        self.assert_says(node.cistern("device", "bring-back", second.name), 0)
        back = node.json("device", "list")["devices"]
        self.assertEqual([device["in_service"] for device in back], [True, True])
        self.assertNotEqual(back[1]["id"], listed[1]["id"])
        self.assertEqual([node.get(0), node.get(1)], [body(0), body(1)])
        self.assert_says(node.cistern("device", "take-out", "/no/such"), 1, "/no/such", second.name)

    def test_an_empty_disk_in_the_place_of_another_is_brought_back(self) -> None:
        second = tempfile.TemporaryDirectory(prefix=f"cistern-flash-{os.getpid()}-", dir=BIN.parent)
        self.addCleanup(second.cleanup)
        node = self.node("--flash", self.flash, "--flash", f"{second.name}:1GiB")
        node.json("device", "take-out", second.name)
        own = pathlib.Path(second.name) / "default"
        shutil.rmtree(own)
        self.assert_says(node.cistern("device", "bring-back", second.name), 0)
        self.assertEqual(stat.S_IMODE(own.stat().st_mode), 0o700)
        self.assertEqual([device["in_service"] for device in node.json("device", "list")["devices"]], [True, True])
        node.end()
        node.start()
        self.assertIn("node ready", node.said)
        node.json("device", "take-out", second.name)
        shutil.rmtree(own)
        own.mkdir(mode=0o755)
        self.assert_says(node.cistern("device", "bring-back", second.name), 1, str(own), "mode 0755")

    def test_a_drive_that_is_gone_at_the_start_is_done_without(self) -> None:
        second = pathlib.Path(tempfile.mkdtemp(prefix=f"cistern-flash-{os.getpid()}-", dir=BIN.parent))
        away = second.with_name(second.name + "-away")
        for path in (second, away):
            self.addCleanup(shutil.rmtree, path, ignore_errors=True)
        node = self.node("--flash", self.flash, "--flash", f"{second}:1GiB")
        node.put_many(8)
        node.end()
        second.rename(away)
        # It comes late: the node waits for it, and has all that is on it.
        node.on_line = lambda line: "it is waited for" in line and away.rename(second)
        node.start()
        self.assertIn(f"flash: {second}: No such file or directory (ENOENT); it is waited for", node.said)
        self.assertIn("node ready", node.said)
        self.assertEqual([device["in_service"] for device in node.json("device", "list")["devices"]], [True, True])
        self.assertEqual([node.get(number) for number in range(8)], [body(number) for number in range(8)])
        node.end()
        # It does not come.
        second.rename(away)
        node.on_line = lambda line: None
        node.start()
        self.assertIn("the node starts without it", node.said)
        self.assertIn("node ready", node.said)
        listed = node.json("device", "list")["devices"]
        self.assertEqual([device["in_service"] for device in listed], [True, False])
        self.assertIn("No such file or directory", listed[1]["why"])
        for number in range(8):
            self.assertIn(node.get(number), (None, body(number)))
        second.mkdir()
        self.assert_says(node.cistern("device", "bring-back", second), 0)
        self.assertEqual([device["in_service"] for device in node.json("device", "list")["devices"]], [True, True])

    def test_replay_compares_every_byte_and_leaves_nothing(self) -> None:
        trace = "generated:sessions=60,turns=5,seed=3"
        for admit in ("all", "second-hit"):
            words = ("--memory", "64MiB", "--flash", self.flash, "--block-bytes", "256KiB", "--flash-admit", admit)
            result = run("cistern", "replay", trace, *words, "--json")
            self.assert_says(result, 0)
            found = json.loads(result.stdout)
            self.assertEqual(found["wrong_bytes"], 0)
            self.assertEqual(found["bytes_verified"], found["hits"] * (256 << 10))
            self.assertGreater(found["hits_by_tier"]["memory"], 0)
            self.assertGreater(found["hits_by_tier"]["flash"], 0)
            self.assertEqual(sum(found["hits_by_tier"].values()), found["hits"])
            self.assertGreaterEqual(found["flash"]["write_amplification"], 1)
            self.assertEqual(list(self.disk.iterdir()), [])

    def test_status_has_the_budget_that_a_reload_brought(self) -> None:
        config = self.directory / "cistern.toml"
        config.write_text('flash_budget = "2TiB/day"\n')
        node = self.node("--flash", self.flash, "--config", config)
        for text, budget in (('flash_budget = "500GiB/day"\n', 500 << 30), ("", None)):
            config.write_text(text)
            node.process.send_signal(signal.SIGHUP)
            node.says("reload: flash_budget: ")
            self.assertEqual(node.status()["flash"]["budget_bytes_a_day"], budget)

    def test_replay_says_which_flash_cannot_be_looked_at(self) -> None:
        said = run("cistern", "replay", "generated:sessions=1,turns=1,seed=3", "--memory", "64MiB", "--flash",
                   f"/{'x' * 300}:1GiB")
        self.assert_says(said, 2, "xxx", "File name too long")
        self.assertNotIn("thread", said.stderr.decode())

    def test_replay_names_the_flash_that_was_given(self) -> None:
        words = ("replay", "generated:sessions=1,turns=1,seed=3", "--memory", "64MiB", "--flash")
        self.assert_says(run("cistern", *words, self.disk), 2, f"say how much, as in {self.disk}:100GiB")
        said = run("cistern", *words, f"{self.disk}:1MiB")
        self.assert_says(said, 2, f"flash device {self.disk}/default: size is 1MiB")

    def test_a_raw_device_serves_and_comes_back(self) -> None:
        device = self.loop_device(512 << 20)
        node = self.node("--flash", device, "--journal-dir", self.disk)
        node.put_many(MANY)
        node.end(signal.SIGKILL)
        shutil.rmtree(node.memory_dir)
        node.start()
        found = [number for number in range(MANY) if node.get(number) == body(number)]
        self.assertGreater(len(found), MANY // 2)


class WhatOthersDoToItsFiles(FlashTest):
    """Somebody fills its disk or cleans it up while it runs."""

    def doctor(self, node: FlashNode, name: str) -> list[str]:
        """The verdicts on it."""
        found = json.loads(node.cistern("doctor", "--json").stdout)["findings"]
        return [finding["verdict"] for finding in found if finding["name"] == name]

    def test_a_full_disk_below_the_journal_is_said_and_starts_go_on(self) -> None:
        mounted = self.mounted(16 << 20)

        def fill() -> None:
            with open(mounted / "fill", "ab", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(1024)) > 0:
                    pass

        node = self.node("--flash", self.flash, "--journal-dir", mounted)
        fill()
        for number in range(200):
            put = node.cistern("put", "--namespace", f"n{number}", key(0), "-", stdin=b"kv")
            if put.returncode != 0:
                break
        self.assert_says(put, 1, f"journal: {mounted}/default takes nothing", "No space left", "make room there")
        node.says("until then drops and new namespaces are refused")
        # It gives up its spare.
        self.assert_says(node.cistern("put", "--namespace", "more", key(0), "-", stdin=b"kv"), 0)
        node.says(f"journal: {mounted}/default takes what is written again")
        self.assertGreaterEqual(node.status()["journal"]["failures"], 1)
        for _ in range(3):
            fill()
            node.end(signal.SIGKILL)
            node.start()
            self.assertIn("node ready", node.said)
        self.assertEqual(self.doctor(node, "journal"), ["ok"])

    def test_a_journal_that_was_removed_is_written_anew(self) -> None:
        node = self.node("--flash", self.flash)
        node.put(0)
        node.put(1)
        for name in JOURNAL:
            (self.disk / "default" / name).unlink()
        node.says("were removed by another program: they are written anew")
        self.assert_says(node.cistern("drop", "--namespace", "demo", key(0)), 0)
        node.end()
        node.start()
        self.assertIn("node ready", node.said)
        self.assertEqual([node.get(0), node.get(1)], [None, body(1)])

    def test_a_journal_that_lies_in_memory_is_said_by_start_and_doctor(self) -> None:
        journal = self.directory / "j"
        journal.mkdir()
        settings = self.directory / "settings.toml"
        for number, (where, said) in enumerate(((self.disk, []), (journal, ["warning"]))):
            settings.write_text(f'memory = "128MiB"\nmemory_dir = "{self.directory}/{number}"\n'
                                f'flash = "{self.disk}:256MiB"\njournal_dir = "{where}"\n')
            found = json.loads(run("cistern", "doctor", "--config", settings, "--json").stdout)["findings"]
            self.assertEqual([one["verdict"] for one in found if one["name"] == "reboot"], said)
        node = self.node("--flash", self.flash, "--journal-dir", journal)
        self.assertIn(f"journal_dir: {journal}/default lies in memory", node.said)
        self.assertEqual(self.doctor(node, "reboot"), ["warning"])

    def test_a_journal_directory_that_was_emptied_takes_nothing(self) -> None:
        directory = self.directory / "j"
        directory.mkdir()
        node = self.node("--flash", self.flash, "--journal-dir", directory)
        node.put(0)
        self.assertEqual(self.doctor(node, "journal"), ["ok"])
        shutil.rmtree(directory / "default")
        node.says("the lock of that directory")
        self.assert_says(node.cistern("drop", "--namespace", "demo", key(0)), 1, "restart the node")
        self.assertEqual(self.doctor(node, "journal"), ["problem"])
        node.put(1)
        self.assertEqual(node.get(1), body(1))

    def test_a_file_of_flash_that_was_removed_has_no_blocks(self) -> None:
        node = self.node("--flash", self.flash)
        node.put(0)
        node.await_written(1)
        (self.disk / "default" / "flash").unlink()
        node.says("is out of service: its file was removed by another program")
        self.assertEqual(self.doctor(node, "devices"), ["problem"])
        self.assert_says(node.cistern("admin", "drain", "--within", "1s"), 1, "1 blocks")
        node.cistern("admin", "drain", "off")
        self.assert_says(node.cistern("device", "bring-back", self.disk), 0)
        node.put(1)
        node.await_written(1)

    def test_a_socket_that_was_removed_is_said(self) -> None:
        node = self.node()
        settings = self.directory / "settings.toml"
        settings.write_text(f'memory = "128MiB"\nmemory_dir = "{node.memory_dir}"\nsocket = "{node.socket}"\n')
        pathlib.Path(node.socket).unlink()
        node.says(f"socket: {node.socket} was removed by another program")
        said = run("cistern", "doctor", "--config", settings)
        self.assert_says(said, 1)
        self.assertIn(b"one runs, which has memory_dir", said.stdout)
        shutil.rmtree(node.memory_dir)
        node.says("memory_dir: the files in")
        self.assertEqual(node.end(), 0)


class BadInput(FlashTest):
    """A message that names the thing, its value, its limit and the way out; nothing is touched."""

    def test_what_is_not_there(self) -> None:
        self.refused(2, f"{self.disk}/none", flags=("--flash", f"{self.disk}/none:1GiB"))
        self.refused(2, "/dev/none", flags=("--flash", "/dev/none"))
        self.refused(2, "journal_dir", flags=("--flash", self.flash, "--journal-dir", self.disk / "none"))
        (self.disk / "file").write_text("mine")
        self.refused(2, "neither a directory", flags=("--flash", f"{self.disk / 'file'}:1GiB"))

    def test_sizes_and_policies(self) -> None:
        self.refused(2, "100GiB", flags=("--flash", self.disk))
        self.refused(2, "zero", flags=("--flash", f"{self.disk}:0GiB"))
        self.refused(2, "1MiB", flags=("--flash", f"{self.disk}:1MiB"))
        self.refused(2, "--flash-budget", "leave", flags=("--flash", self.flash, "--flash-budget", "0"))
        self.refused(2, "--flash-write", "through", flags=("--flash", self.flash, "--flash-write", "trough"))
        self.refused(2, "same", flags=("--flash", self.flash, "--flash", f"{self.disk}/:1GiB"))
        self.refused(1, str(self.disk), "room", flags=("--flash", f"{self.disk}:400TiB"))

    def test_two_nodes_on_one_flash(self) -> None:
        node = self.node("--flash", self.flash)
        self.refused(1, str(self.disk), str(node.process.pid), flags=("--flash", self.flash))
        self.refused(1, str(self.disk), flags=("--flash", self.flash, "--journal-dir", self.directory))
        self.assert_says(node.cistern("status"), 0)

    def test_a_file_that_is_not_ours(self) -> None:
        (self.disk / "default").mkdir(mode=0o700)
        precious = self.disk / "default" / "flash"
        precious.write_bytes(b"precious " * 100_000)
        self.refused(1, str(precious.parent), "--discard-foreign", flags=("--flash", self.flash))
        self.assertEqual(precious.read_bytes(), b"precious " * 100_000)
        node = self.node("--flash", self.flash, "--discard-foreign")
        node.put(0)

    def test_a_device_with_a_file_system(self) -> None:
        device = self.loop_device(256 << 20)
        self.tool("mkfs.ext4", "-q", device)
        before = (self.directory / "image").read_bytes()
        flags = ("--flash", device, "--journal-dir", self.disk)
        self.refused(1, device, "--discard-foreign", flags=flags)
        self.assertEqual((self.directory / "image").read_bytes(), before)
        node = self.node(*flags, "--discard-foreign")
        node.put(0)

    def test_flash_whose_journal_is_gone_with_its_drive_is_refused_with_the_way_out(self) -> None:
        second = tempfile.TemporaryDirectory(prefix=f"cistern-flash-{os.getpid()}-", dir=BIN.parent)
        self.addCleanup(second.cleanup)
        node = self.node("--flash", self.flash, "--flash", f"{second.name}:1GiB")
        node.put_many(4)
        node.end()
        shutil.rmtree(self.disk / "default")  # another drive is in its place
        node.start()
        self.assertRegex(node.said, f"{second.name}.*gone with its drive.*--discard-foreign")
        self.assertEqual(node.end(), 1)
        node.start(*node.flags, "--discard-foreign")
        self.assertIn("node ready", node.said)
        self.assertEqual([node.get(n) for n in range(4)], [None] * 4)
        self.assertEqual(node.end(), 0)

    def test_another_alignment_formats_flash(self) -> None:
        node = self.node("--flash", self.flash)
        node.put_many(4)
        node.end()
        self.assert_says(run("cistern", "forget", "--memory-dir", node.memory_dir), 0)
        node.start(*node.flags, "--alignment", "512B")
        if "needs transfers aligned to 4096 bytes" in node.said:
            self.skipTest("the disk beside the programs takes no transfers of 512 bytes")
        self.assertRegex(node.said, "formatted, .*its unit is 4096 bytes and the arena's alignment is 512")
        self.assertEqual([node.get(n) for n in range(4)], [None] * 4)
        node.end()

    def test_flash_of_another_journal_is_refused_by_name(self) -> None:
        node = self.node("--flash", self.flash)
        node.put(0)
        node.end()
        other = self.directory / "other"
        other.mkdir()
        flags = ("--flash", self.flash, "--journal-dir", other)
        self.refused(1, str(self.disk), "--journal-dir", "--discard-foreign", flags=flags)
        node.start("--flash", self.flash)
        self.assertEqual(node.get(0), body(0))

    def test_a_device_that_is_mounted(self) -> None:
        device = self.loop_device(256 << 20)
        self.tool("mkfs.ext4", "-q", device)
        mount = self.directory / "mounted"
        mount.mkdir()
        self.tool("mount", device, mount)
        self.addCleanup(subprocess.run, ["umount", str(mount)], check=False)
        self.refused(1, device, flags=("--flash", device, "--journal-dir", self.disk, "--discard-foreign"))

    def test_two_nodes_on_one_raw_device(self) -> None:
        device = self.loop_device(256 << 20)
        node = self.node("--flash", device, "--journal-dir", self.disk)
        other = self.directory / "other"
        other.mkdir()
        self.refused(1, device, flags=("--flash", device, "--journal-dir", other, "--discard-foreign"))
        node.put(0)
        self.assertEqual(node.get(0), body(0))

    def test_raw_devices_need_a_place_for_the_journal(self) -> None:
        device = self.loop_device(256 << 20)
        self.refused(2, "journal_dir", "--journal-dir", flags=("--flash", device))

    def test_a_sector_larger_than_a_unit(self) -> None:
        device = self.loop_device(256 << 20, "--sector-size", 4096)
        flags = ("--flash", device, "--journal-dir", self.disk, "--alignment", "512B")
        self.refused(2, device, "4096", "512", flags=flags)

    def test_a_device_that_is_read_only(self) -> None:
        device = self.loop_device(256 << 20, "--read-only")
        self.refused(1, device, flags=("--flash", device, "--journal-dir", self.disk))

    def test_a_directory_that_is_mounted_read_only(self) -> None:
        mount = self.directory / "mounted"
        result = self.run_on_tmpfs(
            mount, "ro,size=64m",
            f"exec {BIN}/cisternd --memory 128MiB"
            f" --memory-dir {self.directory}/m --socket {self.directory}/s --flash {mount}:32MiB",
        )
        self.assert_says(result, 1, str(mount), "ead-only")

    def test_device_command(self) -> None:
        node = self.node()
        self.assert_says(node.cistern("device", "lsit"), 2, "lsit", "list")
        self.assert_says(node.cistern("device", "take-out"), 2, "path")
        self.assert_says(node.cistern("device", "list", "/x"), 2, "/x")
        self.assert_says(node.cistern("device", "bring-back", "/x"), 1, "no flash")
        self.assertIn(b"--flash", node.cistern("device", "list").stdout)


if __name__ == "__main__":
    unittest.main()
