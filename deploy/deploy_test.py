# SPDX-License-Identifier: Apache-2.0
"""What deploy/ has is right before anybody uses it: unit, users, settings, manuals, completion, alarms, manifests.

Usage: deploy_test.py BIN_DIR [unittest arguments]
"""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

import manuals
import yaml
from manifests import BIN, TIMEOUT_S, Manifests, run

HERE = pathlib.Path(__file__).resolve().parent


class Deploy(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="cistern-deploy-", dir="/dev/shm")
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)

    def written(self) -> pathlib.Path:
        argv, sys.argv = sys.argv, ["manuals.py", str(BIN), str(self.directory / "manuals")]
        try:
            manuals.main()
        finally:
            sys.argv = argv
        return self.directory / "manuals"

    def test_an_image_is_built_of_what_git_has_and_of_nothing_that_was_built(self) -> None:
        root = HERE.parent
        ignored = (root / ".gitignore").read_text().split() + ["/.git/"]
        left_out = (root / ".dockerignore").read_text().splitlines()
        for line in ignored:
            one = line.rstrip("/")
            self.assertIn(one if one.startswith("/") else f"**/{one}", left_out)

    def test_each_command_and_option_has_its_place_in_a_manual_page(self) -> None:
        out = self.written()
        commands = json.loads(run(BIN / "cistern", "--describe").stdout)["commands"]
        self.assertGreater(len(commands), 10)
        for command in commands:
            words = command["name"].split()
            one = json.loads(run(BIN / "cistern", *words, "--describe").stdout)
            page = (out / f"cistern-{'-'.join(words)}.1").read_text()
            helped = run(BIN / "cistern", *words, "--help").stdout
            self.assertEqual(one["program"], f"cistern {command['name']}")
            for option in one["options"]:
                self.assertIn(f"\\fB{manuals.roff(option['name'])}\\fR", page)
                self.assertIn(option["name"], helped)
            self.assertTrue(one["example"].strip(), command["name"])
        for option in json.loads(run(BIN / "cisternd", "--describe").stdout)["options"]:
            self.assertIn(f"\\fB{manuals.roff(option['name'])}\\fR", (out / "cisternd.8").read_text())

    def test_manual_pages_have_no_mistake_that_man_warns_of(self) -> None:
        if shutil.which("man") is None:
            self.skipTest("there is no man here")
        for page in sorted(self.written().glob("*.[18]")):
            said = run("env", "LC_ALL=C.UTF-8", "man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page)
            self.assertEqual((said.returncode, said.stderr), (0, ""), page.name)

    def test_bash_completes_commands_and_their_options(self) -> None:
        file = self.written() / "cistern.bash"

        def completed(function: str, *words: str) -> list[str]:
            script = (f"source {file}; COMP_WORDS=({' '.join(words)}''); COMP_CWORD={len(words) - 1}; "
                      f"{function} {words[0]} '{words[-1]}' '{words[-2]}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
            said = run("bash", "-euc", script)
            self.assertEqual(said.returncode, 0, said.stderr)
            return said.stdout.split()

        self.assertEqual(completed("_cistern", "cistern", "nam"), ["namespaces"])
        self.assertEqual(completed("_cistern", "cistern", "put", "--names"), ["--namespace"])
        self.assertEqual(completed("_cistern", "cistern", "cell", "wh"), ["who"])
        self.assertEqual(completed("_cistern", "cistern", "cell", "who", "--names"), ["--namespace"])
        self.assertEqual(completed("_cisternd", "cisternd", "--memory-d"), ["--memory-dir"])
        self.assertEqual(completed("_cisternd", "cisternd", "--config", f"{HERE}/cistern.to"), [f"{HERE}/cistern.toml"])

    def test_the_settings_that_are_installed_are_settings(self) -> None:
        text = (HERE / "cistern.toml").read_text()
        config = self.directory / "c.toml"
        # Those that are only shown too, below a directory of this test's.
        shown = re.sub(r"(?m)^#(?=\w+ = )", "", text).replace("64GiB", "64MiB").replace("group:engines", "group:0")
        config.write_text(shown.replace("/dev/shm/cistern", str(self.directory / "memory")))
        said = run(BIN / "cistern", "config", "--file", config)
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn(f"{config}:", said.stdout)

    def test_the_unit_is_one_that_systemd_takes(self) -> None:
        if shutil.which("systemd-analyze") is None:
            self.skipTest("there is no systemd here")
        unit = self.directory / "cisternd.service"
        text = (HERE / "systemd/cisternd.service").read_text()
        unit.write_text(text.replace("/usr/bin/cisternd", str(BIN / "cisternd")))
        said = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit)
        self.assertEqual((said.returncode, said.stderr), (0, ""))

    def test_upgrade_over_a_node_that_does_not_start_again_leaves_the_package_installed(self) -> None:
        tools, booted = self.directory / "tools", self.directory / "booted"
        tools.mkdir()
        booted.mkdir()
        fails = '[ "$1" != try-restart ]'
        for name, code in (("systemctl", fails), ("systemd-sysusers", ":"), ("systemd-tmpfiles", ":")):
            (tools / name).write_text(f"#!/bin/sh\n{code}\n")
            (tools / name).chmod(0o755)
        script = (HERE / "debian/postinst").read_text().replace("/run/systemd/system", str(booted))
        self.assertIn(str(booted), script)
        said = run("env", f"PATH={tools}:/usr/bin:/bin", "sh", "-c", script, "postinst", "configure", "0.1")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("journalctl -u cisternd", said.stderr)

    def test_the_directory_that_containers_mount_outlives_the_node(self) -> None:
        settings = dict(line.split("=", 1) for line in (HERE / "systemd/cisternd.service").read_text().splitlines()
                        if "=" in line and not line.startswith("#"))
        self.assertEqual(settings["RuntimeDirectory"], "cistern")
        self.assertEqual(settings.get("RuntimeDirectoryPreserve"), "yes")

    def test_its_users_and_directories_are_what_systemd_reads(self) -> None:
        if shutil.which("systemd-sysusers") is None:
            self.skipTest("there is no systemd here")
        root = self.directory / "root"
        for where in ("etc", "dev/shm"):
            (root / where).mkdir(parents=True)
        said = run("systemd-sysusers", f"--root={root}", HERE / "systemd/cistern.sysusers")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn("cistern:", (root / "etc/passwd").read_text())

    def test_a_supervisor_is_told_when_the_node_serves_and_when_it_ends(self) -> None:
        told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(told.close)
        told.settimeout(TIMEOUT_S)
        told.bind(str(self.directory / "notify"))
        node = subprocess.Popen(
            [BIN / "cisternd", "--memory", "64MiB", "--memory-dir", self.directory / "m", "--socket",
             self.directory / "s", "--log-level", "error"],
            env={"NOTIFY_SOCKET": str(self.directory / "notify")},
        )
        self.addCleanup(lambda: node.poll() is None and node.kill())
        self.assertEqual(told.recv(100), b"READY=1")
        self.assertEqual(run(BIN / "cistern", "status", "--socket", self.directory / "s").returncode, 0)
        node.send_signal(signal.SIGTERM)
        self.assertEqual(told.recv(100), b"STOPPING=1")
        self.assertEqual(node.wait(timeout=TIMEOUT_S), 0)


def metrics() -> set[str]:
    """Each name in /metrics, a histogram's with its endings."""
    names = set()
    for row in run(BIN / "cisternd", "--metrics").stdout.splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        for name in re.findall(r"`(cistern_\w+)", row):
            names |= {f"{name}_{ending}" for ending in ("bucket", "sum", "count")} if "histogram" in cells else {name}
    return names


class Monitoring(unittest.TestCase):
    """`./dev alerts` fires the alarms; here is what needs no Prometheus."""

    def setUp(self) -> None:
        self.metrics = metrics()
        self.assertGreater(len(self.metrics), 100)
        self.rules = (HERE / "prometheus/cistern.rules.yml").read_text()
        self.board = json.loads((HERE / "grafana/cistern.json").read_text())

    def test_what_alarms_and_the_board_look_at_are_metrics(self) -> None:
        expressions = [target["expr"] for panel in self.board["panels"] for target in panel["targets"]]
        self.assertGreater(len(expressions), 20)
        for text in [self.rules, *expressions, self.board["templating"]["list"][1]["query"]["query"]]:
            self.assertEqual(set(re.findall(r"\bcistern_\w+", text)) - self.metrics, set(), text)

    def test_each_alarm_has_its_place_in_the_manual_and_each_place_an_alarm(self) -> None:
        manual = (HERE.parent / "docs/operations.md").read_text()
        self.assertEqual(re.findall(r"- alert: (\w+)", self.rules), re.findall(r"^\| `(Cistern\w+)` \|", manual, re.M))


class Kubernetes(Manifests):
    """`./dev chart` renders the chart; here is what needs no Helm."""

    def test_what_is_applied_without_helm_fits_together(self) -> None:
        found = self.check((HERE / "kubernetes/cistern.yaml").read_text())
        self.assertEqual(found["Namespace"]["metadata"]["name"], found["DaemonSet"]["metadata"]["namespace"])

    def test_templates_name_values_that_there_are(self) -> None:
        chart = HERE / "helm/cistern"
        values = yaml.safe_load((chart / "values.yaml").read_text())
        named = set()
        for template in sorted((chart / "templates").iterdir()):
            for path in re.findall(r"\.Values((?:\.\w+)+)", template.read_text()):
                steps, at = path.split(".")[1:], values
                named.add(steps[0])
                for step in steps:
                    self.assertIn(step, at, f"{template.name}: {path}")
                    at = at[step]
        self.assertEqual(named, set(values))


if __name__ == "__main__":
    unittest.main()
