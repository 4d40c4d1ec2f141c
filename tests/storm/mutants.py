#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plants each known bug in turn (R16) and runs the storm on it: the storm has to find every one.

A mutant is a patch against src/, tests/storm/mutants/NAME.patch, whose first line says which rule it breaks.
Where the second says `Found by PROGRAM: TEST`, it takes a course of events that the storm hardly comes to, and
this test, which makes it, has to find it. A mutant is applied to a copy of the sources in build/mutants, so the
tree that one works in is never touched. Exits 0 when all were found, 1 when one was not, 2 on wrong usage.
Python's standard library only.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATCHES = ROOT / "tests" / "storm" / "mutants"
TREE = ROOT / "build" / "mutants" / "tree"
# What the build of the storm does not need, or what is another checkout's own.
LEFT_OUT = {"build", "shared", "node_modules", "__pycache__"}
MANY_FAULTS = 1 << 40


@dataclass
class Verdict:
    """What became of one mutant."""

    name: str
    rule: str
    found: bool
    seed: int
    seconds: float
    faults: int
    violation: str


class Trouble(Exception):
    """Nothing can be said about the mutants: a patch does not apply, a build fails."""


def patches(only: str | None) -> list[Path]:
    """All patches in order, or the one of a name."""
    every = sorted(PATCHES.glob("*.patch"))
    if not every:
        raise Trouble(f"there is no patch in {PATCHES}")
    if only is None:
        return every
    chosen = [patch for patch in every if patch.stem == only]
    if not chosen:
        raise Trouble(f"there is no mutant '{only}'; all: {' '.join(patch.stem for patch in every)}")
    return chosen


def rule_of(patch: Path) -> str:
    """The line that says what the mutant breaks."""
    return patch.read_text(encoding="utf-8").split("\n", 1)[0]


def test_of(patch: Path) -> tuple[str, str] | None:
    """The program and the name of the test that has to find it; None for what a storm has to find."""
    said = re.match(r".*\nFound by (\w+): (\w+\.\w+)\n", patch.read_text(encoding="utf-8"))
    return (said[1], said[2]) if said else None


def program_of(patch: Path) -> str:
    """What looks for it: its test, or a storm, that of a cell or of its nodes for a mutant that is named so."""
    test = test_of(patch)
    if test is not None:
        return test[0]
    return {"cell": "cell_storm", "node": "node_storm"}.get(patch.stem.split("-")[0], "storm")


def worlds_of(patch: Path, jobs: int) -> list[str]:
    """Flags for the worlds that may find it: those of flash for a mutant that is named after flash."""
    if program_of(patch) != "storm":
        return []
    return [f"--jobs={jobs}", f"--tier={'flash' if patch.stem.startswith('flash-') else 'mixed'}"]


def files_of(patch: Path) -> list[str]:
    """The files that a patch changes."""
    return re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(encoding="utf-8"), re.MULTILINE)


def is_product(name: str) -> bool:
    """Whether a node runs it: nothing that is for tests."""
    for_tests = re.search(r"/((test|simulated)_\w+|simulated|\w+_(test|fixture|fuzz|bench))\.(cc|h)$", name)
    return name.startswith("src/") and not for_tests


def apply(tree: Path, patch: Path, *how: str) -> str:
    """Nothing when it applies to the letter, else what patch(1) says."""
    command = ["patch", "-p1", "--batch", "--forward", "--fuzz=0", "--no-backup-if-mismatch", "--reject-file=-"]
    run = subprocess.run(
        [*command, *how, f"--input={patch}"], cwd=tree, capture_output=True, text=True, check=False
    )
    return "" if run.returncode == 0 else (run.stdout + run.stderr).strip()


def check(chosen: list[Path]) -> int:
    """Whether each patch applies, says what it breaks, and changes the product alone."""
    wrong = 0
    for patch in chosen:
        said = apply(ROOT, patch, "--dry-run")
        if not said and rule_of(patch).startswith("---"):
            said = "its first line does not say which rule it breaks"
        strangers = [name for name in files_of(patch) if not is_product(name)]
        if not said and (strangers or not files_of(patch)):
            said = f"changes {' '.join(strangers) or 'nothing'}; a mutant is a bug in what a node runs"
        test = test_of(patch)
        if not said and test is not None and not is_there(*test):
            said = f"there is no test {test[1]} of {test[0]}"
        if said:
            wrong += 1
            print(f"{patch.name}: {said}", file=sys.stderr)
    print(f"{len(chosen) - wrong} of {len(chosen)} mutants apply")
    return 1 if wrong else 0


def is_there(program: str, test: str) -> bool:
    """Whether the test is in the folder whose program it is of, or among those that span folders."""
    suite, name = test.split(".")
    sources = [*(ROOT / "src" / program.removesuffix("_test")).glob("*_test.cc"), *ROOT.glob("tests/*/*_test.cc")]
    return any(re.search(rf"^TEST(?:_F|_P)?\({suite},\s*{name}\)", source.read_text(encoding="utf-8"), re.MULTILINE)
               for source in sources)


