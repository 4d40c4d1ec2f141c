# SPDX-License-Identifier: Apache-2.0
"""Digests of whole files, each made once: remembered by device, inode, size and change time."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import time
from pathlib import Path

DAY_S = 86_400
REMEMBERED_DAYS = 90
"""Time for which a digest is remembered that nobody asks for."""
SETTLED_S = 2.0
"""Age of a change from which on another one has another change time, whatever the file system's clock."""


def digests_folder() -> Path:
    """Folder of this user's remembered digests: one small file each, named by what it is remembered by."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cistern" / "digests"


def state_of(path: Path) -> tuple[int, int, int, int]:
    """State of a file, another one whenever it is replaced or written. Raises OSError."""
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_ctime_ns


def blob_name(path: Path) -> str:
    """Name of a file in a hub's cache, which stores each by its content and never changes it (snapshots/COMMIT/NAME ->
    blobs/DIGEST), or nothing. Large ones have their SHA-256 for a name."""
    real = path.resolve() if path.is_symlink() else path
    return real.name if real.parent.name == "blobs" and re.fullmatch(r"[0-9a-f]{40,64}", real.name) else ""


def file_digest(path: Path) -> str:
    """SHA-256 of a whole file. Raises OSError, also where the file changes meanwhile.

    Change times of whole seconds prove nothing: an image (squashfs, erofs) gives the time that it was built with, often
    one constant, and the next image at its place has the same device and inode numbers. Such a file is read each time.
    """
    name = blob_name(path)
    if len(name) == 64:
        return name
    state, began = state_of(path), time.time()
    place = digests_folder() / "-".join(f"{number:x}" for number in state)
    remembers = state[3] % 1_000_000_000 != 0
    if remembers and (remembered := _read(place)):
        return remembered
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if state_of(path) != state:
        raise OSError(f"{path} changes while it is read")
    if remembers and state[3] / 1e9 < began - SETTLED_S:
        _write(place, digest)
    return digest


def _read(place: Path) -> str:
    """The digest that stands there, if this user and nobody else could have written it."""
    try:
        folder = place.parent.stat()
        if folder.st_uid != os.geteuid() or folder.st_mode & 0o022:
            return ""
        text = place.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError):
        return ""
    with contextlib.suppress(OSError):
        os.utime(place)
    return text if re.fullmatch(r"[0-9a-f]{64}", text) else ""


def _write(place: Path, digest: str) -> None:
    """Remembers a digest; where that fails it is made again next time."""
    new = place.with_name(f"{place.name}.{os.getpid()}.{time.monotonic_ns():x}")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.write_text(digest, encoding="ascii")
        new.replace(place)
    except OSError:
        with contextlib.suppress(OSError):
            new.unlink(missing_ok=True)
    _forget_unasked(place.parent, int(time.time() // DAY_S))


@functools.lru_cache(maxsize=1)
def _forget_unasked(folder: Path, day: int) -> None:
    """Removes, once a day, what nobody has asked for in REMEMBERED_DAYS: an engine that is given other weights every
    hour leaves a file for each."""
    with contextlib.suppress(OSError):
        for one in folder.iterdir():
            with contextlib.suppress(OSError):
                if one.stat().st_mtime < (day - REMEMBERED_DAYS) * DAY_S:
                    one.unlink()
