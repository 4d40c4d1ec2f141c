# SPDX-License-Identifier: Apache-2.0
"""The programs as people and scripts meet them: what they print, how they exit, what they say of bad input.

Usage: cli_test.py BIN_DIR [unittest arguments]
"""

import errno
import fcntl
import itertools
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import unittest

from programs import BIN, KEYS, TIMEOUT_S, Node, ProgramTest, run

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class CliTest(ProgramTest):
    def node(self, *flags: object) -> Node:
        node = Node(self.directory, *flags)
        self.check_ready(node)
        return node


class WhatANodeDoes(CliTest):
    def test_bench_that_is_interrupted_leaves_nothing(self) -> None:
        words = ("bench", "--only", "get", "--rounds", "20", "--working-set", "16MiB", "--memory-dir", self.directory)
        unheard = ["env", "--ignore-signal=CHLD"]  # as some supervisors start their programs
        for number, by in ((signal.SIGINT, []), (signal.SIGTERM, []), (signal.SIGTERM, unheard)):
            bench = subprocess.Popen([*by, BIN / "cistern", *words], stdout=subprocess.PIPE)
            assert bench.stdout is not None
            for _ in range(2):  # the head, and a row of a node that goes on to others
                bench.stdout.readline()
            self.assertTrue(list(self.directory.iterdir()))
            bench.send_signal(number)
            bench.stdout.read()
            self.assertEqual(bench.wait(TIMEOUT_S), -number)
            bench.stdout.close()
            self.assertEqual(list(self.directory.iterdir()), [])

    @unittest.skipUnless((BIN / "redis_peer").exists() and shutil.which("redis-server"), "needs redis and hiredis")
    def test_a_peer_that_is_interrupted_leaves_nothing(self) -> None:
        def works_here(process: pathlib.Path) -> bool:
            try:
                return str(self.directory) in os.readlink(process / "cwd")
            except OSError:  # it has ended, or is another user's
                return False

        def of_redis() -> list[pathlib.Path]:
            return [process for process in pathlib.Path("/proc").glob("[0-9]*") if works_here(process)]

        for number in (signal.SIGINT, signal.SIGTERM):
            peer = subprocess.Popen([BIN / "redis_peer", "--rounds", "1000", "--memory-dir", self.directory])
            while not list(self.directory.glob("**/redis.sock")):
                self.assertIsNone(peer.poll())
            self.assertTrue(of_redis())
            peer.send_signal(number)
            self.assertEqual(peer.wait(TIMEOUT_S), -number)
            self.assertEqual(list(self.directory.iterdir()), [])
            while of_redis():  # killed with who started it
                os.sched_yield()

    def test_a_demo_that_nobody_reads_and_one_whose_terminal_is_closed_leave_nothing(self) -> None:
        words = ("--sessions", "5000", "--memory", "128MiB", "--flash", "256MiB", "--flash-dir", self.directory)
        for hangs_up in (False, True):
            demo = subprocess.Popen([BIN / "cistern-demo", *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            assert demo.stdout is not None
            demo.stdout.readline()
            if hangs_up:
                demo.send_signal(signal.SIGHUP)
                demo.stdout.read()
            demo.stdout.close()
            self.assertEqual(demo.wait(TIMEOUT_S), 1)
            self.assertEqual(list(self.directory.iterdir()), [])

    def test_a_demo_says_before_it_starts_what_does_not_fit(self) -> None:
        def demo(*words: object) -> subprocess.CompletedProcess[bytes]:
            return run("cistern-demo", "--flash-dir", self.directory, *words)

        self.assert_says(demo("--memory", "1B"), 2, "--memory: 0B", "need 64MiB", "give more")
        self.assert_says(demo("--memory", "128MiB", "--block-bytes", "4MiB"), 2, "need 512MiB")
        self.assert_says(demo("--block-bytes", "0B"), 2, "--block-bytes: 0B")
        self.assert_says(demo("--block-bytes", "65MiB"), 2, "--block-bytes: 65MiB", "64MiB")

    def test_a_demo_of_many_clients_and_little_memory_ends_well(self) -> None:
        for words in (("--clients", 16, "--memory", "256MiB"), ("--memory", "64MiB")):
            demo = run("cistern-demo", "--sessions", 60, "--turns", 3, *words, "--flash", "0B")
            self.assert_says(demo, 0)
            self.assertIn(b"wrong bytes            0", demo.stdout)

    def test_a_put_reads_no_more_than_a_block_may_have(self) -> None:
        node = self.node()
        put = node.cistern("put", "--namespace", "demo", KEYS[0], "/dev/zero")
        self.assert_says(put, 2, "file /dev/zero: has more than 64MiB")
        put = node.cistern("put", "--namespace", "demo", KEYS[0], self.directory)
        self.assert_says(put, 2, f"file {self.directory}: ", "Is a directory")

    def test_files_that_were_removed_under_a_node_are_said(self) -> None:
        node = self.node()
        shutil.rmtree(node.memory_dir)
        node.says(f"the files in {node.memory_dir}/default were removed by another program")
        self.assert_says(node.cistern("put", "--namespace", "demo", KEYS[0], "-", stdin=b"kv"), 0)

    def test_a_file_that_may_not_grow_is_said_and_not_left(self) -> None:
        node = self.node()
        self.assert_says(node.cistern("put", "--namespace", "demo", KEYS[0], "-", stdin=bytes(1 << 20)), 0)
        file = self.directory / "out"
        command = [BIN / "cistern", "get", "--socket", node.socket, "--namespace", "demo", KEYS[0], file]
        limited = ["prlimit", "--fsize=4096", *map(str, command)]
        get = subprocess.run(limited, capture_output=True, timeout=TIMEOUT_S, check=False)
        self.assert_says(get, 1, f"file {file} cannot be written: ", "File too large")
        self.assertFalse(file.exists())

    def test_a_get_leaves_a_file_that_it_may_not_open(self) -> None:
        node = self.node()
        self.assert_says(node.cistern("put", "--namespace", "demo", KEYS[0], "-", stdin=b"kv"), 0)
        program = self.directory / "program"  # nobody may write to one that runs, root neither
        shutil.copy(shutil.which("cat") or "", program)
        with subprocess.Popen([program], stdin=subprocess.PIPE) as running:
            get = node.cistern("get", "--namespace", "demo", KEYS[0], program)
            self.assert_says(get, 1, f"file {program} cannot be written: ", "Text file busy")
            self.assertTrue(program.exists())
            running.communicate()

    def test_what_is_printed_is_there_or_the_program_fails(self) -> None:
        node = self.node()
        where = ("--socket", str(node.socket))
        commands = [("status", *where, "--json"), ("config", *where), ("namespaces", *where, "--json"), ("--help",)]
        for words in commands:
            with open("/dev/full", "wb") as full:
                said = subprocess.run([BIN / "cistern", *words], stdout=full, stderr=subprocess.PIPE,
                                      timeout=TIMEOUT_S, check=False)
            self.assertIn(b"standard output cannot be written: No space left", said.stderr, words)
            self.assertEqual(said.returncode, 1, words)
        command = ["sh", "-c", 'exec "$@" >&-', "sh", BIN / "cistern", "status", *where]
        said = subprocess.run(command, stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False)
        self.assertEqual(said.returncode, 1)
        self.assertIn(b"standard output cannot be written: ", said.stderr)

    def test_a_switch_that_is_turned_off_by_its_flag_is_refused(self) -> None:
        """Else one that is turned off over a file that turns it on would stay on."""
        file = self.directory / "cistern.toml"
        file.write_text('memory = "64MiB"\ndiscard_foreign = true\n')
        check = run("cisternd", "--check", "--config", file, "--discard-foreign=false")
        self.assert_says(check, 2, "discard-foreign")

    def test_a_memory_dir_on_hugetlbfs_is_refused_by_name(self) -> None:
        huge = self.directory / "huge"
        huge.mkdir()
        mounted = ["unshare", "--mount", "sh", "-c", f"mount -t hugetlbfs none '{huge}' || exit 99; exec \"$@\"", "sh"]
        for check in (["--check"], []):
            node = subprocess.run(
                [*mounted, str(BIN / "cisternd"), *check, "--memory", "64MiB", "--memory-dir", str(huge), "--socket",
                 str(self.directory / "s")],
                capture_output=True, timeout=TIMEOUT_S, check=False,
            )
            if node.returncode == 99 or b"unshare" in node.stderr:
                self.skipTest(f"hugetlbfs cannot be mounted: {node.stderr.decode().strip()}")
            self.assert_says(node, 2, f"memory_dir {huge}", "hugetlbfs", "tmpfs")

    def test_a_help_makes_no_folder(self) -> None:
        script = pathlib.Path(__file__).resolve().parents[1] / "engine" / "model.py"
        command = [sys.executable, str(script), "--help"]
        said = subprocess.run(command, cwd=self.directory, capture_output=True, check=True)
        self.assertIn(b"DIR", said.stdout)
        self.assertEqual(list(self.directory.iterdir()), [])

    def test_put_get_match_drop(self) -> None:
        node = self.node()
        body = bytes(range(256)) * 1000
        put = node.cistern("put", "--namespace", "demo", KEYS[0], "-", "--json", stdin=body)
        self.assertEqual(json.loads(put.stdout), {"key": KEYS[0], "bytes": len(body), "stored": True})
        put = node.cistern("put", "--namespace", "demo", "--parent", KEYS[0], KEYS[1], "-", stdin=b"child")
        self.assert_says(put, 0)
        match = node.cistern("match", "--namespace", "demo", "--json", *KEYS[:3])
        runs = [{"blocks": 2, "where": "memory", "ready_in_us": 0}]
        self.assertEqual(json.loads(match.stdout), {"blocks": 2, "of": 3, "runs": runs, "why": None})
        self.assertEqual(node.cistern("get", "--namespace", "demo", KEYS[0], "-").stdout, body)
        drop = node.cistern("drop", "--namespace", "demo", "--json", KEYS[0])
        self.assertEqual(json.loads(drop.stdout), {"dropped": 2})
        self.assert_says(node.cistern("get", "--namespace", "demo", KEYS[1], "-"), 1, "miss")

    def test_a_put_of_a_key_that_is_there_says_that_it_stored_nothing(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "demo", KEYS[0], "-", stdin=b"the first")
        put = node.cistern("put", "--namespace", "demo", KEYS[0], "-", "--json", stdin=b"other")
        self.assert_says(put, 1, f"block {KEYS[0]} is there already and stays as it is; drop it")
        self.assertEqual(json.loads(put.stdout), {"key": KEYS[0], "bytes": 5, "stored": False})
        self.assertEqual(node.cistern("get", "--namespace", "demo", KEYS[0], "-").stdout, b"the first")
        orphan = node.cistern("put", "--namespace", "demo", "--parent", KEYS[2], KEYS[3], "-", stdin=b"x")
        self.assert_says(orphan, 1, f"waits for its parent {KEYS[2]}")

    def test_a_miss_says_where_reads_are_off_or_the_node_drains(self) -> None:
        node = self.node()
        block = ("--namespace", "demo", KEYS[0])
        node.cistern("put", *block, "-", stdin=b"x")
        of_demo = ("--namespace", "demo")
        for off, on, why in (
            (("reads", "off"), ("reads", "on"), "reads are off, `cistern admin reads on` turns them on"),
            (("reads", "off", *of_demo), ("reads", "on", *of_demo), "reads of demo are off, `cistern admin reads on"),
            (("drain", "--for", "upgrade"), ("drain", "off"), "the node drains, so that it can be stopped"),
        ):
            self.assert_says(node.cistern("admin", *off), 0)
            self.assert_says(node.cistern("get", *block, "-"), 1, f"miss: {why}")
            self.assertIn(f"0 of 1 blocks: {why}", node.cistern("match", *block).stdout.decode())
            self.assertTrue(node.json("match", *block)["why"].startswith(why))
            self.assert_says(node.cistern("admin", *on), 0)
            self.assertEqual(node.cistern("get", *block, "-").stdout, b"x")
        node.cistern("put", "--namespace", "other", KEYS[0], "-", stdin=b"x")
        node.cistern("admin", "reads", "off", "--namespace", "other")
        self.assert_says(node.cistern("get", *of_demo, KEYS[1], "-"), 1, f"block {KEYS[1]}")
        self.assertIsNone(node.json("match", *of_demo, KEYS[1])["why"])

    def test_a_namespace_is_kept_to_its_node_or_strict_as_it_is_said(self) -> None:
        node = self.node()
        named = ("--namespace", "demo")
        wrong = node.cistern("put", *named, "--mesh", "no", KEYS[0], "-", stdin=b"1")
        self.assert_says(wrong, 2, "--mesh is", "on or off")
        self.assert_says(node.cistern("put", *named, "--mesh", "off", KEYS[0], "-", stdin=b"1"), 0)
        self.assert_says(node.cistern("put", *named, "--strict", KEYS[0], "-", stdin=b"1"), 1, "strict is")
        strict = ("--namespace", "secret", "--strict")
        self.assert_says(node.cistern("put", *strict, KEYS[0], "-", stdin=b"of its own"), 0)
        # A node that never was in a cell serves it.
        self.assertEqual(node.cistern("get", *strict, KEYS[0], "-").stdout, b"of its own")
        listed = json.loads(node.cistern("namespaces", "--json").stdout)["namespaces"]
        said = {one["names"][0]: (one["mesh"], one["strict"]) for one in listed}
        self.assertEqual(said, {"demo": ("off", False), "secret": (None, True)})

    def test_a_drop_in_a_namespace_that_nobody_made_says_so_and_makes_none(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "demo", KEYS[0], "-", stdin=b"stays")
        for what in (["--all"], [KEYS[0]]):
            drop = node.cistern("drop", "--namespace", "dmeo", *what)
            self.assert_says(drop, 1, "namespace dmeo: this node knows none of this list")
        self.assert_says(node.cistern("get", "--namespace", "dmeo", KEYS[0], "-"), 1, "namespace dmeo")
        self.assert_says(node.cistern("match", "--namespace", "dmeo", KEYS[0]), 1, "namespace dmeo")
        self.assertEqual(node.json("status")["now"]["namespaces"], 1)
        drop = node.cistern("drop", "--namespace", "demo", "--all", "--json")
        self.assertEqual(json.loads(drop.stdout), {"dropped": 1})

    def test_kill_nine_loses_nothing(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "demo", KEYS[0], "-", stdin=b"still here")
        node.end(signal.SIGKILL)
        node.start()
        self.assertIn("1 records warm", node.said)
        self.assertEqual(node.cistern("get", "--namespace", "demo", KEYS[0], "-").stdout, b"still here")

    def test_dropped_stays_dropped_after_kill_nine(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "demo", KEYS[0], "-", stdin=b"secret")
        node.cistern("drop", "--namespace", "demo", KEYS[0])
        node.end(signal.SIGKILL)
        node.start()
        self.assert_says(node.cistern("get", "--namespace", "demo", KEYS[0], "-"), 1, "miss")

    def test_a_node_without_standard_error_writes_what_it_says_into_no_file_of_its_own(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "demo", KEYS[0], "-", stdin=b"still here")
        for closed in ("2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"):
            node.end()
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
                supervisor.bind(str(self.directory / "notify"))
                shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *node.command]
                env = {**os.environ, "NOTIFY_SOCKET": str(self.directory / "notify")}
                silent = subprocess.Popen(shell, env=env)
                supervisor.settimeout(TIMEOUT_S)
                self.assertEqual(supervisor.recv(100), b"READY=1")
            (self.directory / "notify").unlink()
            get = node.cistern("get", "--namespace", "demo", KEYS[0], "-")
            silent.send_signal(signal.SIGTERM)
            self.assertEqual((closed, silent.wait(timeout=TIMEOUT_S)), (closed, 0))
            self.assertEqual((closed, get.stdout), (closed, b"still here"))
            node.start()
            self.assertIn("1 records warm", node.said, closed)

    def test_sigterm_ends_in_order(self) -> None:
        # As soon as it is ready: then it lets go of what it has itself, and not the kernel some time behind its end.
        for _ in range(5):
            self.assertEqual(self.node().end(signal.SIGTERM), 0)
            with open(self.directory / "memory" / "default" / "lock") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def test_a_start_that_waits_ends_at_a_signal(self) -> None:
        key = self.directory / "key"
        os.mkfifo(key, 0o600)
        where = ("--memory", "128MiB", "--memory-dir", self.directory / "m", "--socket", self.directory / "s")
        cell = ("--cell", "http://127.0.0.1:1", "--cell-address", "127.0.0.1:7401", "--cell-key", key, "--member", "a")
        for number in (signal.SIGTERM, signal.SIGINT):
            words = [str(word) for word in (BIN / "cisternd", *where, *cell)]
            with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
                self.addCleanup(process.kill)
                writes = self.opened_by(process, key)  # who reads it waits for what nobody writes
                process.send_signal(number)
                self.assertEqual(process.wait(TIMEOUT_S), 0)
                os.close(writes)
                assert process.stderr is not None
                self.assertIn("ended while it started", process.stderr.read())

    def opened_by(self, process: subprocess.Popen[str], fifo: pathlib.Path) -> int:
        """Its end to write to, once the process has opened it."""
        while process.poll() is None:
            try:
                return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                self.assertEqual(error.errno, errno.ENXIO)
        assert process.stderr is not None
        raise AssertionError(f"it ended: {process.stderr.read()}")

    def test_each_program_says_its_release_and_so_does_the_node(self) -> None:
        said = {run(*words, "--version").stdout for words in [("cistern",), ("cistern", "status"), ("cisternd",)]}
        self.assertEqual(len(said), 1)
        name, release = said.pop().decode().split()
        self.assertEqual(name, "cistern")
        self.assertRegex(release, r"^[0-9]+\.[0-9]+\.[0-9]+$")
        self.assertEqual(self.node().json("status")["node"]["release"], release)

    def test_status_names_what_scripts_rely_on(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "demo", KEYS[0], "-", stdin=b"x")
        status = node.json("status")
        self.assertEqual(status["now"]["records"], 1)
        self.assertIn(status["node"]["loop"], ("io_uring", "epoll"))
        sections = {"node", "memory", "now", "flash", "store", "door"}
        sections |= {"reads", "engines", "misses", "waits", "calls", "switches", "drain", "quotas", "namespaces"}
        sections |= {"slow", "slow_calls", "slow_at", "traces", "by_engine", "journal", "files"}
        self.assertEqual(set(status), sections)
        self.assertIn(b"now.records", node.cistern("status").stdout)

    def test_admin_switches_reads_off_and_on(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "demo", KEYS[0], "-", stdin=b"x")
        get = ("--namespace", "demo", KEYS[0], "-")
        self.assert_says(node.cistern("get", *get), 0)
        off = node.json("admin", "reads", "off")
        self.assertEqual(off, {"reads": "off", "namespaces": 1})
        self.assert_says(node.cistern("get", *get), 1, "miss")
        self.assert_says(node.cistern("admin", "reads", "on"), 0)
        self.assert_says(node.cistern("get", *get), 0)
        self.assert_says(node.cistern("admin", "writes", "off"), 0)
        put = node.cistern("put", "--namespace", "demo", KEYS[1], "-", stdin=b"y")
        self.assert_says(put, 1, "busy", "cistern admin writes on")
        self.assert_says(node.cistern("admin", "read", "off"), 2, "reads")
        self.assert_says(node.cistern("admin", "reads", "of"), 2, "unknown state of")
        self.assert_says(node.cistern("admin", "reads", "off", "--namespace", "dmeo"), 1, "dmeo")
        self.assert_says(node.cistern("admin", "reads", "off", "--engine", "decode-1"), 1, "decode-1", "no session")
        self.assert_says(node.cistern("admin", "reads", "off", "--engine", "decode 1"), 2, "visible ASCII")
        self.assert_says(node.cistern("admin", "drop", "demo", "--engine", "decode-1"), 2, "--engine")
        both = ("--engine", "decode-1", "--namespace", "demo")
        self.assert_says(node.cistern("admin", "writes", "off", *both), 2, "--engine")
        self.assert_says(node.cistern("admin", "reads", "off", "--each"), 2, "--each")
        for flag in ("--namespace", "--engine"):  # of a script's variable that was not set
            self.assert_says(node.cistern("admin", "reads", "off", flag, ""), 2, f"{flag}: is empty")
        self.assert_says(node.cistern("get", *get), 0)

    def test_docs_have_the_metrics_that_the_registry_has(self) -> None:
        page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
        listed = run("cisternd", "--metrics").stdout.decode()
        self.assertIn("cistern_store_published_total", listed)
        self.assertTrue(page.endswith(listed), "docs/metrics.md ends with what `cisternd --metrics` prints")

    def test_docs_have_the_settings_of_flash_and_of_cells(self) -> None:
        flags = [one["name"] for one in json.loads(run("cisternd", "--describe").stdout)["options"]]
        for page, those in (("flash.md", "--(flash|journal|discard|scrub)"), ("cell.md", "--(cell|etcd|member|zone)")):
            rows = re.findall(r"(?m)^\| (.*?) \|", (ROOT / "docs" / page).read_text(encoding="utf-8"))
            named = {name.replace("_", "-") for row in rows for name in re.findall(r"`(?:--)?([a-z_-]+)", row)}
            self.assertGreater(len(named), 8)
            self.assertEqual([f for f in flags if re.match(those, f) and f[2:] not in named], [], page)

    def test_commands_in_docs_take_the_options_that_they_have_there(self) -> None:
        def options(*words: str) -> set[str]:
            return {one["name"] for one in json.loads(run(*words, "--describe").stdout)["options"]}

        names = [one["name"] for one in json.loads(run("cistern", "--describe").stdout)["commands"]]
        of = {f"cistern {name}": options("cistern", *name.split()) for name in names}
        of["cisternd"] = options("cisternd")
        command = re.compile(rf"\b({'|'.join(sorted(of, key=len, reverse=True))})\b(?!-)([^`|#;&\n]*)")
        for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
            text = page.read_text(encoding="utf-8").replace("\\\n", " ")
            text = re.sub(r"`[^`\n]+\n[^`\n]+`", lambda wrapped: " ".join(wrapped[0].split()), text)
            for name, words in command.findall(text):
                given = set(re.findall(r"(?<!\S)--[a-z][a-z-]*", words)) - {"--help", "--version"}
                self.assertEqual(given - of[name], set(), f"{page.name}: {name}{words}")

    def test_docs_have_each_key_of_generated_traces_with_its_default(self) -> None:
        page, given = (ROOT / "docs" / "traces.md").read_text(encoding="utf-8"), {}
        for names, defaults in re.findall(r"(?m)^\| (`[a-z_`, ]+`) \| (`[\w.`, ]+`) \|", page):
            given |= dict(zip(re.findall(r"\w+", names), re.findall(r"[\w.]+", defaults), strict=True))
        said = run("cistern", "sim", "generated:none=1", "--blocks", 1).stderr.decode()
        self.assertEqual(set(given), set(said.split("known are ")[1].strip().split(", ")))
        named = ",".join(f"{name}={default}" for name, default in given.items())
        sims = [run("cistern", "sim", f"generated:{text}", "--blocks", 100).stdout for text in ("", named)]
        self.assertTrue(sims[0])
        self.assertEqual(sims[0], sims[1])

    def test_the_http_port_is_named_where_it_is_wrong_or_in_use(self) -> None:
        self.assert_says(run("cisternd", "--http", "localhost:http"), 2, "--http", "10.0.0.7:9180")
        node = self.node("--http", "0")
        address = node.said.split("http ")[1].split(",")[0]
        self.assertRegex(address, r"^127\.0\.0\.1:\d+$")
        second = run("cisternd", "--memory", "64MiB", "--memory-dir", self.directory / "second", "--http", address)
        self.assert_says(second, 1, f"http: {address} is in use")

    def test_a_node_in_no_cell_says_so_and_what_is_wrong_with_a_cell_is_named(self) -> None:
        node = self.node()
        self.assert_says(node.cistern("cell"), 1, "in none", "--cell")
        self.assertNotIn("cell", node.json("status"))
        self.assert_says(run("cisternd", "--cell", "10.0.0.1:2379"), 2, "--cell", "http://10.0.0.7:2379")
        self.assert_says(run("cisternd", "--member", "a"), 2, "member: is of a cell")

    def test_forget_frees_what_a_node_left(self) -> None:
        node = self.node()
        memory = self.directory / "memory"
        self.assert_says(run("cistern", "forget", "--memory-dir", memory), 1, "held")
        node.end()
        freed = json.loads(run("cistern", "forget", "--memory-dir", memory, "--json").stdout)
        self.assertGreater(freed["freed_bytes"], 64 << 20)

    def test_forget_frees_where_there_is_no_room_for_a_node_by_default(self) -> None:
        mount = self.directory / "narrow"
        result = self.run_on_tmpfs(
            mount, "size=72m",
            f"{BIN}/cisternd --memory 64MiB --linger 1us --memory-dir {mount}/m --socket {self.directory}/s && "
            f"exec {BIN}/cistern forget --memory-dir {mount}/m --json",
        )
        self.assert_says(result, 0, "no client")
        self.assertGreater(json.loads(result.stdout)["freed_bytes"], 30 << 20)

    def test_both_loops_serve(self) -> None:
        node = self.node("--loop", "epoll")
        self.assertEqual(node.json("status")["node"]["loop"], "epoll")

    def agree(self, trace: str | pathlib.Path, blocks: int, policy: str) -> None:
        sim = json.loads(run("cistern", "sim", trace, "--blocks", blocks, "--policy", policy, "--json").stdout)
        words = ("replay", trace, "--blocks", blocks, "--block-bytes", "4KiB", "--policy", policy, "--json")
        replay = json.loads(run("cistern", *words).stdout)
        self.assertEqual((replay["policy"], replay["hits"]), (policy, sim["hits"]), f"{trace}, {blocks} blocks")
        self.assertGreater(replay["hits"], 0)
        self.assertEqual(replay["wrong_bytes"], 0)

    def test_sim_and_replay_agree(self) -> None:
        for policy in ("reuse", "lru"):
            for blocks in (20, 200):
                self.agree("generated:sessions=40,turns=4,seed=3", blocks, policy)
        # Sessions of a few paces, documents that are asked for once, and chains that are longer than the store.
        self.agree("generated:sessions=300,turns=5,think=30s,span=20min,user_tokens=3000", 400, "reuse")
        self.agree("generated:sessions=60,turns=3,system=2,user_tokens=9000,context=60000,seed=5", 100, "reuse")
        # As the node has it where it is not told.
        trace = "generated:sessions=40,turns=4,seed=3"
        sim = json.loads(run("cistern", "sim", trace, "--blocks", 60, "--json").stdout)
        replay = json.loads(run("cistern", "replay", trace, "--blocks", 60, "--block-bytes", "4KiB", "--json").stdout)
        self.assertEqual((replay["policy"], replay["hits"]), (sim["policy"], sim["hits"]))

    def test_a_trace_is_an_argument_or_a_flag(self) -> None:
        trace = "generated:sessions=20"
        for words in (("sim", "--blocks", 30, "--json"), ("replay", "--blocks", 30, "--block-bytes", "4KiB", "--json")):
            argument = json.loads(run("cistern", words[0], trace, *words[1:]).stdout)
            flag = json.loads(run("cistern", *words, "--trace", trace).stdout)
            self.assertEqual((argument["requests"], argument["hits"]), (flag["requests"], flag["hits"]))
        self.assertRegex(run("cistern", "sim", trace, "--blocks", 30).stdout.decode(), r"accesses hit \(\d+\.\d\d %\)")
        cluster = ("sim", "cluster", "--nodes", 2, "--json")
        self.assertEqual(run("cistern", *cluster, "--trace", trace).stdout, run("cistern", *cluster, trace).stdout)
        self.assert_says(run("cistern", "sim", trace, "--trace", trace, "--blocks", 30), 2, "--trace")
        self.assert_says(run("cistern", "sim", "--blocks", 30), 2, "--trace is required")

    def test_replay_of_large_blocks_in_what_they_take_agrees_with_sim(self) -> None:
        trace = "generated:sessions=3,turns=3,system=1,user_tokens=1000,seed=1"
        for blocks, block_bytes in ((1, "2MiB"), (30, "4MiB"), (3, "16MiB"), (3, "64MiB")):
            words = (trace, "--blocks", blocks, "--json")
            replay = run("cistern", "replay", *words, "--block-bytes", block_bytes)
            self.assert_says(replay, 0)
            found, sim = json.loads(replay.stdout), json.loads(run("cistern", "sim", *words).stdout)
            self.assertEqual((found["hits"], found["wrong_bytes"]), (sim["hits"], 0), f"{blocks} of {block_bytes}")

    def sim_flash(self, *words: object) -> dict[str, object]:
        trace = "generated:sessions=60,turns=5,think=30s,span=20min,user_tokens=3000"
        report: dict[str, object] = json.loads(run("cistern", "sim", trace, "--flash", *words, "--json").stdout)
        return report

    def test_sim_with_flash_says_what_hits_where(self) -> None:
        worth, all_of_it = self.sim_flash("--blocks", 60), self.sim_flash("--blocks", 200, "--flash-promote", "all")
        plenty = self.sim_flash("--blocks", 100_000)
        for report in (worth, all_of_it, plenty):
            tiers = report["hits_by_tier"]
            self.assertEqual(tiers["memory"] + tiers["flash"], report["hits"])
            self.assertEqual(report["hits"], plenty["hits"])  # flash has room for all
            self.assertAlmostEqual(report["memory_hit_rate"], tiers["memory"] / report["accesses"])
            self.assertEqual((report["ahead"], report["ahead_used"]), (0, 0))
        self.assertGreater(worth["passing"], 0)
        self.assertEqual(all_of_it["passing"], 0)
        self.assertEqual(plenty["hits_by_tier"]["flash"], 0)
        self.assertEqual(worth, self.sim_flash("--blocks", 60))

    def test_sim_says_what_is_written_to_flash_of_a_size(self) -> None:
        def size(blocks: int, *words: object) -> dict[str, object]:
            return self.sim_flash("--blocks", 60, "--flash-blocks", blocks, *words)

        worth, of_all = size(640), size(640, "--flash-admit", "all")
        self.assertEqual((worth["admit"], of_all["admit"], of_all["flash_blocks"]), ("worth", "all", 640))
        self.assertLess(worth["written"] + worth["moved"], of_all["written"] + of_all["moved"])
        self.assertGreater(worth["hits"], 0.98 * of_all["hits"])
        self.assertLess(size(640, "--flash-admit", "second-hit")["written"], worth["written"])
        self.assertLess(size(640, "--flash-admit", "reject-first")["written"], of_all["written"])
        bounded = size(640, "--flash-budget", 100)
        self.assertLess(bounded["written"], worth["written"])
        self.assertEqual(size(100_000)["hits"], self.sim_flash("--blocks", 60)["hits"])

    def test_sim_fetches_from_flash_ahead_of_turns_that_are_told(self) -> None:
        told = self.sim_flash("--blocks", 60, "--told-when")
        ahead = self.sim_flash("--blocks", 60, "--told-when", "--flash-ahead")
        self.assertEqual(ahead["hits"], told["hits"])
        self.assertGreater(ahead["hits_by_tier"]["memory"], told["hits_by_tier"]["memory"])
        self.assertGreater(ahead["ahead_used"], 0.8 * ahead["ahead"])
        self.assertLessEqual(ahead["ahead_used"], ahead["ahead"])

    def test_sim_and_replay_agree_on_published_traces(self) -> None:
        traces = pathlib.Path(__file__).resolve().parents[3] / "shared" / "traces"
        for name, requests, blocks in (("conversation", 800, 1000), ("agentic", 120, 1000)):
            if not (traces / f"{name}.jsonl").exists():
                self.skipTest(f"there is no {traces / name}.jsonl")
            cut = self.directory / f"{name}.jsonl"
            with open(traces / f"{name}.jsonl") as whole:
                cut.write_text("".join(itertools.islice(whole, requests)))
            self.agree(cut, blocks, "reuse")


class BadInput(CliTest):
    """A message that names the thing, its value, its limit and the way out."""

    def daemon(self, *flags: object) -> subprocess.CompletedProcess[bytes]:
        return run("cisternd", *flags)

    def test_help_of_one_command_says_where_it_is(self) -> None:
        self.assert_says(run("cistern", "help", "status"), 2, "put --help behind the one")
        self.assert_says(run("cistern", "help"), 0)

    def test_unknown_command_option_and_key_name_the_nearest(self) -> None:
        self.assert_says(run("cistern", "mtach"), 2, "mtach", "match")
        self.assert_says(self.daemon("--memroy", "1GiB"), 2, "--memroy", "--memory")
        config = self.directory / "c.toml"
        config.write_text('movers = 1\nmemroy_dir = "/x"\n')
        self.assert_says(self.daemon("--config", config), 2, "c.toml:2", "memroy_dir", "memory_dir")

    def test_sizes(self) -> None:
        self.assert_says(self.daemon("--memory", "1024"), 2, "--memory", "1024", "MiB")
        self.assert_says(self.daemon("--memory", "1MiB"), 2, "1MiB", "64MiB")
        self.assert_says(self.daemon("--memory", "4096TiB"), 2, "4096TiB", "above what this host gives")
        self.assert_says(self.daemon("--movers", "100"), 2, "--movers", "100", "64")
        for only in ("copy", "get", "net"):
            small = run("cistern", "bench", "--only", only, "--rounds", "1", "--working-set", "64KiB")
            self.assert_says(small, 2, "--working-set", "64KiB", "16MiB or more")

    def test_a_block_that_no_node_of_this_memory_takes(self) -> None:
        class SmallNode(Node):
            memory = ("--memory", "64MiB")

        node = SmallNode(self.directory)
        self.check_ready(node)
        for size, said in ((2 << 20, "the limit is 1048576"), (3_000_000, "one owner may have")):
            put = node.cistern("put", "--namespace", "demo", "aa", "-", stdin=bytes(size))
            self.assert_says(put, 2, str(size), said, "give the node more")

    def test_bench_of_a_disk_that_is_not_named(self) -> None:
        for only in ("flash", "flash-worth", "cell-flash"):
            for form in ((), ("--json",)):
                said = run("cistern", "bench", "--only", only, *form)
                self.assert_says(said, 2, f"--only {only}", "--flash-dir")

    def test_rows_of_a_bench_that_fails_later_are_there(self) -> None:
        shutil.copy(BIN / "cistern", self.directory)  # beside which there is no node to measure
        words = ("bench", "--rounds", "1", "--working-set", "16MiB", "--json")
        said = subprocess.run([self.directory / "cistern", *words], capture_output=True, timeout=TIMEOUT_S, check=False)
        self.assert_says(said, 1, "cannot be started")
        self.assertGreater(len(json.loads(said.stdout)["rows"]), 1)

    def test_memory_directory(self) -> None:
        missing = self.directory / "no" / "such"
        self.assert_says(self.daemon("--memory", "128MiB", "--memory-dir", missing), 1, str(missing))
        self.assert_says(self.daemon("--memory", "128MiB", "--memory-dir", "/proc/self"), 1, "/proc/self")

    def test_memory_directory_held_by_another_node(self) -> None:
        node = self.node()
        where = ("--memory", "128MiB", "--memory-dir", self.directory / "memory")
        other = self.daemon(*where, "--socket", f"{node.socket}2")
        self.assert_says(other, 1, "held", str(node.process.pid))
        self.assert_says(node.cistern("status"), 0)

    def test_memory_directory_too_small(self) -> None:
        mount = self.directory / "small"
        result = self.run_on_tmpfs(
            mount, "size=16m",
            f"exec {BIN}/cisternd --memory 128MiB --memory-dir {mount}/m --socket {self.directory}/s",
        )
        self.assert_says(result, 2, str(mount), "--shm-size")

    def test_arena_of_another_version(self) -> None:
        node = self.node()
        node.end()
        with open(self.directory / "memory" / "default" / "arena", "r+b") as arena:
            arena.seek(8)
            arena.write(struct.pack("<Q", 77))
        for check in (["--check"], []):
            self.assert_says(self.daemon(*check, *node.command[1:]), 1, "77", "cistern forget")

    def test_socket_path(self) -> None:
        node = self.node()
        where = ("--memory", "128MiB", "--memory-dir", self.directory / "other")
        self.assert_says(self.daemon(*where, "--socket", node.socket), 1, str(node.socket))
        self.assert_says(self.daemon(*where, "--socket", "/tmp/" + "x" * 120), 2, "107")
        self.assert_says(run("cistern", "status", "--socket", self.directory / "none"), 1, str(self.directory / "none"))

    def test_what_is_empty_is_not_taken_for_what_was_left_out(self) -> None:
        for words in (("cistern", "forget", "--tenant", "nobodys", "--memory-dir", ""),
                      ("cistern", "config", "--check", ""),
                      ("cistern", "config", "--file", ""), ("cistern", "doctor", "--config", ""),
                      ("cisternd", "--check", "--config", ""), ("cistern", "status", "--socket", ""),
                      ("cisternd", "--check", "--memory-dir", ""), ("cisternd", "--check", "--socket", ""),
                      ("cisternd", "--check", "--journal-dir", ""), ("cisternd", "--check", "--tenant", ""),
                      ("cistern", "put", "--namespace", "demo", "--parent", "", KEYS[0], "-")):
            flag = words[words.index("") - 1]
            self.assert_says(run(*words, stdin=b""), 2, words[0], f"{flag}: is empty")
        self.assert_says(run("cisternd", "--check", "--cell", ""), 2, "--cell", "no endpoint of etcd")

    def test_a_block_that_may_not_live_is_refused(self) -> None:
        for ttl in ("0s", "1us"):
            put = run("cistern", "put", "--namespace", "demo", "--ttl", ttl, KEYS[0], "-", stdin=b"kv")
            self.assert_says(put, 2, "--ttl: the least is 1s")

    def test_keys_and_bodies(self) -> None:
        node = self.node()
        put = ("put", "--namespace", "demo")
        self.assert_says(node.cistern(*put, "123", "-", stdin=b"kv"), 2, "123")
        self.assert_says(node.cistern(*put, "12" * 33, "-", stdin=b"kv"), 2, "66", "64")
        self.assert_says(node.cistern(*put, "zz" * 16, "-", stdin=b""), 2, "'z'", "hexadecimal")
        big = os.urandom(8 << 20)
        self.assert_says(node.cistern(*put, KEYS[0], "-", stdin=big), 2, str(len(big)))
        self.assert_says(node.cistern("put", KEYS[0], "-", stdin=b""), 2, "--namespace")
        self.assert_says(node.cistern("status", "--deadline", "0s"), 2, "--deadline is 0")
        for longer, limit in (("4294967297s", "4294967295s"), ("18446744073709551615us", "9223372036854775807us")):
            self.assert_says(node.cistern(*put, "--ttl", longer, KEYS[0], "-", stdin=b"kv"), 2, "--ttl", longer, limit)

    def test_new_history(self) -> None:
        def begin(*flags: object) -> subprocess.CompletedProcess[bytes]:
            return run("cistern", "cell", "new-history", *flags)

        self.assert_says(begin(), 2, "cell: is not given", "http://10.0.0.7:2379", "configuration file")
        nobody = ("--cell", "http://127.0.0.1:1")
        self.assert_says(begin("--cell", "127.0.0.1:1"), 2, "--cell", "http://10.0.0.7:2379")
        self.assert_says(begin(*nobody, "--cell-name", "x y"), 2, "cell_name: x y")
        self.assert_says(begin(*nobody, "--etcd-key", "x"), 2, "etcd_certificate and etcd_key")
        key = self.directory / "cell.key"
        key.write_text("a" * 64 + "\n")
        key.chmod(0o644)
        self.assert_says(begin(*nobody, "--cell-key", key), 1, str(key))
        key.chmod(0o600)
        self.assert_says(begin(*nobody, "--cell-key", key), 1, "cell:", "http://127.0.0.1:1")
        self.assert_says(begin("--memory", "1GiB"), 2, "--memory")
        said = run("cistern", "cell", "new-history", "--help").stdout.decode()
        self.assertIn("cistern cell new-history --config", said)

    def test_trace_with_a_broken_line(self) -> None:
        trace = self.directory / "t.jsonl"
        good = '{"timestamp": 0, "input_length": 512, "output_length": 1, "hash_ids": [1]}'
        trace.write_text(f'{good}\n{good}\n{{"timestamp": 1, "hash_ids": "x"}}\n')
        for command in ("sim", "replay"):
            self.assert_says(run("cistern", command, trace, "--blocks", 4), 2, "t.jsonl", "3")
        self.assert_says(run("cistern", "sim", self.directory / "none.jsonl", "--blocks", 4), 2, "none.jsonl")
        self.assert_says(run("cistern", "sim", "generated:sesions=4", "--blocks", 4), 2, "sesions", "sessions")
        self.assert_says(run("cistern", "sim", trace, "--blocks", 4, "--policy", "lur"), 2, "lur", "lru")
        self.assert_says(run("cistern", "sim", trace, "--blocks", 4, "--flash"), 2, "t.jsonl", "3")

    def test_a_trace_whose_ids_are_of_contents_alone_is_refused(self) -> None:
        trace = self.directory / "contents.jsonl"
        lines = [{"timestamp": 0, "input_length": 1024, "output_length": 1, "hash_ids": [first, 2]} for first in (1, 3)]
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        for words in (("sim", trace, "--blocks", 2), ("sim", trace, "--blocks", 2, "--flash"),
                      ("replay", trace, "--blocks", 2), ("sim", "cluster", trace),
                      ("plan", "--model", "Llama-3-8B", "--trace", trace)):
            self.assert_says(run("cistern", *words), 2, "contents.jsonl:2: hash_ids[1] is 2, after 3, and", "after 1")

    def test_replay_of_blocks_without_bytes(self) -> None:
        for room in (("--memory", "64MiB"), ("--blocks", 10)):
            said = run("cistern", "replay", "generated:sessions=2", *room, "--block-bytes", "0B")
            self.assert_says(said, 2, "--block-bytes: 0B", "the least is 1B")

    def test_replay_of_what_is_too_large_or_of_no_use_names_the_flag(self) -> None:
        def replay(*words: object) -> subprocess.CompletedProcess[bytes]:
            return run("cistern", "replay", "generated:sessions=2", *words)

        said = replay("--blocks", 1 << 30, "--block-bytes", "64MiB")
        self.assert_says(said, 2, "--blocks: 1073741824 of 64MiB take", "this host has", "give fewer")
        self.assert_says(replay("--memory", "4096TiB"), 2, "--memory: 4096TiB and this host has", "give less")
        bench = run("cistern", "bench", "--only", "get", "--working-set", "4096TiB")
        self.assert_says(bench, 2, "--working-set: 4096TiB take 5120TiB of memory and this host has")
        self.assert_says(replay("--blocks", 1, "--block-bytes", "65MiB"), 2, "--block-bytes: 65MiB", "limit of 64MiB")
        for flag, value in (("admit", "all"), ("write", "back"), ("promote", "all"), ("read-ahead", "1MiB")):
            said = replay("--memory", "64MiB", f"--flash-{flag}", value)
            self.assert_says(said, 2, f"--flash-{flag} says what flash is like: give --flash with it")

    def test_sim_with_flash(self) -> None:
        def sim(*words: object) -> subprocess.CompletedProcess[bytes]:
            return run("cistern", "sim", "generated:sessions=4", "--flash", *words)

        self.assert_says(sim(), 2, "--blocks is missing")
        self.assert_says(sim("--blocks", 0), 2, "--blocks", "0")
        self.assert_says(sim("--blocks", 4, "--policy", "arc"), 2, "--flash has no policy arc", "reuse or lru")
        self.assert_says(sim("--blocks", 4, "--flash-promote", "second-hit"), 2, "second-hit", "cistern replay")
        self.assert_says(sim("--blocks", 4, "--flash-promote", "wroth"), 2, "wroth", "worth")
        self.assert_says(sim("--blocks", 4, "--flash-ahead"), 2, "--flash-ahead", "--told-when")
        self.assert_says(sim("--blocks", 4, "--flash-admit", "most"), 2, "most", "reject-first")
        self.assert_says(sim("--blocks", 4, "--flash-blocks", 3), 2, "--flash-blocks", "64")
        for flag, value in (("--flash-budget", 9), ("--flash-promote", "all")):
            without = run("cistern", "sim", "generated:sessions=4", "--blocks", 4, flag, value)
            self.assert_says(without, 2, flag, "give --flash with them")
        self.assert_says(sim("--blocks", 4, "--told", "--policy", "lru"), 2, "--told", "policy lru", "--policy reuse")
        missing = self.directory / "none.jsonl"
        self.assert_says(run("cistern", "sim", missing, "--blocks", 4, "--flash"), 2, "none.jsonl")


if __name__ == "__main__":
    unittest.main()