def copy_sources() -> None:
    """Brings the copy up to date; what did not change keeps its time, so that it is not built again."""
    wanted: set[Path] = set()
    for top in sorted(ROOT.iterdir()):
        if top.name.startswith(".") or top.name in LEFT_OUT:
            continue
        files = [top] if top.is_file() else [path for path in sorted(top.rglob("*")) if path.is_file()]
        for path in files:
            inner = path.relative_to(ROOT)
            if LEFT_OUT.intersection(inner.parts):
                continue
            wanted.add(inner)
            to = TREE / inner
            if not to.exists() or not filecmp.cmp(path, to, shallow=False):
                to.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, to)
                shutil.copymode(path, to)
    for path in list(TREE.rglob("*")):
        inner = path.relative_to(TREE)
        if path.is_file() and inner.parts[0] != "build" and inner not in wanted:
            path.unlink()


def build(program: str, jobs: int) -> Path:
    """A storm of the copy as it is now."""
    where = TREE / "build" / "release"
    steps = [["cmake", "--preset", "release"]] if not (where / "build.ninja").exists() else []
    steps.append(["ninja", "-C", str(where), f"-j{jobs}", f"bin/{program}"])
    for step in steps:
        run = subprocess.run(step, cwd=TREE, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise Trouble(f"{' '.join(step)} failed:\n{(run.stdout + run.stderr)[-4000:]}")
    return where / "bin" / program


def storm(program: Path, seconds: int, first: int, worlds: list[str]) -> tuple[bool, int, float, int, str]:
    """Found, by which seed, after how long and how many faults, and what it said."""
    began = time.monotonic()
    flags = ["--json", f"--seconds={seconds}", f"--first={first}", f"--faults={MANY_FAULTS}"]
    run = subprocess.run([str(program), *flags, *worlds], capture_output=True, text=True, check=False)
    passed = time.monotonic() - began
    failed = re.search(r"^FAILED: seed (\d+): (.*)$", run.stderr, re.MULTILINE)
    if run.returncode != 0 and failed:
        return True, int(failed[1]), passed, 0, failed[2]
    if run.returncode != 0:
        raise Trouble(f"the storm ended with {run.returncode}:\n{run.stderr[-2000:]}")
    return False, 0, passed, int(json.loads(run.stdout)["faults"]), ""


def run_test(program: Path, test: str) -> tuple[bool, int, float, int, str]:
    """The same of one test, which has no seed."""
    began = time.monotonic()
    run = subprocess.run([str(program), f"--gtest_filter={test}"], capture_output=True, text=True, check=False)
    if f"[ RUN      ] {test}" not in run.stdout:
        raise Trouble(f"{program.name} does not run {test}:\n{(run.stdout + run.stderr)[-2000:]}")
    return run.returncode != 0, 0, time.monotonic() - began, 0, test


def plant(patch: Path, arguments: argparse.Namespace) -> Verdict:
    """Builds what looks for this bug with the bug in it, runs it, and takes the bug out again."""
    said = apply(TREE, patch)
    if said:
        raise Trouble(f"{patch.name}: {said}")
    try:
        program = build(program_of(patch), arguments.jobs)
        test = test_of(patch)
        if test is not None:
            outcome = run_test(program, test[1])
        else:
            outcome = storm(program, arguments.seconds, arguments.first, worlds_of(patch, arguments.jobs))
        found, seed, seconds, faults, violation = outcome
    finally:
        for name in files_of(patch):
            shutil.copyfile(ROOT / name, TREE / name)
    return Verdict(patch.stem, rule_of(patch), found, seed, round(seconds, 1), faults, violation)


def line_of(verdict: Verdict) -> str:
    """One mutant as a line."""
    if not verdict.found:
        return f"{verdict.name:28} NOT FOUND in {verdict.seconds:.1f} s and {verdict.faults} faults: {verdict.rule}"
    return f"{verdict.name:28} found      {verdict.seconds:5.1f} s  seed {verdict.seed:<6} {verdict.violation}"


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="./dev storm --mutants",
        description="Plants each known bug in turn and runs the storm on it: the storm has to find every one.",
        epilog="example: ./dev storm --mutants --only no-fence --seconds 60",
    )
    parser.add_argument("--only", metavar="NAME", help="this mutant alone")
    parser.add_argument("--seconds", type=int, default=60, help="how long the storm may look for each; default: 60")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the seed to begin with; default: 1")
    parser.add_argument("--jobs", type=int, default=2, help="processes, of the build and of the storm; default: 2")
    parser.add_argument("--json", action="store_true", help="one JSON object on standard output")
    parser.add_argument("--check", action="store_true", help="only whether every patch applies; builds nothing")
    arguments = parser.parse_args()
    for name in ("seconds", "first", "jobs"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} has to be at least 1")
    return arguments


def main() -> int:
    """Exit status."""
    arguments = parse()
    try:
        chosen = patches(arguments.only)
        if arguments.check:
            return check(chosen)
        copy_sources()
        verdicts = []
        for patch in chosen:
            verdicts.append(plant(patch, arguments))
            if not arguments.json:
                print(line_of(verdicts[-1]), flush=True)
    except Trouble as trouble:
        print(f"mutants: {trouble}", file=sys.stderr)
        return 1
    missed = [verdict.name for verdict in verdicts if not verdict.found]
    if arguments.json:
        print(json.dumps({"mutants": [asdict(verdict) for verdict in verdicts], "missed": missed}))
    else:
        print(f"{len(verdicts) - len(missed)} of {len(verdicts)} mutants were found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
