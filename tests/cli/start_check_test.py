# SPDX-License-Identifier: Apache-2.0
"""What a start refuses, said before it in the start's own words: `cisternd --check`, `cistern config --check` and
`cistern doctor --config`.

Usage: start_check_test.py BIN_DIR [unittest arguments]
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

from programs import BIN, TIMEOUT_S, Node, ProgramTest, free_port, run


def said_by(program: subprocess.CompletedProcess[bytes]) -> str:
    """Its last line, without who says it and without what changes from look to look."""
    *_, last = program.stderr.decode().splitlines() or [""]
    return re.sub(r"room for \d+ more", "room for N more", last.partition(": ")[2])


class WhatAStartRefuses(ProgramTest):
    def setUp(self) -> None:
        super().setUp()
        disk = tempfile.TemporaryDirectory(prefix="cistern-check-", dir=BIN.parent)
        self.addCleanup(disk.cleanup)
        self.disk = pathlib.Path(disk.name)
        self.config = self.directory / "c.toml"
        self.memory_dir, self.socket = self.directory / "m", self.directory / "s"

    def write(self, **settings: object) -> None:
        """Of a node that ends at once where it starts."""
        named: dict[str, object] = {"memory": "64MiB", "memory_dir": self.memory_dir, "socket": self.socket}
        named |= {"linger": "1ms", **settings}
        lines = [f"{name} = {json.dumps(value if isinstance(value, list) else str(value))}\n"
                 for name, value in named.items()]
        self.config.write_text("".join(lines))

    def start(self, *before: object, check: bool) -> subprocess.CompletedProcess[bytes]:
        words = [*before, BIN / "cisternd", *(["--check"] if check else []), "--config", self.config]
        return subprocess.run([*map(str, words)], capture_output=True, timeout=TIMEOUT_S, check=False)

    def assert_refused(self, text: str, *before: object) -> None:
        """By all of them, with what the start says and as it exits; and the checks leave all as it is."""
        there = sorted(self.directory.rglob("*"))
        check = self.start(*before, check=True)
        words = [*before, BIN / "cistern", "config", "--check", self.config]
        config = subprocess.run([*map(str, words)], capture_output=True, timeout=TIMEOUT_S, check=False)
        words = [*before, BIN / "cistern", "doctor", "--config", self.config, "--json"]
        doctor = subprocess.run([*map(str, words)], capture_output=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(sorted(self.directory.rglob("*")), there)
        start = self.start(*before, check=False)
        self.assertIn(text, said_by(start))
        self.assertEqual((check.returncode, said_by(check)), (start.returncode, said_by(start)))
        self.assertEqual((config.returncode, said_by(config)), (start.returncode, said_by(start)))
        self.assertEqual(doctor.returncode, 1)
        problems = [one["value"] for one in json.loads(doctor.stdout)["findings"] if one["verdict"] == "problem"]
        self.assertTrue(any(text in problem for problem in problems), problems)

    def test_is_said_by_each_check_in_its_words(self) -> None:
        file, socket, wide = self.directory / "file", self.directory / "socket", self.directory / "wide"
        file.touch()
        socket.mkdir()
        wide.mkdir()
        wide.chmod(0o777)
        (self.directory / "open" / "default").mkdir(0o755, parents=True)
        key = self.directory / "key"
        key.touch(0o600)
        key.write_text("7a" * 32)
        certificates = ("cell_authority", "cell_certificate", "cell_certificate_key")
        cell = {"cell": "http://127.0.0.1:1", "member": "one", "cell_address": "192.0.2.1:7420"}
        sealed = {**cell, "cell": "https://127.0.0.1:1", "cell_key": key}
        rows: list[tuple[dict[str, object], str]] = [
            ({"memory_dir": file}, "is no directory: name one"),
            ({"memory_dir": file / "m"}, "Not a directory"),
            ({"memory_dir": wide}, "has mode 0777, so other users may replace what is in it"),
            ({"memory_dir": self.directory / "open"}, "has mode 0755, so other users may look into it"),
            ({"memory_dir": self.directory / "none" / "m"}, "No such file or directory"),
            ({"socket": self.directory / "none" / "s"}, "make its directory"),
            ({"socket": file / "s"}, "make its directory"),
            ({"socket": socket}, "in use by a file that is no socket"),
            ({"flash": f"{self.disk}:1MiB"}, "size is 1MiB and must be at least 65600KiB"),
            ({"flash": f"{self.disk}:99999GiB"}, "its file system has room for"),
            ({"flash": f"{self.disk}:256MiB", "journal_dir": file}, "is neither a directory nor a block device"),
            ({**cell, **dict.fromkeys(certificates, file)}, f"cell: authority: {file}"),
            ({**cell, **dict.fromkeys(certificates, file / "none")}, "/none: Not a directory"),
            ({**sealed, "etcd_authorities": file}, f"etcd_authorities: {file}: "),
            ({**sealed, "etcd_certificate": file, "etcd_key": file}, f"etcd_certificate: {file}: "),
            ({"http": "192.0.2.1:9180"}, "cannot be listened at: Cannot assign requested address"),
            ({**cell, "cell_key": key, "cell_listen": "192.0.2.1:7420"},
             "192.0.2.1:7420: Cannot assign requested address (EADDRNOTAVAIL); name an address of this host"),
            ({**cell, "cell_key": key}, "as cell_listen where the others reach it by another"),
            ({**cell, "cell_key": wide}, f"cell key: {wide} is a directory: name the file with the key"),
        ]
        for settings, text in rows:
            with self.subTest(**{name: str(value) for name, value in settings.items()}):
                self.write(**settings)
                self.assert_refused(text)

    def openssl(self, command: str) -> None:
        subprocess.run(command, shell=True, cwd=self.directory, capture_output=True, timeout=TIMEOUT_S, check=True)

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl here")
    def test_is_no_key_that_signs_slowly_of_which_it_warns(self) -> None:
        page = (pathlib.Path(__file__).parents[2] / "docs" / "cell.md").read_text(encoding="utf-8")
        request, = re.findall(r"(?m)^    (openssl req .*)$", page)
        self.openssl("openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=ca -keyout ca.key -out ca.crt")
        files = {name: self.directory / file for name, file in (
            ("cell_authority", "ca.crt"), ("cell_certificate", "node.crt"), ("cell_certificate_key", "node.key"))}
        for kind, slow in (("ec -pkeyopt ec_paramgen_curve:P-256", False), ("ed25519", False), ("rsa:2048", True)):
            with self.subTest(kind):
                self.openssl(request.replace("ec -pkeyopt ec_paramgen_curve:P-256", kind))
                self.openssl("openssl x509 -req -in node.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out node.crt")
                self.write(cell="http://127.0.0.1:1", member="one", cell_address=f"127.0.0.1:{free_port(2)}", **files)
                self.assert_says(self.start(check=True), 0)
                said = self.start(check=False)
                self.assert_says(said, 0, "node ready")
                self.assertEqual(f"cell_certificate_key: {files['cell_certificate_key']} is neither of P-256"
                                 in said.stderr.decode(), slow)

    @unittest.skipUnless(shutil.which("openssl"), "there is no openssl here")
    def test_is_a_key_for_etcd_with_a_passphrase_for_which_nobody_is_asked(self) -> None:
        self.openssl("openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -passout pass:word -subj /CN=one "
                     "-keyout etcd.key -out etcd.crt")
        with socket.create_server(("127.0.0.1", 0)) as etcd:
            words = ("cell", "new-history", "--cell", f"https://127.0.0.1:{etcd.getsockname()[1]}",
                     "--etcd-certificate", self.directory / "etcd.crt", "--etcd-key", self.directory / "etcd.key")
            said = subprocess.run([BIN / "cistern", *words], stdin=subprocess.DEVNULL, capture_output=True,
                                  timeout=TIMEOUT_S, check=False, start_new_session=True)  # without a terminal either
        self.assert_says(said, 2, "etcd.key")
        self.assertNotIn(b"pass phrase", said.stderr)

    def test_of_the_host_is_said_too(self) -> None:
        self.write()
        self.assert_refused("raise that limit (ulimit -f", "prlimit", "--fsize=1048576")
        mount = self.directory / "small"
        self.write(memory_dir=mount / "m")
        result = self.run_on_tmpfs(mount, "size=16m", f"{BIN}/cisternd --check --config {self.config}; "
                                                      f"{BIN}/cisternd --config {self.config}")
        first, second = result.stderr.decode().splitlines()
        self.assertEqual((first, result.returncode), (second, 2))
        self.assertIn("--shm-size", first)

    def test_of_a_device_beside_flash_that_is_there_is_said_by_its_regions(self) -> None:
        first, second = self.disk / "first", self.disk / "second"
        first.mkdir()
        second.mkdir()
        self.write(flash=f"{first}:4GiB")  # with regions of 64 MiB
        self.assert_says(self.start(check=False), 0)
        self.write(flash=[f"{first}:4GiB", f"{second}:128MiB"])
        self.assert_refused("size is 128MiB and must be at least")

    def test_is_not_what_its_own_node_has(self) -> None:
        """For a reload the same settings are checked while their node runs: it is who listens, and who has the lock."""
        node = Node(self.directory, "--http", "127.0.0.1:0", "--flash", f"{self.disk}:256MiB")
        self.check_ready(node)
        http = node.json("status")["node"]["http"]
        self.write(memory="128MiB", memory_dir=node.memory_dir, socket=node.socket, http=http,
                   flash=f"{self.disk}:256MiB")
        for check in (self.start(check=True), run("cistern", "config", "--check", self.config)):
            self.assert_says(check, 0)
        node.end(signal.SIGKILL)  # its socket stays
        self.assert_says(self.start(check=True), 0)
        self.assert_says(self.start(check=False), 0)

    def test_is_for_the_user_who_asks(self) -> None:
        if os.geteuid() != 0:
            self.skipTest("asks as another user: run as root")
        self.directory.chmod(0o755)
        self.write()
        nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
        self.assertIn("Permission denied", said_by(self.start(*nobody, check=True)))
        self.assertEqual(said_by(self.start(*nobody, check=True)), said_by(self.start(*nobody, check=False)))
        self.memory_dir.mkdir(0o700)
        os.chown(self.memory_dir, 65534, 65534)
        self.assert_says(self.start(check=True), 0)
        self.assertIn("belongs to user 65534", said_by(self.start(check=False)))


if __name__ == "__main__":
    unittest.main()
