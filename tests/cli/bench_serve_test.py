# SPDX-License-Identifier: Apache-2.0
"""`cistern bench serve` against a server that answers, and against servers that do not.

Usage: bench_serve_test.py BIN_DIR [unittest arguments]
"""

from __future__ import annotations

import html.parser
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from typing import Any

from fake_openai import FakeOpenAi

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
TIMEOUT_S = 300


def chat(users: int, rounds: int) -> tuple[object, ...]:
    tokens = ("--system-tokens", 50, "--history-tokens", 40, "--question-tokens", 5, "--answer-tokens", 4)
    return ("--shape", "chat", "--users", users, "--rounds", rounds, "--rate", 0, *tokens)


SMALL = chat(3, 3)


class BenchServeTest(unittest.TestCase):
    def setUp(self) -> None:
        self.fake = FakeOpenAi()
        self.addCleanup(self.fake.close)
        scratch = tempfile.TemporaryDirectory(prefix="cistern-serve-")
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)

    def command(self, *words: object) -> list[str]:
        where = () if "--url" in words else ("--url", self.fake.url)
        return [str(BIN / "cistern"), "bench", "serve", *where, *map(str, words)]

    def serve(self, *words: object, key: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "OPENAI_API_KEY": key}
        return subprocess.run(
            self.command(*words), capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False
        )

    def json(self, *words: object, code: int = 0) -> dict[str, Any]:
        result = self.serve(*words, "--json")
        self.assertEqual(result.returncode, code, result.stderr)
        found = json.loads(result.stdout)
        assert isinstance(found, dict)
        return found

    def assert_says(self, result: subprocess.CompletedProcess[str], code: int, *texts: str) -> None:
        self.assertEqual(result.returncode, code, result.stderr)
        for text in texts:
            self.assertIn(text, result.stderr)


