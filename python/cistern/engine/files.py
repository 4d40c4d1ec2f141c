# SPDX-License-Identifier: Apache-2.0
"""Identity of a model's files: digests by which two engines know that they hold the same weights."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from .digests import blob_name, file_digest, state_of

WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
CONFIGURATION = (
    "config.json", "params.json", "hf_quant_config.json", "quantize_config.json", "adapter_config.json",
    "model.safetensors.index.json", "consolidated.safetensors.index.json",
)
"""Files beside the weights that say what they are, and which of them count."""
MAX_LINKS = 40
"""On the way to a file, as the kernel follows them."""


class UnknownIdentity(Exception):
    """Files or settings whose meaning for KV is not known for sure; the text says why. Nothing is shared then."""


def may_pass(error: BaseException | None) -> bool:
    """Whether files could not be read, though they are there: what they are says nothing against them."""
    if isinstance(error, UnknownIdentity):
        error = error.__cause__
    lasting = (FileNotFoundError, NotADirectoryError, PermissionError)
    return isinstance(error, OSError) and not isinstance(error, lasting)


def _files(folder: Path, kinds: Sequence[str]) -> list[Path]:
    found = [path for path in folder.iterdir() if path.suffix in kinds or path.name in CONFIGURATION]
    names = {path.name for path in found}
    if not any(path.suffix in kinds for path in found):
        raise UnknownIdentity(f"{folder}: no weights there")
    # Then the loader reads no others; of an adapter's folder it takes the one file that has the adapter's name.
    if any(path.suffix == ".safetensors" for path in found) and "adapter_config.json" not in names:
        found = [path for path in found if path.suffix == ".safetensors" or path.name in CONFIGURATION]
    return sorted(found, key=lambda path: path.name)


def files_of(folder: Path, kinds: Sequence[str] = WEIGHTS) -> list[Path]:
    """A folder's files that are read, by their names; of one file itself."""
    return [folder] if folder.is_file() else _files(folder, kinds)


def weights_digest(folder: Path, unchanged_since: float | None = None, kinds: Sequence[str] = WEIGHTS) -> str:
    """Digest of a folder's configuration and shards: the name and the whole content of each, so that it may take
    minutes where neither is known yet. Raises UnknownIdentity where there are none, or where a file changed after
    `unchanged_since` (seconds since the epoch): the loaded weights and the files may differ then. `kinds`: suffixes of
    the files that are read; where all are, others only where there are no safetensors."""
    before = folder_state(folder, kinds)
    found = files_of(folder, kinds)
    digest = files_digest(folder.parent if folder.is_file() else folder, found, unchanged_since)
    if folder_state(folder, kinds) != before:
        raise UnknownIdentity(f"{folder}: its files change while they are read")
    return digest


def files_digest(folder: Path, paths: Iterable[Path], unchanged_since: float | None = None) -> str:
    """Digest of files below a folder: the place in it and the whole content of each, in this order. Raises
    UnknownIdentity where one cannot be read, or changed after `unchanged_since`."""
    digest = hashlib.sha256()
    try:
        for path in paths:
            if unchanged_since is not None and not blob_name(path) and path.stat().st_ctime > unchanged_since:
                raise UnknownIdentity(f"{path}: changed after the engine began to load")
            digest.update(os.fsencode(path.relative_to(folder)) + f"\0{file_digest(path)}\0".encode())
    except OSError as error:
        raise UnknownIdentity(f"{folder}: {error}") from error
    return digest.hexdigest()


def folder_state(
    folder: Path, kinds: Sequence[str] = WEIGHTS
) -> tuple[tuple[str, tuple[int, int, int, int]], ...]:
    """State of a folder's files (or of one file), which changes when one is replaced or rewritten."""
    try:
        return tuple((path.name, state_of(path)) for path in files_of(folder, kinds))
    except OSError as error:
        raise UnknownIdentity(f"{folder}: {error}") from error


def links_to(place: Path) -> tuple[tuple[str, int, int], ...]:
    """State of the symbolic links by which a path, or a file below it, is found: it changes when one is set anew, also
    to where it led before. Raises OSError."""
    found: list[tuple[str, int, int]] = []
    at, left = Path("/"), deque(place.absolute().parts[1:])
    while left:
        at /= left.popleft()
        about = at.lstat()
        if not stat.S_ISLNK(about.st_mode):
            continue
        found.append((str(at), about.st_ino, about.st_ctime_ns))
        if len(found) > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(place))
        target = Path(os.readlink(at))
        left.extendleft(reversed(target.parts[1:] if target.is_absolute() else target.parts))
        at = Path("/") if target.is_absolute() else at.parent
    return tuple(found)


def process_began() -> float:
    """Start of this process, in seconds since the epoch: before it loaded anything. The kernel rounds it down to a
    tick; a tick later nothing is loaded yet either, and a file written just before does not count as changed."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19]) + 1
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def hub_snapshot(
    model: str, revision: str | None, cache: str | None, commit: str | None, began: float
) -> Path:
    """Folder of a hub's model in its client's cache, of the commit that an engine loaded which began then. `cache`:
    the cache's folder, None for the client's own; `commit`: of the configuration that the engine read first. A branch
    may have moved since: unless it stands where it stood, the commit is not known. Raises UnknownIdentity."""
    if cache is None:
        from huggingface_hub.constants import HF_HUB_CACHE

        cache = HF_HUB_CACHE
    place = Path(cache) / f"models--{model.replace('/', '--')}"
    name = revision or "main"
    try:
        if re.fullmatch(r"[0-9a-f]{40}", name):
            loaded = name
        else:
            ref = place / "refs" / name
            loaded = ref.read_text(encoding="ascii").strip()
            if loaded != commit and ref.stat().st_ctime > began:
                raise UnknownIdentity(
                    f"{model}: {name} moved to {loaded[:12]} while the engine began; start it again, or with a commit "
                    "as its revision"
                )
        folder = place / "snapshots" / loaded
        if not folder.is_dir():
            raise UnknownIdentity(f"{model}: commit {loaded[:12]} is not at {folder}")
    except (OSError, UnicodeDecodeError) as error:
        raise UnknownIdentity(f"{model}: its commit is not to be resolved here ({error})") from error
    return folder
