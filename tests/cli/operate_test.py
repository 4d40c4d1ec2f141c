# SPDX-License-Identifier: Apache-2.0
"""What an operator asks a node and a host: doctor, namespaces, config and reload, drain, top.

Usage: operate_test.py BIN_DIR [unittest arguments]
"""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import unittest
from typing import Any

from programs import BIN, KEYS, TIMEOUT_S, Node, ProgramTest, run


class ConfiguredNode(Node):
    """With a configuration file."""

    memory = ()

    def __init__(self, directory: pathlib.Path, config: str, *flags: object) -> None:
        self.config = directory / "cistern.toml"
        self.config.write_text(config)
        super().__init__(directory, "--config", self.config, *flags)

    def reload(self, config: str, *texts: str) -> list[str]:
        self.config.write_text(config)
        self.process.send_signal(signal.SIGHUP)
        return self.says(*texts)

    def setting(self, name: str) -> dict[str, Any]:
        [setting] = [s for s in self.json("config")["settings"] if s["name"] == name]
        return dict(setting)


class OperateTest(ProgramTest):
    def node(self, config: str = 'memory = "128MiB"\n', *flags: object) -> ConfiguredNode:
        node = ConfiguredNode(self.directory, config, *flags)
        self.check_ready(node)
        return node


def findings(said: subprocess.CompletedProcess[bytes]) -> dict[str, list[dict[str, Any]]]:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(said.stdout)["findings"]:
        by_name.setdefault(finding["name"], []).append(finding)
    return by_name