class Measures(BenchServeTest):
    def test_a_chat_counts_what_the_server_counts(self) -> None:
        found = self.json(*SMALL)
        (run,) = found["runs"]
        self.assertEqual((run["planned"], run["answered"], run["failed"]), (9, 9, 0))
        self.assertEqual(run["output_tokens"], 36)
        self.assertEqual(run["pieces"], 36)
        self.assertEqual(run["prompt_tokens"], sum(len(self.fake.text(b).split()) for b in self.fake.bodies[1:]))
        self.assertEqual(run["hit_share_from"], "usage")
        self.assertGreater(run["hit_share"], 0.3)
        self.assertEqual(run["first_token_ms"]["count"], 9)
        self.assertEqual(run["gap_ms"]["count"], 27)
        self.assertLessEqual(run["first_token_ms"]["p50"], run["first_token_ms"]["p99"])
        self.assertEqual(found["model"], "fake")

    def test_later_rounds_say_what_the_model_said(self) -> None:
        self.json(*chat(1, 3))
        last = self.fake.bodies[-1]["messages"]
        self.assertEqual([m["role"] for m in last], ["system", *["user", "assistant"] * 2, "user"])
        self.assertEqual(last[2]["content"], "w2.0 w2.1 w2.2 w2.3 ")
        self.assertEqual(last[:4], self.fake.bodies[-2]["messages"])

    def test_the_same_flags_ask_the_same_and_a_salt_something_new(self) -> None:
        long = ("--shape", "long", "--context-tokens", 100, "--requests", 2, "--api", "completions")
        self.assertAlmostEqual(self.json(*long)["runs"][0]["hit_share"], 0.48)
        self.assertAlmostEqual(self.json(*long)["runs"][0]["hit_share"], 0.96)
        self.assertAlmostEqual(self.json(*long, "--salt", "x")["runs"][0]["hit_share"], 0.48, delta=0.05)
        prompts = [body["prompt"] for body in self.fake.bodies]
        self.assertEqual(prompts[1:5], prompts[6:10])
        self.assertEqual(prompts[1:3], prompts[3:5])
        self.assertFalse(set(prompts[1:5]) & set(prompts[11:]))

    def test_a_trace_shares_what_its_blocks_share(self) -> None:
        trace = self.directory / "t.jsonl"
        line = '{"timestamp": %d, "input_length": %d, "output_length": 3, "hash_ids": %s}\n'
        trace.write_text(line % (5, 1024, "[1, 2]") + line % (1005, 1124, "[1, 2, 3]") + line % (2005, 512, "[9]"))
        found = self.json("--trace", trace, "--speed", 1000, "--requests", 2, "--in-flight", 1)
        (run,) = found["runs"]
        self.assertEqual(run["answered"], 2)
        self.assertEqual(run["prompt_tokens"], 2148)
        self.assertEqual(run["hit_sources"][0]["hit_tokens"], 1008)

    def test_ids_of_a_trace_may_be_of_contents_alone(self) -> None:
        trace = self.directory / "t.jsonl"
        line = '{"timestamp": %d, "input_length": 1024, "output_length": 3, "hash_ids": %s}\n'
        trace.write_text(line % (5, "[1, 2]") + line % (6, "[3, 2]"))
        self.assertEqual(self.json("--trace", trace)["runs"][0]["answered"], 2)

    def test_who_waits_for_an_answer_is_held_and_nobody_else(self) -> None:
        trace = self.directory / "t.jsonl"
        line = '{"timestamp": %d, "input_length": 20, "output_length": 2, "hash_ids": []}\n'
        trace.write_text("".join(line % at for at in (0, 1, 1, 1)))
        self.assertEqual(self.json("--trace", trace)["runs"][0]["held"], 0)
        self.assertGreater(self.json("--trace", trace, "--in-flight", 1)["runs"][0]["held"], 0)

    def test_compare_runs_off_cold_and_warm(self) -> None:
        page = self.directory / "page.html"
        found = self.json(*SMALL, "--compare", "--html", page)
        off, cold, warm = found["runs"]
        self.assertEqual([run["name"] for run in found["runs"]], ["off", "cold", "warm"])
        self.assertEqual(self.fake.resets, 3)
        self.assertEqual({run["engine_cache_emptied"] for run in found["runs"]}, {True})
        self.assertEqual(found["notes"], [])
        by_name = {(run["name"], s["name"]): s["hit_tokens"] for run in found["runs"] for s in run["hit_sources"]}
        self.assertEqual(by_name["off", "cistern"], 0)
        self.assertEqual(by_name["cold", "cistern"], 0)
        self.assertGreater(by_name["warm", "cistern"], 0)
        self.assertGreater(warm["hit_share"], cold["hit_share"])
        runs = [self.fake.bodies[1 + 9 * run : 10 + 9 * run] for run in range(3)]
        self.assertTrue(all(b["kv_transfer_params"]["cistern.no_save"] for b in runs[0]))
        self.assertFalse(any("kv_transfer_params" in b for b in runs[1] + runs[2]))
        texts = [sorted(self.fake.text(body) for body in run) for run in runs]
        self.assertEqual(texts[1], texts[2])
        self.assertFalse(set(texts[0]) & set(texts[1]))
        self.assert_stands_alone(page.read_text())

    def assert_stands_alone(self, page: str) -> None:
        """Well-formed, and nothing in it comes from elsewhere."""
        test, open_tags = self, []

        class Reader(html.parser.HTMLParser):
            def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
                test.assertFalse({"src", "href"} & {name for name, _ in attrs})
                test.assertNotEqual(tag, "script")
                if tag not in ("meta", "br"):
                    open_tags.append(tag)

            def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
                pass

            def handle_endtag(self, tag: str) -> None:
                test.assertEqual(open_tags.pop(), tag)

        Reader().feed(page)
        self.assertEqual(open_tags, [])
        self.assertEqual(page.count("<svg"), 3)
        self.assertNotIn("nan", page.split("</style>")[1].lower().replace("tenan", ""))

    def test_all_three_ask_the_same_even_where_the_first_run_has_no_answer(self) -> None:
        self.fake.answer = lambda number, body: (503, b"") if number in (2, 4) else self.fake.stream(number, body)
        found = self.json(*chat(2, 4), "--compare")
        self.assertEqual([run["failed"] for run in found["runs"]], [2, 0, 0])
        without_salt = [" ".join(self.fake.text(body).split()[8:]) for body in self.fake.bodies[1:]]
        off, cold, warm = (sorted(without_salt[8 * run : 8 * run + 8]) for run in range(3))
        self.assertEqual(off, cold)
        self.assertEqual(cold, warm)

    def test_compare_says_what_warm_includes(self) -> None:
        self.fake.has_reset = self.fake.tells_cached = False
        self.fake.metrics = None
        found = self.json(*SMALL, "--compare")
        notes = " | ".join(found["notes"])
        self.assertIn("warm includes the engine's own prefix cache", notes)
        self.assertIn("VLLM_SERVER_DEV_MODE", notes)
        self.assertIn("hit share is not told", notes)
        self.assertEqual([run["hit_share"] for run in found["runs"]], [None] * 3)
        table = self.serve(*SMALL, "--compare").stdout
        self.assertIn("not told", table)
        self.assertIn("warm includes the engine's own prefix cache", table)

    def test_hit_share_from_the_metrics(self) -> None:
        self.fake.tells_cached = False
        (run,) = self.json(*SMALL)["runs"]
        self.assertEqual(run["hit_share_from"], "metrics")
        self.assertGreater(run["hit_share"], 0.3)

    def test_plain_sends_only_what_openai_knows(self) -> None:
        self.json(*SMALL, "--plain")
        known = {"model", "stream", "stream_options", "temperature", "max_tokens", "messages"}
        self.assertEqual({key for body in self.fake.bodies for key in body}, known)

    def test_the_key_is_sent_and_never_shown(self) -> None:
        secret = self.directory / "key"
        secret.write_text("sk-secret\n")
        for result in (self.serve(*SMALL, "--api-key-file", secret), self.serve(*SMALL, key="sk-secret")):
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("sk-secret", result.stdout + result.stderr)
            self.assertEqual(self.fake.headers[-1]["Authorization"], "Bearer sk-secret")

    def test_interrupt_reports_what_was_there(self) -> None:
        process = subprocess.Popen(self.command(*chat(1, 3), "--json"), stdout=subprocess.PIPE, text=True)

        def hang_at_the_third(number: int, body: dict[str, Any]) -> Iterator[bytes]:
            yield from list(self.fake.stream(number, body)) if number != 4 else []
            if number == 4:
                process.send_signal(signal.SIGINT)
                self.fake.ended.wait()

        self.fake.answer = hang_at_the_third
        stdout, _ = process.communicate(timeout=TIMEOUT_S)
        self.assertEqual(process.returncode, 1)
        found = json.loads(stdout)
        self.assertTrue(found["interrupted"])
        (run,) = found["runs"]
        self.assertEqual((run["answered"], run["unfinished"], run["not_sent"]), (2, 1, 0))


