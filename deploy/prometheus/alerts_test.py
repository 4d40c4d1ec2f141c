# SPDX-License-Identifier: Apache-2.0
"""Each alarm fires where its fault is and nowhere else: on series of each fault, by promtool, and, where a fault is
cheap to make, on a real node that a real Prometheus scrapes.

Usage: alerts_test.py BIN_DIR DIRECTORY_OF_PROMETHEUS_AND_PROMTOOL [unittest arguments]
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from collections.abc import Callable
from typing import Any

import yaml

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
TOOLS = pathlib.Path(sys.argv.pop(1)).resolve()
RULES = pathlib.Path(__file__).resolve().parent / "cistern.rules.yml"
TIMEOUT_S = 300
EVERY_MINUTES = 5
NODE = '{instance="a",job="cistern"}'


def alarms() -> list[str]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return [rule["alert"] for rule in group["rules"]]


def labelled(name: str, more: str = "") -> str:
    return name + NODE.replace("{", "{" + more + "," if more else "{")


def counts(name: str, a_minute: int, more: str = "") -> tuple[str, str]:
    return labelled(name, more), f"0+{EVERY_MINUTES * a_minute}x320"


def stays(name: str, value: float, more: str = "") -> tuple[str, str]:
    return labelled(name, more), f"{value:g}x320"


# What a node shows that is well and works.
HEALTHY: dict[str, str] = dict([
    stays("up", 1),
    (labelled("cistern_node_uptime_seconds"), f"0+{EVERY_MINUTES * 60}x320"),
    stays("cistern_node_boot_count", 7),
    stays("cistern_cell_info", 1, 'trouble_code="ok"'),
    stays("cistern_cell_info", 0, 'trouble_code="busy"'),
    stays("cistern_cell_members", 3),
    stays("cistern_cell_reachable", 2),
    stays("cistern_cell_without_rail", 0),
    stays("cistern_cell_discards_total", 1),
    stays("cistern_cell_certificate_ends", 90 * 86400),
    stays("cistern_switches_reads_on", 1),
    stays("cistern_switches_writes_on", 1),
    stays("cistern_switches_reads_off_namespaces", 0),
    stays("cistern_switches_writes_off_namespaces", 0),
    stays("cistern_switches_reads_off_engines", 0),
    stays("cistern_switches_writes_off_engines", 0),
    counts("cistern_waits_seconds_bucket", 1200, 'of="tick",le="0.001"'),
    counts("cistern_waits_seconds_bucket", 1200, 'of="tick",le="1"'),
    counts("cistern_waits_seconds_bucket", 1200, 'of="tick",le="+Inf"'),
    stays("cistern_door_refused_total", 3),
    stays("cistern_door_ended_forged_total", 0),
    counts("cistern_reads_asked_blocks_total", 6000),
    counts("cistern_reads_indexed_blocks_total", 4000),
    counts("cistern_reads_found_below_total", 500),
    counts("cistern_misses_total", 1000, 'reason="unknown"'),
    counts("cistern_misses_total", 400, 'reason="evicted"'),
    counts("cistern_misses_total", 100, 'reason="too_late"'),
    counts("cistern_misses_total", 100, 'reason="other_namespace"'),
    counts("cistern_engines_spent_seconds_total", 5),
    counts("cistern_engines_saved_seconds_total", 60),
    stays("cistern_store_writes_without_room_total", 0),
    stays("cistern_door_staging_bytes", 1 << 20),
    stays("cistern_door_staging_budget_bytes", 128 << 20),
    stays("cistern_now_namespaces_wanted", 12),
    stays("cistern_store_cut_bad_total", 2),
    stays("cistern_device_in_service", 1, 'path="/d"'),
    stays("cistern_device_errors_total", 0, 'path="/d"'),
    stays("cistern_device_bad_records_total", 0, 'path="/d"'),
    stays("cistern_store_down_over_budget_total", 0),
    counts("cistern_store_evicted_unwritten_total", 5),
    counts("cistern_store_evicted_total", 600),
    stays("cistern_journal_failed", 0),
    stays("cistern_journal_spare_bytes", 65536),
])

# What is otherwise where it is not.
FAULTS: dict[str, list[tuple[str, str]]] = {
    "CisternDown": [stays("up", 0)],
    # In a container its pid is 1 each time, and with new memory so is the count.
    "CisternRestarts": [(labelled("cistern_node_uptime_seconds"), " ".join(["20 40"] * 160))],
    "CisternSwitchedOff": [stays("cistern_switches_reads_off_namespaces", 1)],
    "CisternCoreLate": [counts("cistern_waits_seconds_bucket", 1000, 'of="tick",le="0.001"')],
    "CisternEnginesRefused": [counts("cistern_door_refused_total", 1)],
    "CisternForgedCalls": [(labelled("cistern_door_ended_forged_total"), "0x296 1x24")],
    "CisternNoHits": [counts("cistern_reads_indexed_blocks_total", 0), counts("cistern_reads_found_below_total", 0)],
    "CisternHitsFell": [(labelled("cistern_reads_indexed_blocks_total"), "0+20000x280 5600000+2500x40")],
    "CisternNotShared": [counts("cistern_misses_total", 700, 'reason="other_namespace"')],
    "CisternEvictsWhatIsWanted": [counts("cistern_misses_total", 1500, 'reason="evicted"')],
    "CisternTooLate": [counts("cistern_misses_total", 700, 'reason="too_late"')],
    "CisternCostsMoreThanItSaves": [counts("cistern_engines_spent_seconds_total", 61)],
    "CisternNoRoomForPuts": [counts("cistern_store_writes_without_room_total", 1)],
    "CisternStagingShort": [stays("cistern_door_staging_bytes", 125 << 20)],
    "CisternCellTrouble": [stays("cistern_cell_info", 1, 'trouble_code="busy"')],
    "CisternCellMemberUnreached": [stays("cistern_cell_reachable", 1)],
    "CisternCellNoBlocks": [stays("cistern_cell_without_rail", 1)],
    "CisternCellDiscarded": [(labelled("cistern_cell_discards_total"), "1x296 2x24")],
    "CisternCertificateEnds": [stays("cistern_cell_certificate_ends", 14 * 86400)],
    "CisternNamespacesShort": [stays("cistern_now_namespaces_wanted", 901)],
    "CisternBadBlocks": [(labelled("cistern_store_cut_bad_total"), "2x296 3x24")],
    "CisternDeviceOut": [stays("cistern_device_in_service", 0, 'path="/d"')],
    "CisternDeviceErrors": [(labelled("cistern_device_bad_records_total", 'path="/d"'), "0x296 1x24")],
    "CisternEnduranceSpent": [counts("cistern_store_down_over_budget_total", 16)],
    "CisternFlashBehind": [counts("cistern_store_evicted_unwritten_total", 100)],
    "CisternJournalFails": [stays("cistern_journal_spare_bytes", 0)],
}


class OnSeries(unittest.TestCase):
    def firing(self, series: dict[str, str], expected: set[str], name: str) -> None:
        """That exactly these fire at 25 h, of which each series has values from the start on."""
        with tempfile.TemporaryDirectory() as directory:
            case = {
                "interval": f"{EVERY_MINUTES}m",
                "input_series": [{"series": one, "values": values} for one, values in series.items()],
                "promql_expr_test": [{
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "1500m",
                    "exp_samples": [{"labels": f'{{alertname="{alarm}"}}', "value": 1} for alarm in sorted(expected)],
                }],
            }
            file = pathlib.Path(directory) / "test.yml"
            cases = {"rule_files": [str(RULES)], "evaluation_interval": f"{EVERY_MINUTES}m", "tests": [case]}
            file.write_text(yaml.safe_dump(cases))
            said = subprocess.run([TOOLS / "promtool", "test", "rules", file], capture_output=True, text=True,
                                  timeout=TIMEOUT_S, check=False)
            self.assertEqual(said.returncode, 0, f"{name}: {said.stdout}{said.stderr}")

    def test_the_rules_are_rules(self) -> None:
        said = subprocess.run([TOOLS / "promtool", "check", "rules", "--lint=all", "--lint-fatal", RULES],
                              capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(said.returncode, 0, said.stdout + said.stderr)

    def test_a_healthy_node_raises_none(self) -> None:
        self.firing(HEALTHY, set(), "healthy")

    def test_each_fault_raises_its_alarm_and_no_other(self) -> None:
        self.assertEqual(set(FAULTS), set(alarms()))
        for alarm, changed in FAULTS.items():
            for series, _ in changed:
                self.assertIn(series, HEALTHY)
            self.firing(HEALTHY | dict(changed), {alarm}, alarm)

    def test_what_other_members_have_is_found(self) -> None:
        """A node that has all from its cell, and one that nobody but the cell asks."""
        found = counts("cistern_cell_peer_found_blocks_total", 4500)
        self.firing(HEALTHY | dict([*FAULTS["CisternNoHits"], found]), set(), "all from members")
        moved = (labelled("cistern_cell_peer_found_blocks_total"), "0x280 0+17500x40")
        self.firing(HEALTHY | dict([*FAULTS["CisternHitsFell"], moved]), set(), "half from members")
        unasked = [counts("cistern_reads_asked_blocks_total", 0), counts("cistern_reads_indexed_blocks_total", 0),
                   counts("cistern_reads_found_below_total", 0)]
        self.firing(HEALTHY | dict(unasked), set(), "a store of the cell")


def free_port() -> int:
    """Below those that the system gives to connections."""
    while True:
        port = random.SystemRandom().randrange(15_000, 20_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port


class OnANode(unittest.TestCase):
    """A node that Prometheus scrapes five times a second, with rules that look at seconds and wait for nothing."""

    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="cistern-alerts-", dir="/dev/shm")
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)
        (self.directory / "flash").mkdir()
        self.socket = self.directory / "socket"
        self.ports = free_port(), free_port()
        self.node = self.start(
            BIN / "cisternd", "--memory", "64MiB", "--memory-dir", self.directory / "memory", "--socket", self.socket,
            "--http", self.ports[0], "--flash", f"{self.flash_directory()}:256MiB", "--log-level", "error")
        rules = re.sub(r"\[\d+[mh]\]", "[10s]", re.sub(r"for: \d+[mh]", "for: 0s", RULES.read_text()))
        (self.directory / "rules.yml").write_text(rules)
        (self.directory / "prometheus.yml").write_text(
            "global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}\n"
            f"rule_files: [{self.directory}/rules.yml]\n"
            "scrape_configs:\n  - job_name: cistern\n"
            f"    static_configs: [{{targets: ['127.0.0.1:{self.ports[0]}']}}]\n")
        self.until(lambda: self.cistern("status").returncode == 0, "the node serves")
        self.start(TOOLS / "prometheus", f"--config.file={self.directory}/prometheus.yml",
                   f"--storage.tsdb.path={self.directory}/tsdb", f"--web.listen-address=127.0.0.1:{self.ports[1]}",
                   "--log.level=error")
        self.until(lambda: self.value("up") == "1", "Prometheus scrapes the node")

    def flash_directory(self) -> pathlib.Path:
        scratch = tempfile.TemporaryDirectory(prefix="cistern-alerts-", dir=BIN.parent)
        self.addCleanup(scratch.cleanup)
        return pathlib.Path(scratch.name)

    def start(self, *words: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(list(map(str, words)))
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.wait()))
        return process

    def cistern(self, command: str, *words: object, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([BIN / "cistern", command, "--socket", self.socket, *map(str, words)], input=stdin,
                              capture_output=True, timeout=TIMEOUT_S, check=False)

    def ask(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.ports[1]}/api/v1/{path}", timeout=TIMEOUT_S) as said:
                return json.load(said)["data"]
        except OSError:  # it starts
            return {"result": [], "alerts": []}

    def value(self, query: str) -> str:
        result = self.ask(f"query?query={query}")["result"]
        return result[0]["value"][1] if result else ""

    def fires(self, alarm: str, fault: Callable[[], object] = lambda: None) -> None:
        """The fault is made again until the alarm is there: a rate wants some of it in each of its windows."""
        def so() -> bool:
            fault()
            return any(one["labels"]["alertname"] == alarm for one in self.ask("alerts")["alerts"])
        self.until(so, alarm)

    def until(self, so: Callable[[], bool], what: str) -> None:
        signal.signal(signal.SIGALRM, lambda *_: self.fail(f"in vain: {what}"))
        signal.alarm(TIMEOUT_S)
        while not so():
            pass
        signal.alarm(0)

    def test_faults_that_are_made_raise_their_alarms(self) -> None:
        keys = [f"{i:032x}" for i in range(1, 100)]
        namespace = ("--namespace", "n")
        self.assertEqual(self.cistern("put", *namespace, keys[0], "-", stdin=b"a block").returncode, 0)
        self.fires("CisternNoHits", lambda: self.cistern("match", *namespace, *keys[1:]))
        self.fires("CisternEnginesRefused", lambda: self.cistern("status", "--tenant", "another"))
        self.cistern("admin", "reads", "off")
        self.fires("CisternSwitchedOff")
        self.cistern("admin", "reads", "on")
        [device] = json.loads(self.cistern("status", "--json").stdout)["flash"]["devices"]
        taken = self.cistern("device", "take-out", device["path"])
        self.assertEqual(taken.returncode, 0, taken.stderr)
        self.fires("CisternDeviceOut")
        self.node.kill()
        self.fires("CisternDown")

    def test_blocks_that_had_to_go_and_are_asked_for_raise_theirs(self) -> None:
        body = os.urandom(1 << 20)
        keys = [f"{i:032x}" for i in range(1, 121)]  # twice the memory
        [device] = json.loads(self.cistern("status", "--json").stdout)["flash"]["devices"]
        self.assertEqual(self.cistern("device", "take-out", device["path"]).returncode, 0)
        for key in keys:
            put = self.cistern("put", "--namespace", "n", key, "-", stdin=body)
            self.assertEqual(put.returncode, 0, put.stderr)
        self.fires("CisternEvictsWhatIsWanted", lambda: self.cistern("match", "--namespace", "n", *keys[:8]))


if __name__ == "__main__":
    unittest.main()
