# SPDX-License-Identifier: Apache-2.0
"""The programs that come with the package: the node, and the command line."""

from __future__ import annotations

import os
import sys
from importlib import resources
from typing import NoReturn


def _path(name: str) -> str:
    path = resources.files("cistern").joinpath("bin", name)
    if not path.is_file():
        raise FileNotFoundError(f"this installation of cistern has no program '{name}' at {path}")
    return str(path)


def cisternd_path() -> str:
    """The node's program, to be started as a process of its own."""
    return _path("cisternd")


def cistern_path() -> str:
    """The command line's program."""
    return _path("cistern")


def _become(path: str) -> NoReturn:
    os.execv(path, [path, *sys.argv[1:]])


def run_cisternd() -> NoReturn:
    _become(cisternd_path())


def run_cistern() -> NoReturn:
    _become(cistern_path())
