# SPDX-License-Identifier: Apache-2.0
"""Calls that took long: in the log, in `cistern status` and `top`, in /metrics, and as traces at a collector.

Usage: slow_test.py BIN_DIR [unittest arguments]
"""

from __future__ import annotations

import http.server
import json
import signal
import threading
import unittest
import urllib.request
from typing import Any

from programs import KEYS, SAYS_S, Node, ProgramTest, run

# A key in hexadecimal never stands in what a node says.
SECRETS = [*KEYS, *(bytes.fromhex(key).hex(" ") for key in KEYS)]


class Collector:
    """Takes OTLP over HTTP, and keeps the requests."""

    def __init__(self, answer: int = 200) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.came = threading.Condition()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # noqa: N802: the library's name
                body = self.rfile.read(int(self.headers["Content-Length"]))
                with collector.came:
                    collector.requests.append((self.path, dict(self.headers), body))
                    collector.came.notify_all()
                self.send_response(answer)
                self.end_headers()

            def log_message(self, *words: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def end(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def spans(self, *names: str) -> list[dict[str, Any]]:
        """All that came, once each name did."""
        with self.came:
            if not self.came.wait_for(lambda: set(names) <= {span["name"] for span in self._spans()}, SAYS_S):
                raise AssertionError(f"no span of each of {names} came in {SAYS_S} s: {self.requests}")
            return self._spans()

    def _spans(self) -> list[dict[str, Any]]:
        return [span for _, _, body in self.requests for resource in json.loads(body)["resourceSpans"]
                for scope in resource["scopeSpans"] for span in scope["spans"]]


def check_otlp(test: unittest.TestCase, body: bytes) -> None:
    """The request is an ExportTraceServiceRequest in OTLP's JSON encoding: its field names and no others, ids in
    hexadecimal, enumerations as numbers, 64-bit numbers as strings."""

    def has(message: dict[str, Any], must: set[str], may: set[str] = frozenset()) -> None:
        test.assertLessEqual(must, message.keys(), message)
        test.assertLessEqual(message.keys(), must | may, message)

    def check_attributes(attributes: list[dict[str, Any]]) -> None:
        for attribute in attributes:
            has(attribute, {"key", "value"})
            [(kind, value)] = attribute["value"].items()
            test.assertIsInstance(value, str)
            test.assertIn(kind, ("stringValue", "intValue"))
            if kind == "intValue":
                test.assertRegex(value, r"^-?\d+$")

    request = json.loads(body)
    has(request, {"resourceSpans"})
    for resource in request["resourceSpans"]:
        has(resource, {"resource", "scopeSpans"})
        has(resource["resource"], {"attributes"})
        check_attributes(resource["resource"]["attributes"])
        for scope in resource["scopeSpans"]:
            has(scope, {"scope", "spans"})
            has(scope["scope"], {"name"})
            for span in scope["spans"]:
                has(span, {"traceId", "spanId", "name", "kind", "startTimeUnixNano", "endTimeUnixNano"},
                    {"parentSpanId", "attributes", "status"})
                test.assertRegex(span["traceId"], r"^(?!0{32})[0-9a-f]{32}$")
                for name in {"spanId", "parentSpanId"} & span.keys():
                    test.assertRegex(span[name], r"^(?!0{16})[0-9a-f]{16}$")
                test.assertIsInstance(span["kind"], int)
                for name in ("startTimeUnixNano", "endTimeUnixNano"):
                    test.assertIsInstance(span[name], str)
                test.assertLessEqual(int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]))
                check_attributes(span["attributes"])
                if "status" in span:
                    has(span["status"], {"code"}, {"message"})
                    test.assertIsInstance(span["status"]["code"], int)


class SlowTest(ProgramTest):
    def node(self, *flags: object) -> Node:
        node = Node(self.directory, *flags)
        self.check_ready(node)
        return node

    def collector(self, answer: int = 200) -> Collector:
        collector = Collector(answer)
        self.addCleanup(collector.end)
        return collector


