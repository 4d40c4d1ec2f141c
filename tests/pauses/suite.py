#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the tests of a build while their threads are paused, one at a time, for random times.

A test that passes on a quiet host alone, because one of its threads has always been quick enough, fails here
within minutes, as does code that is right in the usual order only. Python's standard library only.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 300
# Storms and fuzzers have no threads to pause, the litmus has to be quick, and nobody traces a tracer.
LEFT_OUT = re.compile("storm|long|fuzz|litmus|pauses")


@dataclass
class Test:
    """One of ctest's tests, with what it is run by."""

    name: str
    command: list[str]
    directory: str
    environment: dict[str, str]


def tests_of(build: Path, pattern: str) -> list[Test]:
    """Those whose name matches."""
    listed = subprocess.check_output(["ctest", "--test-dir", str(build), "--show-only=json-v1"])
    tests = []
    for test in json.loads(listed)["tests"]:
        properties = {one["name"]: one["value"] for one in test.get("properties", [])}
        if not re.search(pattern, test["name"]) or any(map(LEFT_OUT.search, properties.get("LABELS", []))):
            continue
        environment = dict(one.split("=", 1) for one in properties.get("ENVIRONMENT", []))
        tests.append(Test(test["name"], test["command"], properties.get("WORKING_DIRECTORY", str(build)), environment))
    return tests


def run(pauses: list[str], test: Test, seed: int) -> tuple[int, str]:
    """Its exit code, 124 where it did not end, and what it printed."""
    command = ["timeout", "--kill-after", "5", str(LIMIT_S), *pauses, "--seed", str(seed), "--", *test.command]
    # Leaks are looked for by a tracer, of which a process has one at most.
    environment = os.environ | test.environment | {"ASAN_OPTIONS": "detect_leaks=0"}
    ended = subprocess.run(command, cwd=test.directory, env=environment, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    return ended.returncode, ended.stdout


def main() -> int:
    """0 when all passed, 1 when one did not, 2 on wrong usage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pattern", nargs="?", default=".", metavar="REGEX", help="only tests whose name matches")
    parser.add_argument("--build", default="release", help="a folder of build/ (default: release)")
    parser.add_argument("--seed", type=int, default=1, help="of the first test; the next has the next")
    parser.add_argument("--every", default="20ms", help="mean time between two pauses (default: 20ms)")
    parser.add_argument("--longest", default="300ms", help="the longest pause (default: 300ms)")
    parser.add_argument("--jobs", type=int, default=4 * (os.cpu_count() or 1), help="tests at a time")
    asked = parser.parse_args()
    build = ROOT / "build" / asked.build
    tests = tests_of(build, asked.pattern)
    if not tests:
        print(f"pauses: no test of {build} matches '{asked.pattern}'", file=sys.stderr)
        return 2
    pauses = [str(build / "bin" / "pauses"), "--every", asked.every, "--longest", asked.longest]
    failed = 0
    with ThreadPoolExecutor(asked.jobs) as executor:
        runs = [executor.submit(run, pauses, test, asked.seed + at) for at, test in enumerate(tests)]
        for at, (test, ended) in enumerate(zip(tests, runs, strict=True)):
            code, said = ended.result()
            if sys.stderr.isatty():
                print(f"\r{at + 1} of {len(tests)}, {failed} failed", end="", file=sys.stderr)
            if code == 0:
                continue
            failed += 1
            again = f"--seed {asked.seed + at} '^{re.escape(test.name)}$'"
            print(f"\n{said}\n{test.name} FAILED with {code}; again: {again}", flush=True)
    print(f"\n{len(tests)} tests with paused threads, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
