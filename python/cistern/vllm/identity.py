# SPDX-License-Identifier: Apache-2.0
"""Who may share KV with whom: the list of names and values that makes a namespace.

In it is what a block's bytes depend on, and nothing else: engines that differ only in how they schedule or compile
share. vLLM's `compute_hash()` is not used: it changes with the number of sequences. A path or a name of a model is
never identity; the weights themselves are.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import struct
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EDGE_BYTES = 64 * 1024
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf")
CONFIGURATION = ("config.json", "params.json", "hf_quant_config.json", "quantize_config.json", "adapter_config.json")
NOT_CONTENT = {"_name_or_path", "transformers_version", "_commit_hash", "name_or_path"}


class Doubt(Exception):
    """What was asked cannot be told for sure; the text says why. Who doubts shares with nobody."""


@dataclass(frozen=True)
class Fields:
    """A namespace's list, in the order of its making."""

    items: tuple[tuple[str, str], ...]

    def with_(self, *more: tuple[str, str]) -> Fields:
        return Fields(self.items + more)


# ---------------------------------------------------------------------------- files


def _files(folder: Path) -> list[Path]:
    found = [path for path in folder.iterdir() if path.suffix in WEIGHTS or path.name in CONFIGURATION]
    if not any(path.suffix in WEIGHTS for path in found):
        raise Doubt(f"{folder}: no weights there")
    if any(path.suffix == ".safetensors" for path in found):  # then the loader reads no others
        found = [path for path in found if path.suffix == ".safetensors" or path.name in CONFIGURATION]
    return sorted(found, key=lambda path: path.name)


def _add_file(digest: Any, path: Path) -> None:
    """Name, size and what tells two files of one name and size apart."""
    size = path.stat().st_size
    digest.update(f"{path.name}\0{size}\0".encode())
    with path.open("rb") as file:
        if path.suffix == ".safetensors" and size >= 8:
            (header_bytes,) = struct.unpack("<Q", file.read(8))
            if header_bytes > size:
                raise Doubt(f"{path}: its header claims {header_bytes} bytes of {size}")
            digest.update(file.read(header_bytes))
        elif path.name in CONFIGURATION:
            digest.update(file.read())
            return
        file.seek(0)
        digest.update(file.read(EDGE_BYTES))
        file.seek(max(0, size - EDGE_BYTES))
        digest.update(file.read(EDGE_BYTES))


def weights_digest(folder: Path, unchanged_since: float | None = None) -> str:
    """Of a folder's configuration and shards: for each its name, its size, its safetensors header, its first and
    last 64 KiB. Raises Doubt where there are none, or where a file changed after `unchanged_since` (seconds since
    the epoch): then what was loaded and what is there may differ."""
    digest = hashlib.sha256()
    try:
        for path in [folder] if folder.is_file() else _files(folder):
            changed = path.stat().st_ctime
            if unchanged_since is not None and changed > unchanged_since:
                raise Doubt(f"{path}: changed after the engine began to load")
            _add_file(digest, path)
    except OSError as error:
        raise Doubt(f"{folder}: {error}") from error
    return digest.hexdigest()


