# SPDX-License-Identifier: Apache-2.0
"""Identity of a vLLM engine's KV: its configuration as a namespace's list of names and values.

The list has everything that a block's bytes depend on, and nothing else. vLLM's `compute_hash()` is not used: it
changes with the number of sequences.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from pathlib import Path
from typing import Any

from ..engine.files import UnknownIdentity, hub_commit, process_began, weights_digest
from ..engine.identity import Fields, digest_of


def weights(model: str, revision: str | None, load_format: str, seed: int) -> str:
    """Identity of the weights of an engine with these settings. Raises UnknownIdentity."""
    if load_format == "dummy":
        return f"dummy, seed {seed}"
    if load_format not in ("auto", "hf", "safetensors", "pt", "mistral", "gguf", "npcache", "fastsafetensors"):
        raise UnknownIdentity(f"load_format {load_format}: not known how it loads")
    path = Path(model)
    if path.exists():
        return "files " + weights_digest(path, process_began())
    return "commit " + hub_commit(model, revision)


def _config_of(config: Any) -> Any:
    to_dict = getattr(config, "to_dict", None)
    return to_dict() if callable(to_dict) else str(config)


def engine_fields(vllm_config: Any, kv_cache_config: Any, version: str) -> tuple[Fields, str]:
    """Fields known at construction, and a text where the weights' identity is unknown (no other engine has the same
    list then)."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel, load = vllm_config.parallel_config, vllm_config.load_config
    unknown = ""
    try:
        if getattr(cache, "calculate_kv_scales", False):
            raise UnknownIdentity("calculate_kv_scales: the scales depend on what was computed first")
        held = weights(model.model, model.revision, str(load.load_format), model.seed)
        if callable(model.hf_overrides):
            raise UnknownIdentity("hf_overrides is a function")
    except UnknownIdentity as error:
        unknown = str(error)
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
    return Fields(tuple(fields)), unknown


def _draft(vllm_config: Any) -> str:
    speculative = vllm_config.speculative_config
    if speculative is None:
        return "none"
    words = [str(speculative.method), str(speculative.num_speculative_tokens)]
    draft = getattr(speculative, "draft_model_config", None)
    if draft is not None and draft.model != vllm_config.model_config.model:
        try:
            words.append(weights(draft.model, draft.revision, str(vllm_config.load_config.load_format), draft.seed))
        except UnknownIdentity:
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


def hash_fields(
    algorithm: str, seed: bytes, hash_tokens: int, block_tokens: int, key_bytes: int
) -> tuple[tuple[str, str], ...]:
    """Making of the keys. `sha256` and `xxhash` hash a pickle, whose bytes are this Python's own."""
    pickled = "" if algorithm.endswith("cbor") else f", pickle of Python {platform.python_version_tuple()[:2]}"
    return (
        ("hash", algorithm.split("_")[0]),
        ("hash_scheme", f"{algorithm}{pickled}"),
        ("hash_seed", seed.hex()),
        ("hash_tokens", str(hash_tokens)),
        ("block_tokens", str(block_tokens)),
        ("key_bytes", str(key_bytes)),
    )
