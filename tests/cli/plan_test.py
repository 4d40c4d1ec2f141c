# SPDX-License-Identifier: Apache-2.0
"""`cistern plan` as people and scripts meet it.

Usage: plan_test.py BIN_DIR [unittest arguments]
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from programs import Page, run

WORKLOAD = "generated:sessions=40,turns=5,seed=3"


def plan(*words: object) -> subprocess.CompletedProcess[bytes]:
    return run("cistern", "plan", *words)


def figures(*words: object) -> dict[str, float]:
    report = json.loads(plan(*words, "--json").stdout)
    return {figure["key"]: figure["value"] for section in report["sections"] for figure in section["figures"]}


class PlanTest(unittest.TestCase):
    def setUp(self) -> None:
        scratch = tempfile.TemporaryDirectory(prefix="cistern-plan-")
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)

    def file(self, name: str, text: str) -> pathlib.Path:
        path = self.directory / name
        path.write_text(text)
        return path


class WhatItSays(PlanTest):
    def test_issue_vectors_by_name(self) -> None:
        expected = {"Llama-3-8B": 131_072, "Llama-3-70B": 327_680, "Llama-3.1-405B": 516_096, "Qwen3-8B": 147_456,
                    "GPT-OSS-20B": 49_152, "GPT-OSS-120B": 73_728, "DeepSeek-V3": 70_272, "DeepSeek-R1": 70_272,
                    "GLM-4.5": 376_832}
        for model, bytes_ in expected.items():
            self.assertEqual(figures("--model", model)["kv_bytes_per_token"], bytes_, model)
        self.assertEqual(figures("--model", "Llama-3-70B", "--context", 131_072)["kv_session_bytes"], 40 << 30)

    def test_each_result_stands_with_its_arithmetic(self) -> None:
        text = plan("--model", "Llama-3-8B").stdout.decode()
        self.assertIn("2 x 8 heads x 128 x 2 B x 32 layers", text)
        self.assertIn("131,072 B", text)
        self.assertIn("Meta-Llama-3-8B", text)  # the source

    def test_configuration_and_bits(self) -> None:
        config = self.file("config.json", json.dumps(
            {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}))
        self.assertEqual(figures("--config", config)["kv_bytes_per_token"], 2 * 2 * 64 * 2 * 4)
        self.assertEqual(figures("--config", config, "--kv-bits", 8)["kv_bytes_per_token"], 2 * 2 * 64 * 4)

    def test_file_of_ones_own_replaces_the_table(self) -> None:
        data = self.file("mine.json", json.dumps({"media": [
            {"name": "flash", "gb_per_s": 7, "latency_us": 0, "source": "measured", "date": "2026-11"}]}))
        words = ("--model", "Llama-3-70B", "--context", 4096, "--tier", "flash", "--data", data)
        self.assertAlmostEqual(figures(*words)["flash_load_s"], 4096 * 327_680 / 7e9)
        self.assertIn("measured (2026-11)", plan("--list", "--data", data).stdout.decode())
        self.assertIn({"name": "flash", "source": "measured", "date": "2026-11"},
                      json.loads(plan("--list", "--json", "--data", data).stdout)["media"])

    def test_curve_is_what_sim_says(self) -> None:
        words = ("--model", "Llama-3-8B", "--trace", WORKLOAD, "--hit-rate", 0.5, "--points", 5, "--json")
        report = json.loads(plan(*words).stdout)
        self.assertGreaterEqual(len(report["curve"]["points"]), 5)
        for point in report["curve"]["points"][::7]:
            sim = run("cistern", "sim", WORKLOAD, "--blocks", point["blocks"], "--json")
            self.assertEqual(point["hits"], json.loads(sim.stdout)["hits"])
        costs = [choice["usd_per_month"] for choice in report["choices"]]
        self.assertTrue(costs and costs == sorted(costs))

    def test_page_stands_alone(self) -> None:
        path = self.directory / "plan.html"
        words = ("--model", "GPT-OSS-120B", "--gpu", "H100-80GB", "--gpus", 2, "--trace", WORKLOAD, "--html", path)
        self.assertEqual(plan(*words).returncode, 0)
        page = Page()
        page.feed(path.read_text())
        self.assertEqual(page.tags.count("svg"), 3)
        self.assertFalse(page.asks)
        self.assertNotIn("script", page.tags)

    def test_help_has_examples(self) -> None:
        self.assertIn("cistern plan --model", plan("--help").stdout.decode())


class BadInput(PlanTest):
    def assert_says(self, words: tuple[object, ...], code: int, *parts: str) -> None:
        done = plan(*words)
        message = done.stderr.decode()
        self.assertEqual((done.returncode, done.stdout), (code, b""), message)
        for part in parts:
            self.assertIn(part, message)

    def test_names(self) -> None:
        self.assert_says(("--json",), 2, "--model is missing", "--list")
        self.assert_says(("--model", "Llama-3-7B"), 2, "did you mean Llama-3-8B")
        self.assert_says(("--model", "Llama-3-8B", "--gpu", "H100"), 2, "GPU H100")
        self.assert_says(("--model", "Llama-3-8B", "--tier", "flesh:4TB"), 2, "did you mean flash")
        self.assert_says(("--model", "Llama-3-8B", "--config", "c.json"), 2, "--model and --config")

    def test_units_and_ranges(self) -> None:
        self.assert_says(("--model", "Llama-3-8B", "--tier", "flash:4"), 2, "--tier flash", "no unit")
        self.assert_says(("--model", "Llama-3-8B", "--tier", "flash:4parsec"), 2, "unknown unit")
        self.assert_says(("--model", "Llama-3-8B", "--api-price", "-1"), 2, "--api-price", "-1")
        self.assert_says(("--model", "Llama-3-8B", "--api-price", "87c"), 2, "--api-price", "87c")
        self.assert_says(("--model", "Llama-3-8B", "--hit-rate", "75"), 2, "--hit-rate", "75", "0 to 1")
        self.assert_says(("--model", "Llama-3-8B", "--context", "0"), 2, "--context")
        for flag, given, said in (("--busy", "0s", "0us: expected 1ms to"),
                                  ("--think", "1000000h", "1000000h: expected 0us to 10000000s")):
            self.assert_says(("--model", "Llama-3-8B", "--gpu", "H100-80GB", flag, given), 2, f"{flag} is {said}")
        self.assert_says(("--model", "Llama-3-8B", "--tier", "dram:0B"), 2, "--tier dram:0B: has no room")
        more = ("--model", "Llama-3-70B", "--active-parameters", "1e12")
        self.assert_says(more, 2, "--active-parameters is 1e+12, above the", "Llama-3-70B has")
        busy = plan("--model", "Llama-3-8B", "--gpu", "H100-80GB", "--sessions", 2, "--think", "0s")
        self.assertIn("to think for 0 s (--think)", busy.stdout.decode())

    def test_what_has_no_effect_is_refused_by_name(self) -> None:
        model = ("--model", "Llama-3-8B")
        for flag, value in (("--points", 24), ("--policy", "lru"), ("--times", 2), ("--months", 12)):
            self.assert_says((*model, flag, value), 2, f"{flag} is of ", "give --trace")
        for flag, value in (("--times", 2), ("--months", 12)):
            self.assert_says((*model, "--trace", WORKLOAD, flag, value), 2, f"{flag} is of ", "--hit-rate with it")
        rates = ("--prefill-rate", 1000, "--prefill-efficiency", 0.5)
        self.assert_says((*model, *rates), 2, "--prefill-rate stands instead of --prefill-efficiency")
        for words in (("--html", self.directory / "p.html"), model, ("--tier", "dram")):
            self.assert_says(("--list", *words), 2, f"--list shows the table alone: leave {words[0]} out")
        self.assert_says((*model, "--tier", "dram:1GB", "--tier", "dram:2GB"), 2, "--tier dram: is named twice")
        self.assert_says((*model, "--html", "-"), 2, "--html: standard output has the report")

    def test_configuration(self) -> None:
        lacking = self.file("lacking.json", '{"num_hidden_layers": 4, "num_attention_heads": 8}')
        self.assert_says(("--config", lacking), 2, "lacking.json", "hidden_size is missing")
        self.assert_says(("--config", self.file("cut.json", '{"num_hidden')), 2, "cut.json", "not JSON")
        self.assert_says(("--config", self.directory / "none.json"), 2, "none.json", "No such file")
        self.assert_says(("--model", "Llama-3-8B", "--data", self.file("d.json", '{"gpus": [{"name": "x"}]}')), 2,
                         "gpus[0]", "source is missing")

    def test_a_configuration_whose_path_is_no_utf8_is_named_in_json(self) -> None:
        path = os.fsencode(self.directory) + b"/c\xff.json"
        with open(path, "w") as file:
            json.dump({"num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 512}, file)
        done = plan("--config", os.fsdecode(path), "--parameters", "1e9", "--json")
        self.assertIn("c\u01ff.json", json.loads(done.stdout)["model"])

    def test_files_that_are_none_or_have_no_end(self) -> None:
        self.assert_says(("--config", self.directory), 2, f"--config: {self.directory}: Is a directory")
        self.assert_says(("--model", "Llama-3-8B", "--data", self.directory), 2, "--data", "Is a directory")
        self.assert_says(("--config", "/dev/zero"), 2, "--config: /dev/zero has more than 16777216 bytes")

    def test_fleet_that_cannot_hold_its_weights(self) -> None:
        self.assert_says(("--model", "Llama-3-70B", "--gpu", "H100-80GB"), 2, "141.2 GB", "--gpus 2")

    def test_traces(self) -> None:
        good = '{"timestamp": %d, "input_length": 512, "output_length": 1, "hash_ids": [1]}\n'
        cut = self.file("cut.jsonl", good % 1 + (good % 2)[:40])
        back = self.file("back.jsonl", good % 5 + good % 9 + good % 8)
        self.assert_says(("--model", "Llama-3-8B", "--trace", cut), 2, "cut.jsonl:2", "not JSON")
        self.assert_says(("--model", "Llama-3-8B", "--trace", back), 2, "back.jsonl:3", "timestamp is 8", "9")
        self.assert_says(("--model", "Llama-3-8B", "--trace", WORKLOAD, "--hit-rate", 1), 2, "no size reaches it")

    def test_page_that_cannot_be_written(self) -> None:
        self.assert_says(("--model", "Llama-3-8B", "--html", self.directory / "no" / "p.html"), 1, "p.html")


if __name__ == "__main__":
    unittest.main()
