# SPDX-License-Identifier: Apache-2.0
"""Identity of a model's files: digests by which two engines know that they hold the same weights."""

from __future__ import annotations

import hashlib
import os
import struct
import time
from pathlib import Path
from typing import Any

EDGE_BYTES = 64 * 1024
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
CONFIGURATION = ("config.json", "params.json", "hf_quant_config.json", "quantize_config.json", "adapter_config.json")


class UnknownIdentity(Exception):
    """Files or settings whose meaning for KV is not known for sure; the text says why. Nothing is shared then."""


def _files(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.suffix in WEIGHTS or path.name in CONFIGURATION]
    if not any(path.suffix in WEIGHTS for path in found):
        raise UnknownIdentity(f"{folder}: no weights there")
    if any(path.suffix == ".safetensors" for path in found):  # then the loader reads no others
        found = [path for path in found if path.suffix == ".safetensors" or path.name in CONFIGURATION]
    return sorted(found, key=lambda path: path.name)


def _add_file(digest: Any, path: Path) -> None:
    """Adds a file's name, its size, and bytes in which two files of one name and size differ."""
    size = path.stat().st_size
    digest.update(f"{path.name}\0{size}\0".encode())
    with path.open("rb") as file:
        if path.suffix == ".safetensors" and size >= 8:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            if header_bytes > size:
                raise UnknownIdentity(f"{path}: its header claims {header_bytes} bytes of {size}")
            digest.update(file.read(header_bytes))
        elif path.name in CONFIGURATION:
            digest.update(file.read())
            return
        file.seek(0)
        digest.update(file.read(EDGE_BYTES))
        file.seek(max(0, size - EDGE_BYTES))
        digest.update(file.read(EDGE_BYTES))


def weights_digest(folder: Path, unchanged_since: float | None = None) -> str:
    """Digest of a folder's configuration and shards: for each its name, its size, its safetensors header, its first and
    last 64 KiB. Raises UnknownIdentity where there are none, or where a file changed after `unchanged_since`
    (seconds since the epoch): the loaded weights and the files may differ then."""
    digest = hashlib.sha256()
    try:
        for path in [folder] if folder.is_file() else _files(folder):
            changed = path.stat().st_ctime
            if unchanged_since is not None and changed > unchanged_since:
                raise UnknownIdentity(f"{path}: changed after the engine began to load")
            _add_file(digest, path)
    except OSError as error:
        raise UnknownIdentity(f"{folder}: {error}") from error
    return digest.hexdigest()


def folder_state(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """State of a folder's files, which changes when one is replaced or rewritten."""
    try:
        return tuple(
            (path.name, stat.st_ino, stat.st_size, stat.st_ctime_ns)
            for path in _files(folder)
            for stat in [path.stat()]
        )
    except OSError as error:
        raise UnknownIdentity(f"{folder}: {error}") from error


def process_began() -> float:
    """Start of this process, in seconds since the epoch: before it loaded anything. The kernel rounds it down to a
    tick; a tick later nothing is loaded yet either, and a file written just before does not count as changed."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19]) + 1
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


def hub_commit(model: str, revision: str | None) -> str:
    """The commit of a model of the hub, as its client has it on this host. Raises UnknownIdentity."""
    try:
        from huggingface_hub import snapshot_download

        folder = snapshot_download(model, revision=revision, local_files_only=True)
    except Exception as error:  # any: the hub's client raises what its version likes
        raise UnknownIdentity(f"{model}: its commit is not to be resolved here ({error})") from error
    commit = Path(folder).name
    if len(commit) != 40:
        raise UnknownIdentity(f"{model}: {folder} names no commit")
    return f"{model} {commit}"