class Doctor(OperateTest):
    def test_it_asks_the_node_and_looks_at_its_host(self) -> None:
        node = self.node()
        said = node.cistern("doctor", "--config", node.config, "--json")
        found = findings(said)
        for name in ("kernel", "memory", "memory_dir", "logout", "huge_pages", "memlock", "io_uring", "numa", "cpu",
                     "clients", "arenas", "clock", "node", "node_memory", "node_loop", "node_copy"):
            self.assertIn(name, found)
            for finding in found[name]:
                self.assertIn(finding["verdict"], ("ok", "warning", "problem"))
                self.assertEqual(finding["mend"] == "", finding["verdict"] == "ok", finding)
        self.assertIn(f"pid {node.process.pid}", found["node"][0]["value"])
        self.assertEqual(found["node_memory"][0]["verdict"], "ok")

    def test_the_least_node_has_no_settings_to_mend(self) -> None:
        node = self.node('memory = "64MiB"\n')
        found = findings(node.cistern("doctor", "--json"))
        self.assertNotIn("settings", found)
        self.assertNotEqual(found["memory_dir"][0]["verdict"], "problem")

    def test_memory_above_the_hosts_is_a_problem_and_exits_1(self) -> None:
        config = self.directory / "c.toml"
        config.write_text(f'memory = "4096TiB"\nsocket = "{self.directory}/s"\nmemory_dir = "{self.directory}/m"\n')
        said = run("cistern", "doctor", "--config", config, "--json")
        self.assertEqual(said.returncode, 1)
        self.assertEqual(findings(said)["settings"][0]["verdict"], "problem")
        self.assertIn("4096TiB", findings(said)["settings"][0]["value"])
        self.assertIn("problem", run("cistern", "doctor", "--config", config).stdout.decode())

    def test_a_volume_without_direct_io_is_named(self) -> None:
        config = self.directory / "c.toml"
        missing = self.directory / "none"
        config.write_text(
            f'memory = "64MiB"\nsocket = "{self.directory}/s"\nmemory_dir = "{self.directory}/m"\n'
            f'flash = ["{missing}:1GiB"]\n'
        )
        said = run("cistern", "doctor", "--config", config, "--json")
        self.assertEqual(said.returncode, 1)
        self.assertEqual(findings(said)["flash"][0]["verdict"], "problem")
        self.assertIn(str(missing), findings(said)["flash"][0]["value"])

    def test_by_root_it_says_what_the_nodes_own_user_may_not_do(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("asks about the node of another user: run as root")
        self.directory.chmod(0o755)
        memory, flash, key, config = (self.directory / name for name in ("m", "flash", "key", "c.toml"))
        for path in (memory, flash):
            path.mkdir(0o700)
            os.chown(path, 65534, 65534)
        key.write_text("0" * 64 + "\n")
        key.chmod(0o600)
        lines = f'memory = "64MiB"\nmemory_dir = "{memory}"\nsocket = "{memory}/s"\n'
        config.write_text(lines)
        found = findings(run("cistern", "doctor", "--config", config, "--json"))
        self.assertIn("whose memory_dir it is", found["user"][0]["value"])
        self.assertIn("uid 65534", found["clients"][0]["value"])
        self.assertNotIn("settings", found)
        os.chown(flash, 0, 0)
        config.write_text(f'{lines}flash = ["{flash}:256MiB"]\n')
        said = run("cistern", "doctor", "--config", config, "--json")
        self.assertEqual(said.returncode, 1)
        self.assertIn("EACCES", findings(said)["flash"][0]["value"])
        config.write_text(f'{lines}cell = "http://127.0.0.1:9"\nmember = "a"\ncell_address = "127.0.0.1:9"\n'
                          f'cell_key = "{key}"\n')
        found = findings(run("cistern", "doctor", "--config", config, "--json"))
        self.assertIn("Permission denied", found["settings"][0]["value"])
        config.chmod(0o600)
        found = findings(run("cistern", "doctor", "--config", config, "--json"))
        self.assertIn("Permission denied", found["settings"][0]["value"])

    def test_an_arena_without_a_node_says_how_to_free_it(self) -> None:
        node = self.node()
        node.end()
        # Seen from a node of another tenant.
        config = self.directory / "other.toml"
        config.write_text(
            f'memory = "64MiB"\ntenant = "other"\nsocket = "{self.directory}/s"\n'
            f'memory_dir = "{self.directory}/memory"\n'
        )
        said = run("cistern", "doctor", "--config", config, "--json")
        left = [f for f in findings(said)["arenas"] if f"{self.directory}/memory/default" in f["value"]]
        self.assertEqual(len(left), 1, findings(said)["arenas"])
        self.assertEqual(left[0]["verdict"], "warning")
        self.assertTrue(left[0]["mend"].endswith(
            f"cistern forget --memory-dir {self.directory}/memory --tenant default"), left[0]["mend"])

    def test_a_node_of_another_tenant_is_asked_as_its_file_says(self) -> None:
        node = self.node('memory = "128MiB"\ntenant = "blue"\n')
        said = run("cistern", "doctor", "--config", node.config, "--socket", node.socket, "--json")
        self.assertIn("node_loop", findings(said))

    def test_a_file_with_which_no_node_starts_is_a_problem(self) -> None:
        config = self.directory / "c.toml"
        flash = self.directory / "flash"
        flash.mkdir()
        for line, text in (('quota = ["a:flash=1GiB"]', "this node has none"), (f'flash = ["{flash}"]', "say how much"),
                           (f'socket = "/run/{"s" * 200}"', "at most 107")):
            config.write_text(f'memory = "64MiB"\nmemory_dir = "{self.directory}/memory"\n{line}\n')
            self.assert_says(run("cisternd", "--check", "--config", config), 2, text)
            said = run("cistern", "doctor", "--config", config, "--json")
            [settings] = [f for f in findings(said).get("settings", []) + findings(said).get("flash", [])
                          if f["verdict"] == "problem"]
            self.assertIn(text, settings["value"])
            self.assertEqual(said.returncode, 1, line)

    def test_a_path_of_any_bytes_is_said_in_json(self) -> None:
        config = self.directory / "c.toml"
        config.write_bytes(b'memory = "64MiB"\nmemory_dir = "' + bytes(self.directory) + b'/m\xff"\n')
        said = run("cistern", "doctor", "--config", config, "--socket", self.directory / "none", "--json")
        self.assertIn("/m\u01ff", findings(said)["memory_dir"][0]["value"])

    def test_a_node_that_is_there_is_not_to_be_started(self) -> None:
        node = self.node()
        said = node.cistern("doctor", "--tenant", "another", "--json")
        [denied] = findings(said)["node"]
        self.assertIn("denied", denied["value"])
        self.assertIn("--tenant", denied["mend"])
        self.assertNotIn("start one", denied["mend"])
        silent = self.directory / "silent"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(str(silent))
            listener.listen()
            said = run("cistern", "doctor", "--socket", silent, "--deadline", "1ms", "--json")
        [late] = findings(said)["node"]
        self.assertIn("too_late", late["value"])
        self.assertIn("its log says what it does, or give it longer", late["value"])
        self.assertEqual(late["verdict"], "problem")
        self.assertIn("start it again", late["mend"])
        self.assertEqual(said.returncode, 1)

    def test_no_node_is_a_warning_and_a_broken_file_wrong_usage(self) -> None:
        said = run("cistern", "doctor", "--socket", self.directory / "none", "--json")
        self.assertEqual(findings(said)["node"][0]["verdict"], "warning")
        config = self.directory / "c.toml"
        config.write_text("memroy = 1\n")
        self.assert_says(run("cistern", "doctor", "--config", config), 2, "c.toml:1", "memory")


class Namespaces(OperateTest):
    def test_each_has_its_fields_and_bytes(self) -> None:
        node = self.node()
        self.assertEqual(node.json("namespaces"), {"namespaces": []})
        self.assertIn(b"nothing has been put", node.cistern("namespaces").stdout)
        node.cistern("put", "--namespace", "a", KEYS[0], "-", stdin=bytes(5000))
        node.cistern("put", "--namespace", "a", "--parent", KEYS[0], KEYS[1], "-", stdin=bytes(3000))
        node.cistern("put", "--namespace", "b", KEYS[0], "-", stdin=bytes(7000))
        a, b = node.json("namespaces")["namespaces"]
        self.assertEqual(a["names"], ["a"])
        self.assertEqual(a["fields"], {"name": "a"})
        self.assertEqual([g["name"] for g in a["groups"]], ["full"])
        self.assertEqual((a["blocks"], a["memory"]), (2, {"records": 2, "bytes": 8000}))
        self.assertEqual((b["blocks"], b["memory"]), (1, {"records": 1, "bytes": 7000}))
        self.assertEqual(a["flash"], {"records": 0, "bytes": 0})
        self.assertNotEqual(a["fingerprint"], b["fingerprint"])
        self.assertEqual((a["uses"], a["unused_us"]), (0, None))
        page = (pathlib.Path(__file__).resolve().parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
        self.assertEqual([field for field in a if f"`{field}`" not in page], [])
        text = node.cistern("namespaces").stdout.decode()
        self.assertIn(a["fingerprint"], text)
        self.assertIn("2 blocks", text)

    def test_names_that_are_no_utf8_stay_apart_and_are_found_by_their_bytes(self) -> None:
        node = self.node()
        names = [os.fsdecode(b"a\xfe"), os.fsdecode(b"a\xff")]
        for name in names:
            self.assert_says(node.cistern("put", "--namespace", name, KEYS[0], "-", stdin=b"kv"), 0)
        listed = node.json("namespaces")["namespaces"]
        self.assertEqual(sorted(name for one in listed for name in one["names"]), ["a\u01fe", "a\u01ff"])
        self.assert_says(node.cistern("admin", "drop", names[0]), 0)
        self.assertEqual(node.cistern("get", "--namespace", names[0], KEYS[0], "-").returncode, 1)
        self.assertEqual(node.cistern("get", "--namespace", names[1], KEYS[0], "-").stdout, b"kv")

    def test_diff_says_what_keeps_two_apart(self) -> None:
        node = self.node()
        for name in ("a", "b"):
            node.cistern("put", "--namespace", name, KEYS[0], "-", stdin=b"x")
        diff = node.json("namespaces", "diff", "a", "name=b")
        self.assertEqual(diff["differences"], [{"what": "field name", "a": "a", "b": "b", "identity": True}])
        self.assertFalse(diff["shared"])
        self.assertIn(b"share no blocks", node.cistern("namespaces", "diff", "a", "b").stdout)
        same = node.json("namespaces", "diff", "a", node.json("namespaces")["namespaces"][0]["fingerprint"][:8])
        self.assertEqual((same["shared"], same["differences"]), (True, []))

    def test_bad_input_names_what_there_is(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "a", KEYS[0], "-", stdin=b"x")
        self.assert_says(node.cistern("namespaces", "diff", "a", "c"), 1, "namespace c", "it has a")
        self.assert_says(node.cistern("namespaces", "diff", "a"), 2, "diff takes two")
        self.assert_says(node.cistern("namespaces", "dif", "a", "b"), 2, "dif", "diff")
        self.assert_says(run("cistern", "namespaces", "--socket", self.directory / "none"), 1, "none")


class Config(OperateTest):
    def test_each_value_says_where_it_comes_from(self) -> None:
        node = self.node('# a node\nmemory = "128MiB"\nmovers = 2\n', "--movers", 1)
        self.assertEqual(node.setting("memory"),
                         {"name": "memory", "value": "128MiB", "from": f"{node.config}:2", "reload": True})
        self.assertEqual(node.setting("movers"), {"name": "movers", "value": "1", "from": "--movers", "reload": False})
        self.assertEqual(node.setting("log_level"),
                         {"name": "log_level", "value": "info", "from": "default", "reload": True})
        self.assertIn(b"restart", node.cistern("config").stdout)

    def test_a_reload_changes_what_can_be_and_says_what_waits(self) -> None:
        node = self.node()
        movers = node.setting("movers")["value"]
        said = node.reload('memory = "128MiB"\nlog_level = "debug"\nscrub = "1MiB/s"\nmovers = 9\n',
                           "log_level: info -> debug", f"movers: is {movers} until the next start, which takes 9")
        self.assertIn("scrub: 8MiB/s -> 1MiB/s", "".join(said))
        self.assertEqual(node.setting("log_level")["value"], "debug")
        self.assertEqual(node.setting("log_level")["from"], f"{node.config}:2")
        self.assertEqual(node.setting("movers")["value"], movers)
        # A line that is gone again means the default.
        node.reload('memory = "128MiB"\n', "log_level: debug -> info")
        self.assertEqual(node.setting("log_level")["from"], "default")
        node.reload('memory = "128MiB"\nmovers = 9\n', "movers: is")
        said = node.reload('memory = "128MiB"\nlog_level = "debug"\n', "log_level: info -> debug")
        self.assertNotIn("nothing has changed", "".join(said))
        node.reload('memory = "128MiB"\nlog_level = "debug"\n', "nothing has changed")

    def test_the_manual_names_each_setting_that_a_reload_changes(self) -> None:
        node = self.node()
        manual = (pathlib.Path(__file__).resolve().parents[2] / "docs/operations.md").read_text()
        [named] = [" ".join(part.split()) for part in manual.split("\n\n") if part.startswith("**Reload.**")]
        names = {setting["name"] for setting in node.json("config")["settings"] if setting["reload"]}
        said = named.split(" change while the node runs")[0]
        self.assertEqual({name for name in names if f"`{name}`" not in said}, set())

    def test_a_reload_keeps_sessions_and_blocks(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "a", KEYS[0], "-", stdin=b"stays")
        node.reload('memory = "128MiB"\nlinger = "1h"\n', "linger: never -> 1h")
        self.assertEqual(node.cistern("get", "--namespace", "a", KEYS[0], "-").stdout, b"stays")
        self.assertEqual(node.end(), 0)

    def test_a_flag_outlives_a_reload(self) -> None:
        node = self.node('memory = "128MiB"\n', "--linger", "1h")
        node.reload('memory = "128MiB"\nlinger = "2h"\nscrub = "1MiB/s"\n', "scrub: 8MiB/s -> 1MiB/s")
        self.assertEqual(node.setting("linger"), {"name": "linger", "value": "1h", "from": "--linger", "reload": True})

    def test_one_bad_key_is_named_and_nothing_changes(self) -> None:
        node = self.node()
        node.reload('memory = "128MiB"\nlog_level = "debug"\nscrubb = "1MiB/s"\n', "cistern.toml:3: unknown key scrubb")
        self.assertEqual(node.setting("log_level")["value"], "info")
        node.reload('memory = "4096TiB"\nlog_level = "debug"\n', "the settings stay: memory: 4096TiB")
        self.assertEqual(node.setting("log_level")["value"], "info")
        node.config.unlink()
        node.process.send_signal(signal.SIGHUP)
        node.says("cannot be read: No such file")
        node.config.mkdir()  # as a mount of a file that is not there makes it
        node.process.send_signal(signal.SIGHUP)
        node.says("cannot be read: Is a directory")
        node.config.rmdir()
        node.config.symlink_to("/dev/zero")
        node.process.send_signal(signal.SIGHUP)
        node.says("is longer than")
        self.assertEqual(node.setting("log_level")["value"], "info")
        self.assertEqual(node.end(), 0)

    def test_a_file_is_checked_and_shown_without_a_node(self) -> None:
        config = self.directory / "c.toml"
        config.write_text(f'memory = "64MiB"\nmemory_dir = "{self.directory}/m"\nlinger = "5s"\n')
        check = run("cistern", "config", "--check", config)
        self.assert_says(check, 0)
        self.assertEqual(check.stdout, b"")
        shown = json.loads(run("cistern", "config", "--file", config, "--json").stdout)["settings"]
        self.assertIn({"name": "linger", "value": "5s", "from": f"{config}:3", "reload": True}, shown)
        config.write_text('lnger = "5s"\n')
        self.assert_says(run("cistern", "config", "--check", config), 2, "c.toml:1", "linger")
        self.assert_says(run("cistern", "config", "--check", config, "--file", config), 2, "exclude")

    def test_a_check_makes_nothing_and_one_by_root_is_of_another_users_node_too(self) -> None:
        flash = self.directory / "flash"
        flash.mkdir()
        config = self.directory / "c.toml"
        config.write_text(f'memory = "64MiB"\nmemory_dir = "{self.directory}/m"\nflash = "{flash}:256MiB"\n')
        self.assert_says(run("cistern", "config", "--check", config), 0)
        self.assertEqual(list(flash.iterdir()), [])
        if os.geteuid() == 0:
            (flash / "default").mkdir(0o700)
            os.chown(flash / "default", 65534, 65534)
            self.assert_says(run("cistern", "config", "--check", config), 0)
            self.assertEqual((flash / "default").stat().st_uid, 65534)


class Drain(OperateTest):
    def test_for_an_upgrade_it_ends_and_the_next_is_warm(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "a", KEYS[0], "-", stdin=b"stays")
        said = node.cistern("admin", "drain", "--for", "upgrade", "--stop")
        self.assert_says(said, 0)
        self.assertRegex(said.stdout.decode(), "drained in .*: memory's files keep 1 blocks .*; the node has ended")
        self.assertEqual(node.process.wait(), 0)
        assert node.process.stderr is not None
        node.process.stderr.close()
        node.start()
        self.check_ready(node)
        self.assertEqual(node.cistern("get", "--namespace", "a", KEYS[0], "-").stdout, b"stays")

    def test_what_the_time_was_over_for_is_not_waited_for_twice(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "a", KEYS[0], "-", stdin=b"stays")
        said = node.cistern("admin", "drain", "--stop")
        self.assert_says(said, 1)
        self.assertIn("1 blocks go with the host's memory", said.stdout.decode())
        assert node.process.stderr is not None
        self.assertEqual(node.process.stderr.read().count("drain: no puts from now on"), 1)
        self.assertEqual(node.process.wait(), 0)

    def test_what_goes_with_memory_is_said_and_off_undoes_it(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "a", KEYS[0], "-", stdin=b"stays")
        said = node.cistern("admin", "drain")
        self.assert_says(said, 1)
        self.assertIn("1 blocks go with the host's memory, since this node has no flash", said.stdout.decode())
        drained = node.cistern("admin", "drain", "on", "--json")
        self.assertEqual(json.loads(drained.stdout), {"drain": "drained", "complete": False, "alone_records": 1,
                                                      "given_blocks": 0, "given_bytes": 0, "lost_blocks": 1,
                                                      "leases": 0, "pending": 0, "stopped": False})
        put = node.cistern("put", "--namespace", "a", KEYS[1], "-", stdin=b"no")
        self.assert_says(put, 1, "the node drains")
        self.assert_says(node.cistern("admin", "drain", "off"), 0)
        self.assertEqual(node.cistern("get", "--namespace", "a", KEYS[0], "-").stdout, b"stays")
        self.assertEqual(node.end(), 0)

    def test_bad_input(self) -> None:
        socket = self.directory / "none"
        for words, text in ((["drain", "offf"], "did you mean off"), (["drain", "--for", "fun"], "--for fun"),
                            (["drain", "--within", "5"], "--within"),
                            (["drain", "--within", "2h"], "is over the limit of 1h"), (["memory"], "say what to"),
                            (["drain", "--for", ""], "--for"),
                            (["writes", "off", "--within", "5min"], "--within: is of drain"),
                            (["reads", "on", "--for", "upgrade"], "--for: is of drain"),
                            (["drain", "--namespace", "a"], "drain is of the whole node"),
                            (["drop", "a", "--namespace", "b"], "drop names its own"),
                            (["drain", "off", "--stop"], "--stop: is of drain")):
            self.assert_says(run("cistern", "admin", "--socket", socket, *words), 2, text)
        self.assert_says(run("cistern", "admin", "--socket", socket, "drain"), 1, "none")


class Top(OperateTest):
    def test_rates_are_of_two_looks_and_one_object(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "a", KEYS[0], "-", stdin=bytes(4096))
        top = node.json("top", "--interval", "1ms")
        self.assertGreater(top["seconds"], 0)
        self.assertGreater(top["used_bytes"], 0)
        self.assertEqual(top["rates_per_s"]["store.published"], 0)
        self.assertGreater(top["rates_per_s"]["door.calls"], 0)
        self.assertEqual([ns["name"] for ns in top["namespaces"]], ["a"])
        self.assert_says(node.cistern("top", "--json", "--count", 5), 2, "--count", "--json is one object")

    def test_it_draws_as_many_looks_as_were_asked_for(self) -> None:
        node = self.node()
        node.cistern("put", "--namespace", "demo", KEYS[0], "-", stdin=bytes(4096))
        said = node.cistern("top", "--interval", "1ms", "--count", 3).stdout.decode()
        self.assertEqual(said.count("memory ["), 3)
        self.assertIn("demo", said)
        self.assertNotIn("\033", said)

    def test_it_ends_where_its_output_is_full(self) -> None:
        node = self.node()
        with open("/dev/full", "wb") as full:
            said = subprocess.run([BIN / "cistern", "top", "--socket", node.socket, "--interval", "1ms"], stdout=full,
                                  stderr=subprocess.PIPE, timeout=TIMEOUT_S, check=False)
        self.assert_says(said, 1, "No space left on device")

    def test_bad_input(self) -> None:
        self.assert_says(run("cistern", "top", "--socket", self.directory / "none", "--count", 1), 1, "none")
        self.assert_says(run("cistern", "top", "--interval", "0s"), 2, "--interval")
        self.assert_says(run("cistern", "top", "--interval", "5"), 2, "--interval", "5")


if __name__ == "__main__":
    unittest.main()
