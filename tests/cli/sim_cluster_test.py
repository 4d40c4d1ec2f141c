# SPDX-License-Identifier: Apache-2.0
"""`cistern sim cluster` as people and scripts meet it.

Usage: sim_cluster_test.py BIN_DIR [unittest arguments]
"""

import json
import pathlib
import subprocess
import tempfile
import unittest

from programs import Page, run

WORKLOAD = "generated:sessions=40,turns=5,seed=3"


def cluster(*words: object) -> subprocess.CompletedProcess[bytes]:
    return run("cistern", "sim", "cluster", *words)


class WhatItSays(unittest.TestCase):
    def test_every_router_answers_every_request(self) -> None:
        report = json.loads(cluster(WORKLOAD, "--nodes", 4, "--router", "all", "--json").stdout)
        routers = ["random", "round-robin", "least-loaded", "affinity", "local", "global"]
        self.assertEqual([one["router"] for one in report["runs"]], routers)
        for one in report["runs"]:
            self.assertEqual(one["answered"], 200)
            self.assertGreater(one["first_token_s"]["mean"], 0)
            self.assertEqual(one["store"], "global" if one["router"] == "global" else "local")

    def test_same_command_same_words(self) -> None:
        words = (WORKLOAD, "--nodes", 4, "--decode-nodes", 1, "--router", "random", "--fail-every", "2min")
        self.assertEqual(cluster(*words).stdout, cluster(*words).stdout)

    def test_page_stands_alone(self) -> None:
        with tempfile.TemporaryDirectory(prefix="cistern-fleet-") as directory:
            path = pathlib.Path(directory, "fleet.html")
            self.assertEqual(cluster(WORKLOAD, "--nodes", 2, "--router", "all", "--html", path).returncode, 0)
            page = Page()
            page.feed(path.read_text())
        self.assertEqual(page.tags.count("svg"), 2)
        self.assertEqual(page.asks, [])
        self.assertNotIn("script", page.tags)

    def test_goodput_and_cost_only_where_asked_for(self) -> None:
        plain = json.loads(cluster(WORKLOAD, "--json").stdout)["runs"][0]
        self.assertTrue({"goodput", "usd"}.isdisjoint(plain))
        asked = json.loads(cluster(WORKLOAD, "--first-token", "2s", "--gpu-hour", 2, "--json").stdout)["runs"][0]
        self.assertAlmostEqual(asked["usd"], 2 * asked["gpu_hours"])
        self.assertLessEqual(asked["goodput"], asked["rate"])


class BadInput(unittest.TestCase):
    def test_message_names_what_is_wrong_and_nothing_is_printed(self) -> None:
        for words, message in {
            ("--gpus", 1): "a node of 1 x H100-80GB cannot hold the weights: Llama-3-70B takes 141.2 GB",
            ("--first-token", "1ms"): "--first-token: 1 ms cannot be met by any request",
            ("--first-token", "0s"): "--first-token: 0 us cannot be met by any request",
            ("--fail-every", "1ms"): "--fail-every is 1 ms: expected 10 s or more",
            ("--per-token", "1ms"): "--per-token: 1 ms cannot be met by any request",
            ("--decode-nodes", 16): "--decode-nodes is 16 of 16 nodes",
            ("--nodes", 0): "--nodes: 0 is out of range",
            ("--times", -3): "--times: -3 is out of range",
            ("--gpu-hour", "2USD"): "--gpu-hour: 2USD is no number",
            ("--router", "best"): "there is no router 'best'",
            ("--router", "all", "--router", "local"): "--router: local is named twice",
            ("--repair", "5s"): "--repair is of nodes that fail: give --fail-every with it",
            ("--active-parameters", "1e12"): "--active-parameters is 1e+12, above the 7.06e+10 that Llama-3-70B has",
            ("--html", "-"): "--html: standard output has the report",
            ("--store", "both"): "--store: 'both' is neither local nor global",
            ("--cache", "3M"): "--cache: 3M is not a whole number",
        }.items():
            with self.subTest(words=words):
                result = cluster(WORKLOAD, *words)
                self.assertEqual((result.returncode, result.stdout), (2, b""))
                self.assertIn(message, result.stderr.decode())

    def test_trace_that_ends_mid_line_is_named_by_line(self) -> None:
        with tempfile.TemporaryDirectory(prefix="cistern-fleet-") as directory:
            path = pathlib.Path(directory, "cut.jsonl")
            line = '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
            path.write_text(line + line[:30])
            result = cluster(path)
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(result.stdout, b"")
        self.assertIn("cut.jsonl:2:", result.stderr.decode())


if __name__ == "__main__":
    unittest.main(verbosity=2)
