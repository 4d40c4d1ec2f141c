# SPDX-License-Identifier: Apache-2.0
"""Builds the package from a checkout as pip does and uses what it installed, in a place of its own: wheel.py
SOURCE SCRATCH. Nothing of SOURCE is on the new interpreter's path."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

USE = """
import pathlib, subprocess, sys, tempfile
import cistern
from cistern import aio, errors, transfers
here = pathlib.Path(cistern.__file__).parent
assert sys.prefix in str(here), here
assert (here / "py.typed").exists()
with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
    with cistern.Store.open(memory_bytes=64 << 20, memory_dir=directory + "/memory") as store:
        namespace = store.attach(cistern.NamespaceSpec({"model": "wheel"}))
        store.put(namespace, b"k" * 32, b"data")
        assert store.get(namespace, b"k" * 32) == b"data"
for script in ("cisternd", "cistern"):
    shown = subprocess.run([sys.prefix + "/bin/" + script, "--help"], capture_output=True, text=True, check=True)
    assert "Usage" in shown.stdout
print("the wheel's package works, version", cistern.__version__)
"""


def main(source: pathlib.Path, scratch: pathlib.Path) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    # Without isolation: what builds it here is pinned and installed already. The compilers by the names that
    # CMake finds, not those that this Python was built with: so the compiler's cache knows what is built.
    subprocess.run(
        [*pip, "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", scratch / "wheels", source],
        check=True,
        env={**os.environ, "CC": "cc", "CXX": "c++"},
    )
    (wheel,) = (scratch / "wheels").iterdir()
    assert wheel.name.startswith("cistern_kv-"), wheel
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", scratch / "venv"], check=True)
    python = scratch / "venv" / "bin" / "python"
    subprocess.run([*pip, "--python", python, "install", "-q", "--no-deps", "--no-index", wheel], check=True)
    subprocess.run([python, "-c", USE], check=True, cwd=scratch)


main(*map(pathlib.Path, sys.argv[1:3]))