def folder_state(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """What changes when a file is replaced or rewritten."""
    try:
        return tuple(
            (path.name, stat.st_ino, stat.st_size, stat.st_ctime_ns)
            for path in _files(folder)
            for stat in [path.stat()]
        )
    except OSError as error:
        raise Doubt(f"{folder}: {error}") from error


def process_began() -> float:
    """When this process began, in seconds since the epoch: before it loaded anything. The kernel rounds it down to a
    tick; a tick later nothing is loaded yet either, and what was written just before is not taken for a change."""
    with open("/proc/self/stat", encoding="ascii") as file:
        ticks = int(file.read().rpartition(")")[2].split()[19]) + 1
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age


# ---------------------------------------------------------------------------- weights


def weights(model: str, revision: str | None, load_format: str, seed: int) -> str:
    """Of the weights that an engine with these settings holds. Raises Doubt."""
    if load_format == "dummy":
        return f"dummy, seed {seed}"
    if load_format not in ("auto", "hf", "safetensors", "pt", "mistral", "gguf", "npcache", "fastsafetensors"):
        raise Doubt(f"load_format {load_format}: not known how it loads")
    path = Path(model)
    if path.exists():
        return "files " + weights_digest(path, process_began())
    return "commit " + _hub_commit(model, revision)


def _hub_commit(model: str, revision: str | None) -> str:
    try:
        from huggingface_hub import snapshot_download

        folder = snapshot_download(model, revision=revision, local_files_only=True)
    except Exception as error:  # any: the hub's client raises what its version likes
        raise Doubt(f"{model}: its commit is not to be resolved here ({error})") from error
    commit = Path(folder).name
    if len(commit) != 40:
        raise Doubt(f"{model}: {folder} names no commit")
    return f"{model} {commit}"


def canonical(value: Any) -> Any:
    """Plain data with a fixed order, without names and places."""
    if isinstance(value, dict):
        return {str(k): canonical(v) for k, v in sorted(value.items(), key=lambda one: str(one[0]))
                if str(k) not in NOT_CONTENT}
    if isinstance(value, (list, tuple)):
        return [canonical(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted(str(one) for one in value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def digest_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(canonical(value), sort_keys=True).encode()).hexdigest()


def _config_of(config: Any) -> Any:
    to_dict = getattr(config, "to_dict", None)
    return to_dict() if callable(to_dict) else str(config)


# ---------------------------------------------------------------------------- the list


def engine_fields(vllm_config: Any, kv_cache_config: Any, version: str) -> tuple[Fields, str]:
    """What is known at construction, and a note where the weights are in doubt (then nobody else has the same
    list)."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel, load = vllm_config.parallel_config, vllm_config.load_config
    doubt = ""
    try:
        if getattr(cache, "calculate_kv_scales", False):
            raise Doubt("calculate_kv_scales: the scales depend on what was computed first")
        held = weights(model.model, model.revision, str(load.load_format), model.seed)
        if callable(model.hf_overrides):
            raise Doubt("hf_overrides is a function")
    except Doubt as error:
        doubt = str(error)
        held = "unknown, " + os.urandom(16).hex()
    fields = [
        ("format", "vllm-1"),
        ("vllm", version),
        ("weights", held),
        ("model_config", digest_of(_config_of(model.hf_config))),
        ("model_impl", str(getattr(model, "model_impl", ""))),
        ("quantization", str(model.quantization)),
        ("quantization_config", digest_of(getattr(model, "quantization_config", None))),
        ("dtype", str(model.dtype)),
        ("cache_dtype", str(cache.cache_dtype)),
        ("cache_dtype_skip_layers", ",".join(getattr(cache, "kv_cache_dtype_skip_layers", None) or [])),
        ("sliding_window", f"{cache.sliding_window} {getattr(model, 'disable_sliding_window', False)}"),
        ("tensor_parallel", str(parallel.tensor_parallel_size)),
        ("pipeline_parallel", str(parallel.pipeline_parallel_size)),
        ("prefill_context_parallel", str(getattr(parallel, "prefill_context_parallel_size", 1))),
        ("decode_context_parallel", str(parallel.decode_context_parallel_size)),
        (
            "context_interleave",
            f"{getattr(parallel, 'dcp_kv_cache_interleave_size', 1)} "
            f"{getattr(parallel, 'cp_kv_cache_interleave_size', 1)}",
        ),
        ("draft", _draft(vllm_config)),
        ("kv_layout", str(getattr(kv_cache_config, "kv_cache_layout", None))),
        ("machine", platform.machine()),
    ]
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        fields.append((f"group{number}_spec", _spec_text(group.kv_cache_spec)))
        fields.append((f"group{number}_layers", digest_of(list(group.layer_names))))
    return Fields(tuple(fields)), doubt


def fresh_generation() -> str:
    """A name for weights that nobody else holds."""
    return os.urandom(16).hex()


def _draft(vllm_config: Any) -> str:
    speculative = vllm_config.speculative_config
    if speculative is None:
        return "none"
    words = [str(speculative.method), str(speculative.num_speculative_tokens)]
    draft = getattr(speculative, "draft_model_config", None)
    if draft is not None and draft.model != vllm_config.model_config.model:
        try:
            words.append(weights(draft.model, draft.revision, str(vllm_config.load_config.load_format), draft.seed))
        except Doubt:
            words.append("unknown, " + os.urandom(16).hex())
        words.append(digest_of(_config_of(draft.hf_config)))
    return " ".join(words)


def _spec_text(spec: Any) -> str:
    """A group's specification: its kind and every field of it."""
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        values = {one.name: getattr(spec, one.name) for one in dataclasses.fields(spec)}
        inner = values.pop("kv_cache_specs", None)
        if isinstance(inner, dict):
            values["layers"] = {name: _spec_text(one) for name, one in inner.items()}
        return f"{type(spec).__name__} {digest_of(values)}"
    return f"{type(spec).__name__} {spec}"


def hash_fields(algorithm: str, seed: bytes, hash_tokens: int, block_tokens: int, key_bytes: int) -> tuple[
    tuple[str, str], ...
]:
    """How keys are made. `sha256` and `xxhash` hash a pickle, whose bytes are this Python's own."""
    pickled = "" if algorithm.endswith("cbor") else f", pickle of Python {platform.python_version_tuple()[:2]}"
    return (
        ("hash", algorithm.split("_")[0]),
        ("hash_scheme", f"{algorithm}{pickled}"),
        ("hash_seed", seed.hex()),
        ("hash_tokens", str(hash_tokens)),
        ("block_tokens", str(block_tokens)),
        ("key_bytes", str(key_bytes)),
    )


def worker_fields(
    device: str, isa: Iterable[str], layouts: Sequence[Sequence[str]], replicas: int
) -> tuple[tuple[str, str], ...]:
    """What the workers told: device, instruction set where pages depend on it, and each rank's pages."""
    return (
        ("device", device),
        ("isa", ",".join(sorted(set(isa)))),
        ("identical_ranks", str(replicas)),
        ("layout", digest_of([list(one) for one in layouts])),
    )


def cpu_isa() -> str:
    """What the engine's CPU kernels choose a page's packing by."""
    import torch

    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return f"{torch.backends.cpu.get_cpu_capability()}{' amx' if amx else ''}"


# ---------------------------------------------------------------------------- adapters


class Adapters:
    """What is known of the adapters' files. The engine knows an adapter by its number alone, and loads it again
    only when told to: one whose place or files changed meanwhile is in doubt, since which of the two the engine
    holds is unknown."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, object]] = {}

    def digest(self, name: str, number: int, path: str, reload: bool) -> str:
        """Raises Doubt. `reload`: this request makes the engine load the adapter again."""
        folder = Path(path)
        if not folder.exists():
            raise Doubt(f"adapter {name}: no files at {path}")
        state = (path, folder_state(folder))
        known = self._known.get(number)
        if known is None or (reload and known[1] != state):
            known = (weights_digest(folder), state)
            if folder_state(folder) != state[1]:
                raise Doubt(f"adapter {name}: its files change")
            self._known[number] = known
        if known[1] != state:
            raise Doubt(f"adapter {name}: its place or its files changed since the engine first used number {number}")
        return known[0]