class BadInput(BenchServeTest):
    """A message that names the thing, its value, its limit and the way out; one failure is no end."""

    def test_options(self) -> None:
        self.assert_says(self.serve("--shape", "chta"), 2, "--shape", "chat")
        self.assert_says(self.serve("--api", "responses"), 2, "--api", "completions")
        self.assert_says(self.serve("--users", 0), 2, "--users", "0", "1000")
        self.assert_says(self.serve("--users", 1000, "--rounds", 1000), 2, "1000000", "100000", "--requests")
        self.assert_says(self.serve("--rate", "fast"), 2, "--rate", "fast", "2.5")
        self.assert_says(self.serve("--shape", "long", "--rounds", 3), 2, "--rounds", "long", "chat")
        self.assert_says(self.serve("--speed", 3), 2, "--speed", "trace")
        self.assert_says(self.serve("--compare", "--plain"), 2, "--compare", "--plain")
        self.assert_says(self.serve("--timeout", 5), 2, "--timeout", "5")
        self.assert_says(self.serve("--url", "host:8000"), 2, "--url", "http://127.0.0.1:8000")
        self.assert_says(self.serve("--url", "http://u:p@host"), 2, "--api-key-file")
        self.assert_says(self.serve("--uses", 3), 2, "--uses", "--users")
        self.assert_says(self.serve("--html", self.directory / "no" / "page"), 1, "--html", "No such file")
        self.assert_says(self.serve("--api-key-file", self.directory / "none"), 2, "--api-key-file", "none")
        shaped = self.serve("--trace", "generated:sessions=2", "--shape", "chat")
        self.assert_says(shaped, 2, "--trace stands instead of --shape")
        self.assert_says(self.serve("--html", "-"), 2, "--html: standard output has the report")
        self.assert_says(self.serve("--trace", self.directory / "none"), 2, "none")
        self.assertEqual(self.fake.bodies, [])

    def test_help_has_examples(self) -> None:
        helped = self.serve("--help")
        self.assertEqual(helped.returncode, 0)
        self.assertIn("cistern bench serve --compare --html", helped.stdout)
        above = subprocess.run([BIN / "cistern", "bench", "--help"], capture_output=True, text=True, check=True)
        self.assertIn("cistern bench serve", above.stdout)

    def test_no_endpoint(self) -> None:
        self.fake.close()
        self.assert_says(self.serve(*SMALL), 1, self.fake.url, "is the server up?", "--url")

    def test_no_openai_endpoint(self) -> None:
        self.assert_says(self.serve("--url", self.fake.url + "/elsewhere"), 1, "HTTP 404", "Not Found")

    def test_a_model_that_is_not_there(self) -> None:
        self.assert_says(self.serve("--model", "fkae"), 2, "--model", "fkae", "fake")

    def test_a_server_that_refuses_everything_is_said_at_once(self) -> None:
        error = {"error": {"message": "maximum context length is 40 tokens", "code": 400}}
        self.fake.answer = lambda number, body: (400, json.dumps(error).encode())
        self.assert_says(self.serve(*SMALL), 1, "warm-up", "HTTP 400", "maximum context length is 40 tokens")
        self.assertEqual(len(self.fake.bodies), 1)

    def test_all_fail(self) -> None:
        self.fake.answer = lambda number, body: (503, b"<html>\x1b[31mbusy</html>")
        found = self.json(*SMALL, "--no-warm-up", code=1)
        (failure,) = found["runs"][0]["failures"]
        self.assertEqual((failure["kind"], failure["count"]), ("status", 9))
        self.assertEqual(failure["first"], "HTTP 503: <html> [31mbusy</html>")

    def one_bad(self, *pieces: bytes) -> dict[str, Any]:
        """The third request is answered by `pieces` and then nothing; what is said of it."""

        def answer(number: int, body: dict[str, Any]) -> Iterator[bytes]:
            return iter(pieces) if number == 4 else self.fake.stream(number, body)

        self.fake.answer = answer
        (run,) = self.json(*chat(1, 5))["runs"]
        self.assertEqual((run["answered"], run["failed"]), (4, 1))
        (failure,) = run["failures"]
        assert isinstance(failure, dict)
        return failure

    def test_a_stream_that_ends_early(self) -> None:
        begun = FakeOpenAi.event({"choices": [{"delta": {"content": "x"}, "finish_reason": None}]})
        failure = self.one_bad(begun, begun)
        self.assertEqual(failure["kind"], "ended early")
        self.assertIn("after 2 pieces", failure["first"])

    def test_an_error_in_the_stream(self) -> None:
        failure = self.one_bad(FakeOpenAi.event({"error": {"message": "KV load failure"}}), b"data: [DONE]\n\n")
        self.assertEqual((failure["kind"], failure["first"]), ("server error", "KV load failure"))

    def test_a_malformed_stream(self) -> None:
        self.assertEqual(self.one_bad(b"data: {\"choices\": [\n\n")["kind"], "malformed")

    def test_an_answer_that_is_no_stream(self) -> None:
        failure = self.one_bad(b'{"choices": [{"message": {"content": "all at once"}}]}')
        self.assertEqual(failure["kind"], "malformed")
        self.assertIn("no event stream", failure["first"])

    def test_a_server_that_hangs(self) -> None:
        def answer(number: int, body: dict[str, Any]) -> Iterator[bytes]:
            if number == 3:
                self.fake.ended.wait()
            yield from self.fake.stream(number, body)

        self.fake.answer = answer
        (run,) = self.json(*chat(1, 3), "--timeout", "20s")["runs"]
        (failure,) = run["failures"]
        self.assertEqual((failure["kind"], failure["count"]), ("timeout", 1))
        self.assertIn("--timeout", failure["first"])
        self.assertEqual(run["answered"], 2)


if __name__ == "__main__":
    unittest.main()
