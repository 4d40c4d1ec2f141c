# SPDX-License-Identifier: Apache-2.0
"""The programs that come with the package: the node, and the command line."""

from __future__ import annotations

import os
import sys
from importlib import resources
from pathlib import Path
from typing import NoReturn

from . import _native


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


def default_socket_path() -> Path:
    """Where a node listens, and its clients look for it, when nobody says where."""
    return Path(_native.default_socket_path())


def own_socket_directory() -> Path:
    """The directory that a node makes for its socket, where the host has none that is this user's alone."""
    return Path(_native.own_socket_directory())


def _become(path: str) -> NoReturn:
    os.execv(path, [path, *sys.argv[1:]])


def run_cisternd() -> NoReturn:
    _become(cisternd_path())


def run_cistern() -> NoReturn:
    _become(cistern_path())
