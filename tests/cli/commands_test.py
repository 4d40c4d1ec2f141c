# SPDX-License-Identifier: Apache-2.0
"""What commands print with --json is what the documentation says of it.

Usage: commands_test.py BIN_DIR [unittest arguments]
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import subprocess
import unittest
from typing import Any

from programs import ENDS_WITH_US, KEYS, Node, ProgramTest, free_port, run

DOCS = pathlib.Path(__file__).resolve().parent.parent.parent / "docs"
TRACE = "generated:sessions=6,turns=3,seed=1"


def section(page: str, heading: str) -> str:
    """What stands below a heading of the second level."""
    _, found, rest = (DOCS / page).read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    assert found, f"docs/{page} has no {heading}"
    return rest.partition("\n## ")[0]


def named(text: str) -> set[str]:
    """Fields that a text names, alone or within an object."""
    quoted = re.findall(r"`([^`]+)`", text)
    return {one for one in quoted if one.isidentifier()} | set(re.findall(r'"(\w+)"', " ".join(quoted)))


def rows(text: str) -> set[str]:
    """Fields to which its tables have a row."""
    return {name for row in re.findall(r"(?m)^\| (`[^|]*) \|", text) for name in named(row)}


OF_ITS_OWN = {"fields", "labels", "rates_per_s", "stations_us"}  # whose members have names of users, or of another page


def printed(value: Any) -> set[str]:
    if isinstance(value, list):
        return {name for one in value for name in printed(one)}
    if not isinstance(value, dict):
        return set()
    return set(value) | {name for key in value.keys() - OF_ITS_OWN for name in printed(value[key])}


class Fields(ProgramTest):
    def check(self, text: str, *objects: Any, without: frozenset[str] = frozenset()) -> None:
        """All that is printed is named, and each row of a table is printed, but those `without`."""
        found = printed(list(objects))
        self.assertEqual(found - named(text), set(), "printed, and not in the documentation")
        self.assertEqual(rows(text) - found - without, set(), "in the documentation, and not printed")

    def json(self, *words: object, code: int = 0) -> Any:
        said = run("cistern", *words, "--json")
        self.assertEqual(said.returncode, code, said.stderr.decode())
        return json.loads(said.stdout)

    def node(self, *flags: object) -> Node:
        node = Node(self.directory, *flags)
        self.check_ready(node)
        return node

    def of(self, command: str) -> str:
        return section("commands.md", f"What `cistern {command} --json` says")

    def test_each_command_with_json_has_its_place(self) -> None:
        page = (DOCS / "commands.md").read_text(encoding="utf-8")
        placed = set(re.findall(r"(?m)^## What `cistern ([a-z -]+) --json` says$", page))
        placed |= set(re.findall(r"`cistern\s+([a-z\s]+)`\s+in\s+\[", page.partition("\n## ")[0]))
        placed = {" ".join(name.split()) for name in placed}
        listed = json.loads(run("cistern", "--describe").stdout)["commands"]
        self.assertEqual({one["name"] for one in listed}, placed)

    def test_put_get_match_drop(self) -> None:
        node = self.node()
        block = ("--socket", node.socket, "--namespace", "demo", KEYS[0])
        file = self.directory / "kv"
        file.write_bytes(b"kv")
        self.check(self.of("put"), self.json("put", *block, file), self.json("put", *block, file, code=1))
        self.check(self.of("get"), self.json("get", *block, file))
        self.check(self.of("match"), self.json("match", *block))
        self.check(self.of("drop"), self.json("drop", *block))

    def test_admin_device_and_forget(self) -> None:
        flash = self.directory / "flash"
        flash.mkdir()
        node = self.node("--flash", f"{flash}:512MiB")
        where = ("--socket", node.socket)
        self.json("put", *where, "--namespace", "demo", KEYS[0], __file__)
        of_engines = frozenset({"sessions"})  # none here has a name
        asked = (("reads", "on"), ("writes", "on"), ("drop", "demo"), ("memory", "128MiB"),
                 ("drain", "--for", "upgrade"), ("drain", "off"))
        self.check(self.of("admin"), *(self.json("admin", *where, *words) for words in asked), without=of_engines)
        devices = self.json("device", *where, "list")
        metrics = set(re.findall(r"`flash\.devices\[\]\.(\w+)", (DOCS / "metrics.md").read_text(encoding="utf-8")))
        self.assertEqual(printed(devices), metrics | {"devices"})
        self.check(self.of("device"), {"devices": []})
        node.end()
        self.check(self.of("forget"), self.json("forget", "--memory-dir", node.memory_dir))

    def test_what_is_said_of_a_node(self) -> None:
        node = self.node()
        where = ("--socket", node.socket)
        for name in ("a", "b"):
            self.json("put", *where, "--namespace", name, KEYS[0], __file__)
        self.check(self.of("namespaces"), self.json("namespaces", *where),
                   self.json("namespaces", *where, "diff", "a", "b"))
        self.check(self.of("config"), self.json("config", *where))
        self.check(self.of("top"), self.json("top", *where, "--interval", "1ms"))
        doctor = run("cistern", "doctor", *where, "--json")  # of whatever host this is
        self.check(self.of("doctor"), json.loads(doctor.stdout))

    def test_what_runs_a_trace(self) -> None:
        replay = ("replay", TRACE, "--block-bytes", "4KiB")
        flash = self.directory / "flash"
        flash.mkdir()
        self.check(self.of("replay"), self.json(*replay, "--blocks", 100),
                   self.json(*replay, "--memory", "80MiB", "--flash", f"{flash}:512MiB"))
        sim = ("sim", TRACE, "--blocks", 20)
        self.check(self.of("sim"), self.json(*sim), self.json(*sim, "--flash"), self.json(*sim, "--far", 4))
        cluster = ("sim", "cluster", TRACE, "--nodes", 2)
        self.check(section("fleet.md", "`--json`"), self.json(*cluster),
                   self.json(*cluster, "--decode-nodes", 1, "--first-token", "1s", "--gpu-hour", 2))
        plan = ("plan", "--model", "Llama-3-8B", "--gpu", "H100-80GB")
        self.check(section("planner.md", "`--json`"), self.json(*plan), self.json("plan", "--list"),
                   self.json(*plan, "--trace", TRACE, "--hit-rate", 0.1))

    def test_bench(self) -> None:
        words = ("--only", "copy", "--rounds", 1, "--working-set", "16MiB", "--memory-dir", self.directory)
        self.check(section("bench.md", "`--json`"), self.json("bench", *words))

    @unittest.skipUnless(shutil.which("etcd"), "there is no etcd here")
    def test_cell(self) -> None:
        etcd = self.etcd()
        key = self.directory / "key"
        key.touch(0o600)
        key.write_text("7a" * 32)
        nodes = []
        for member in ("a", "b"):
            place = self.directory / member
            place.mkdir()
            where = ("--cell", etcd, "--member", member, "--cell-key", key, "--cell-address")
            nodes.append(Node(place, *where, f"127.0.0.1:{free_port(2)}"))
            while "another process listens there" in nodes[-1].said:  # since the port was found free
                nodes[-1].end()
                nodes[-1].start(*where, f"127.0.0.1:{free_port(2)}")
            self.check_ready(nodes[-1])
        asked = ("--socket", nodes[0].socket)
        cell = self.json("cell", *asked)
        while [one["connected"] for one in cell["members"] if not one["self"]] != [True]:
            self.assertIsNone(nodes[1].process.poll())
            cell = self.json("cell", *asked)
        self.check(self.of("cell"), {**cell, "cell": {}})  # which is a section of metrics.md
        self.json("put", *asked, "--namespace", "demo", KEYS[0], __file__)
        chain = (*asked, "--namespace", "demo", *KEYS[:2])
        self.check(self.of("cell who"), self.json("cell", "who", *chain))
        text = self.of("cell explain")
        explained = self.json("cell", "explain", *chain)
        self.assertEqual(printed(explained) - named(text), set())
        self.assertIn(explained["finding"], rows(text))
        for node in nodes:
            node.end()
        self.check(self.of("cell new-history"), self.json("cell", "new-history", "--cell", etcd, "--cell-key", key))

    def etcd(self) -> str:
        """Where one serves that ends with the test."""
        serves, peers = f"http://127.0.0.1:{free_port()}", "http://127.0.0.1:0"
        log = self.directory / "log"
        with log.open("wb") as into:
            process = subprocess.Popen(
                [*ENDS_WITH_US, "etcd", "--data-dir", self.directory / "etcd",
                 "--logger", "zap", "--log-outputs", "stderr",
                 "--listen-client-urls", serves, "--advertise-client-urls", serves, "--listen-peer-urls", peers,
                 "--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"],
                stdout=into, stderr=into,
            )
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while '"serving client traffic' not in log.read_text():
            self.assertIsNone(process.poll(), log.read_text())
            os.sched_yield()
        return serves

    def test_a_file_that_is_not_there_is_wrong_usage(self) -> None:
        none = self.directory / "none"
        plan = ("plan", "--model", "Llama-3-8B")
        for words in (("put", "--namespace", "demo", KEYS[0], none), ("config", "--file", none),
                      ("config", "--check", none), ("sim", none, "--blocks", 4),
                      ("replay", none, "--blocks", 4), ("sim", "cluster", none),
                      ("sim", "cluster", TRACE, "--data", none),
                      ("plan", "--config", none), (*plan, "--data", none), (*plan, "--trace", none),
                      ("bench", "serve", "--trace", none), ("bench", "serve", "--api-key-file", none),
                      ("cell", "new-history", "--cell", "http://127.0.0.1:1", "--cell-key", none)):
            self.assert_says(run("cistern", *words), 2, str(none), "No such file")


if __name__ == "__main__":
    unittest.main()