class SlowCalls(SlowTest):
    """At a bound of a microsecond each call is slow that the node does not answer in the step that takes it."""

    def test_the_log_status_metrics_and_top_say_where_the_time_went(self) -> None:
        node = self.node("--slow-calls", "1us", "--http", "0")
        node.cistern("put", "--namespace", "a", KEYS[0], "-", stdin=bytes(3 << 20))
        said = node.says("slow: attach of 1 lists", "slow: write of 1 parts")
        self.assertRegex(said[-1], r" for session \d+ of process \d+ took [\d.]+[um]?s: (turn|core|mover|check) ")
        status = node.json("status")
        write = next(call for call in status["slow_calls"] if call["call"] == "write")
        self.assertGreater(write["took_us"], 0)
        parts = sum(value for name, value in write.items() if name[-3:] == "_us" and name[:-3] not in ("took", "ago"))
        self.assertLessEqual(abs(parts - write["took_us"]), 9, write)  # each is cut to whole microseconds
        self.assertEqual(write["namespace"], node.json("namespaces")["namespaces"][0]["fingerprint"])
        self.assertGreaterEqual(status["slow"]["write"], 1)
        self.assertEqual(sum(status["slow"].values()), sum(status["slow_at"].values()))
        with urllib.request.urlopen(f"http://{status['node']['http']}/metrics") as answer:
            metrics = answer.read().decode()
        self.assertRegex(metrics, r'\ncistern_slow_total\{call="write"\} [1-9]')
        self.assertRegex(metrics, r'\ncistern_slow_at_total\{station="core"\} \d')
        top = node.json("top", "--interval", "1ms")
        self.assertIn("write", [call["call"] for call in top["slow_calls"]])
        drawn = node.cistern("top", "--count", 1).stdout.decode()
        self.assertRegex(drawn, r"slow   \w+ of \d+, \d+ s ago, took [\d.]+ ms: \w+ [\d.]+ ms")
        for text in (json.dumps(status), metrics, drawn, "".join(said)):
            for secret in SECRETS:
                self.assertNotIn(secret, text)

    def test_the_bound_changes_by_a_reload_and_none_is_slow_at_zero(self) -> None:
        config = self.directory / "c.toml"
        config.write_text('slow_calls = "0s"\n')
        node = self.node("--config", config)
        node.cistern("put", "--namespace", "a", KEYS[0], "-", stdin=bytes(4096))
        self.assertEqual(sum(node.json("status")["slow"].values()), 0)
        config.write_text('slow_calls = "1us"\n')
        node.process.send_signal(1)
        node.says("reload: slow_calls: 0us -> 1us")
        node.cistern("put", "--namespace", "b", KEYS[1], "-", stdin=bytes(4096))
        self.assertGreater(sum(node.json("status")["slow"].values()), 0)

    def test_nothing_is_slow_on_a_node_that_is_quick(self) -> None:
        node = self.node("--slow-calls", "1h")
        node.cistern("put", "--namespace", "a", KEYS[0], "-", stdin=bytes(4096))
        status = node.json("status")
        self.assertEqual((status["slow_calls"], sum(status["slow"].values())), ([], 0))
        self.assertNotIn("slow ", node.cistern("top", "--count", 1).stdout.decode())


class Traces(SlowTest):
    def test_a_collector_gets_each_slow_call_with_its_stations(self) -> None:
        collector = self.collector()
        node = self.node("--slow-calls", "1us", "--otlp", collector.url)
        node.cistern("put", "--namespace", "a", KEYS[0], "-", stdin=bytes(3 << 20))
        spans = collector.spans("write", "attach")
        for path, headers, body in collector.requests:
            self.assertEqual(path, "/v1/traces")
            self.assertEqual(headers["Content-Type"], "application/json")
            check_otlp(self, body)
            for secret in SECRETS:
                self.assertNotIn(secret, body.decode())
        write = next(span for span in spans if span["name"] == "write")
        self.assertNotIn("parentSpanId", write)
        attributes = {a["key"]: next(iter(a["value"].values())) for a in write["attributes"]}
        self.assertEqual((attributes["cistern.parts"], attributes["cistern.code"]), ("1", "ok"))
        below = [span for span in spans if span.get("parentSpanId") == write["spanId"]]
        self.assertTrue(below)
        for span in below:
            self.assertEqual(span["traceId"], write["traceId"])
            self.assertGreaterEqual(int(span["startTimeUnixNano"]), int(write["startTimeUnixNano"]))
            self.assertLessEqual(int(span["endTimeUnixNano"]), int(write["endTimeUnixNano"]))
        self.assertEqual(node.json("status")["traces"]["lost"], 0)

    def test_a_collector_that_is_not_there_costs_nothing_and_is_said_once(self) -> None:
        collector = Collector()
        url = collector.url
        collector.end()
        node = self.node("--slow-calls", "1us", "--otlp", url)
        for key in KEYS:
            self.assertEqual(node.cistern("put", "--namespace", "a", key, "-", stdin=bytes(4096)).returncode, 0)
        said = node.says(f"otlp: {url}/v1/traces does not take traces")
        node.process.send_signal(signal.SIGTERM)
        while line := node.line():
            said.append(line)
        self.assertEqual(node.end(), 0)
        self.assertEqual(len([line for line in said if "otlp: " in line]), 1)

    def test_bad_input(self) -> None:
        for url in ("127.0.0.1:4318", "grpc://a:4317", "http://", "http://user:secret@host:4318"):
            said = run("cisternd", "--otlp", url)
            self.assert_says(said, 2, "--otlp", "http://127.0.0.1:4318")
        self.assert_says(run("cisternd", "--slow-calls", "5"), 2, "--slow-calls", "5")
        self.assert_says(run("cisternd", "--slow-calls", "2h"), 2, "--slow-calls", "1h")


if __name__ == "__main__":
    unittest.main()
