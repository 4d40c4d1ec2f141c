# SPDX-License-Identifier: Apache-2.0
"""./dev answers as a stranger at the prompt expects: help with an example, the nearest name, a failure named."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = re.search(r"^commands=\((.*)\)$", (ROOT / "dev").read_text(), re.MULTILINE)[1].split()


def dev(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", root / "dev", *arguments], capture_output=True, text=True, timeout=60, check=False)


class DevTest(unittest.TestCase):
    def test_every_command_has_help_with_an_example(self) -> None:
        for command in COMMANDS:
            ran = dev(command, "--help")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertRegex(ran.stdout, rf"(?s)\./dev {command}.*Example: \./dev {command}")
            self.assertIn(f"  {command} ", dev("--help").stdout)

    def test_an_unknown_name_is_answered_with_the_nearest(self) -> None:
        for wrong, right in (("tset", "test"), ("strom", "storm"), ("bnech", "bench"), ("formt", "fmt")):
            ran = dev(wrong)
            self.assertEqual(ran.returncode, 2)
            self.assertIn(f"'{wrong}'; nearest: {right}", ran.stderr)

    def test_an_unknown_option_is_wrong_usage(self) -> None:
        for arguments in (("test", "--slow"), ("test", "--quick", "--all"), ("test", "store/"), ("fmt", "--chek"),
                          ("clean", "--everything"), ("fuzz", "--minutes"), ("fuzz", "--seconds", "0"),
                          ("storm", "--kill", "many"), ("storm", "--damage"), ()):
            ran = dev(*arguments)
            self.assertEqual(ran.returncode, 2, arguments)
            self.assertNotEqual(ran.stderr, "", arguments)

    def test_an_upgrade_of_releases_without_cells_is_wrong_usage(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            shutil.copy(ROOT / "dev", root)
            git = ["git", "-C", root, "-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false"]
            subprocess.run([*git, "init", "-q"], check=True)
            subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "without"], check=True)
            ran = dev("upgrade", "HEAD", root=root)
        self.assertEqual(ran.returncode, 2)
        self.assertIn("no cell would be crossed", ran.stderr)

    def test_an_upgrade_crosses_a_cell(self) -> None:
        releases = re.search(r"^earlier_releases=\((.*)\)$", (ROOT / "dev").read_text(), re.MULTILINE)[1].split()
        git = ["git", "-C", ROOT, "cat-file", "-e"]
        if any(subprocess.run([*git, one], capture_output=True, check=False).returncode for one in releases):
            self.skipTest("not all commits are here")
        self.assertIn(0, [subprocess.run([*git, f"{one}:src/store/term.h"], capture_output=True, check=False).returncode
                          for one in releases])

    def test_a_failed_stage_is_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            shutil.copy(ROOT / "dev", root)
            (root / "tools").mkdir()
            (root / "tools/lint.py").write_text("raise SystemExit(1)\n")
            ran = dev("test", "--quick", root=root)
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stderr.splitlines()[-1], r"stage lint FAILED")

    def test_what_runs_beside_it_ends_with_it(self) -> None:
        inner = "touch begun; exec sleep 1000"
        begins = f"in_background log bash -c 'bash -c \"{inner}\"; true'\nuntil [ -e begun ]; do :; done\necho\n"
        for ends, number, ignored in (("fail no", 0, False), ("fail no", 0, True),
                                      ("read -r answer", signal.SIGINT, False),
                                      ("read -r answer", signal.SIGTERM, False)):
            with tempfile.TemporaryDirectory() as folder, self.subTest(ends=ends, number=number, ignored=ignored):
                root = Path(folder)
                script = (ROOT / "dev").read_text().replace('\nmain "$@"\n', f"\n{begins}{ends}\n")
                (root / "dev").write_text(script)
                command = ["env", f"--{'ignore' if ignored else 'default'}-signal=INT", "bash", root / "dev"]
                last, held = os.pipe()  # its end is read once nobody that was started holds the other
                with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[held],
                                      stderr=subprocess.DEVNULL, start_new_session=True) as ran:
                    os.close(held)
                    assert ran.stdout is not None
                    ran.stdout.readline()
                    if number:
                        os.killpg(ran.pid, number)
                    self.assertNotEqual(ran.wait(), 0)
                self.assertEqual(os.read(last, 1), b"")
                os.close(last)

    def test_what_killed_tests_left_is_removed_and_nothing_else(self) -> None:
        ended = subprocess.Popen(["true"])
        ended.wait()
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            left = [f"cistern-cli-{ended.pid}-abcd_123", f"cistern-test-{ended.pid}-XyZ123"]
            young = f"cistern-cli-{ended.pid}-abcd_124"  # maybe a test's that runs in another container
            others = [f"cistern-cli-{os.getpid()}-abcd_123", "cistern-0", f"cistern-cli-{ended.pid}",
                      f"mine-{ended.pid}-abcd_123", f"cistern-{ended.pid}-abcd_123", f"cistern-cli-{ended.pid}-b",
                      young]
            for name in [*left, *others]:
                (root / name / "memory").mkdir(parents=True)
                if name != young:
                    os.utime(root / name, times=(0, 0))
            (root / f"cistern-log-{ended.pid}-a").touch()
            (root / "dev").write_text((ROOT / "dev").read_text().replace('\nmain "$@"\n', "\nremove_left . /none\n"))
            subprocess.run(["bash", root / "dev"], capture_output=True, check=True)
            there = sorted(path.name for path in root.iterdir() if path.name != "dev")
        self.assertEqual(there, sorted([*others, f"cistern-log-{ended.pid}-a"]))

    def test_relative_paths_are_of_where_it_is_called(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            root, away = Path(folder, "root"), Path(folder, "away")
            for made in (root, away):
                made.mkdir()
            (root / "where").write_text("#!/bin/sh\npwd\n")
            (root / "where").chmod(0o755)
            ends = "\nfrom_caller where\npwd\nfrom_caller exec where\n"
            (root / "dev").write_text((ROOT / "dev").read_text().replace('\nmain "$@"\n', ends))
            ran = subprocess.run(["bash", root / "dev"], cwd=away, capture_output=True, text=True, check=True)
        self.assertEqual(ran.stdout.split(), [str(away), str(root), str(away)])


if __name__ == "__main__":
    unittest.main()
