# SPDX-License-Identifier: Apache-2.0
"""vLLM's configuration as plain values: read once, when the connector is made."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.facts import ConfigurationError, EngineFacts, GroupFacts
from . import NAME, versions

LOGGER = "vllm.cistern"
MODEL = "model"
"""The label that says what a namespace is of."""
OFFLOADING = ("OffloadingConnector", "SimpleCPUOffloadConnector")
"""vLLM's connectors to memory of the engine's own."""
MAX_NAME = 64
MAX_LABEL = 127


@dataclass(frozen=True)
class VllmFacts:
    engine: EngineFacts
    rank: int
    """This process's own, where it is a worker."""
    hash_algorithm: str
    publishes_events: bool


def read_facts(vllm_config: Any, kv_cache_config: Any) -> VllmFacts:
    """Raises ConfigurationError for a kind of attention whose KV is not known, for a model that vLLM itself would reuse
    no KV of, and for answers that vLLM makes of what it computed alone."""
    _check_model(vllm_config.model_config)
    if getattr(getattr(vllm_config, "aux_output_config", None), "enabled", False):
        raise ConfigurationError(
            "vLLM returns routed experts with its answers, which it has of what it computed itself alone, and ends "
            "with the first request of which KV was loaded"
        )
    parallel, events = vllm_config.parallel_config, vllm_config.kv_events_config
    block_tokens, hash_tokens = versions.block_sizes(vllm_config, kv_cache_config)
    return VllmFacts(
        engine=EngineFacts(
            ranks=int(parallel.world_size),
            identical_ranks=versions.identical_ranks(kv_cache_config),
            block_tokens=block_tokens,
            hash_tokens=hash_tokens,
            pages=kv_cache_config.num_blocks,
            groups=_groups(vllm_config, kv_cache_config, block_tokens),
            drafts=vllm_config.speculative_config is not None,
            logger=LOGGER,
            adapters=_adapters(vllm_config),
            beside_others=_beside_others(versions.engine_transfer_config(vllm_config)),
            name=_name(vllm_config),
            labels=_labels(vllm_config.model_config),
        ),
        rank=parallel.rank,
        hash_algorithm=str(vllm_config.cache_config.prefix_caching_hash_algo),
        publishes_events=events is not None and bool(events.enable_kv_cache_events),
    )


def _name(vllm_config: Any) -> str:
    """vLLM's id of this engine, which its own logs have, or else the host and the process."""
    given = getattr(getattr(vllm_config, "kv_transfer_config", None), "engine_id", None)
    name = str(given) if given else f"{socket.gethostname()}-{os.getpid()}"
    return re.sub(r"[^!-~]", "_", name)[:MAX_NAME]


def _labels(model: Any) -> tuple[tuple[str, str], ...]:
    """The name under which the model is served, or else as it was given."""
    served = getattr(model, "served_model_name", None)
    first = served[0] if isinstance(served, (list, tuple)) and served else served
    name = re.sub(r"[\x00-\x1f\x7f]", "_", str(first or model.model))
    # A path's end is what tells it from others.
    kept = name.encode("utf-8", "replace")[-MAX_LABEL + len(MODEL):].decode("utf-8", "ignore")
    return ((MODEL, kept),) if kept else ()


def images_counted(vllm_config: Any) -> bool:
    """Whether vLLM names images by counting them, the same in each process: with both of its caches off. With settings
    of a request's own such a name is hashed with them, and looks like a digest of an image."""
    images = getattr(vllm_config.model_config, "multimodal_config", None)
    cached = vllm_config.cache_config.enable_prefix_caching or getattr(images, "mm_processor_cache_gb", 0)
    return images is not None and not cached


def _beside_others(transfer_config: Any) -> bool:
    """Whether MultiConnector has another child than one that keeps what this engine has computed."""
    extra = getattr(transfer_config, "kv_connector_extra_config", None) or {}
    children = extra.get("connectors", ()) if getattr(transfer_config, "kv_connector", "") == "MultiConnector" else ()
    for child in children:
        own = child.get("kv_connector") in (NAME, *OFFLOADING)
        if not own or "spec_name" in (child.get("kv_connector_extra_config") or {}):
            return True
    return False


APPLIED = (
    "target_modules", "enable_tower_connector_lora", "enable_mixed_moe_lora_format", "enable_moe_shared_loras",
)
"""Fields of vLLM's LoRAConfig that say what of an adapter is applied, and how its files are read."""


def _adapters(vllm_config: Any) -> str:
    lora = getattr(vllm_config, "lora_config", None)
    words = [(name, getattr(lora, name, None)) for name in APPLIED]
    told = [f"{name} {sorted(value) if isinstance(value, list) else value}" for name, value in words if value]
    dtype = str(getattr(lora, "lora_dtype", None) or "auto")
    if lora is not None and dtype not in ("auto", str(vllm_config.model_config.dtype)):
        told.append(f"lora_dtype {dtype}")
    return ", ".join(told)


def _check_model(model: Any) -> None:
    """vLLM asks its connectors about such models all the same."""
    if getattr(model, "is_diffusion", False):
        raise ConfigurationError("a diffusion model computes the KV of its answer more than once")
    if not getattr(model, "is_prefix_caching_supported", True):
        raise ConfigurationError(
            "vLLM caches no prefixes of this model: its answer is made of every token of a prompt (pooling by mean or "
            "by the first token), or its KV is of more than the tokens before"
        )


def _groups(vllm_config: Any, kv_cache_config: Any, block_tokens: int) -> tuple[GroupFacts, ...]:
    groups = []
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        spec, layers = group.kv_cache_spec, tuple(group.layer_names)
        window = _window(number, layers, spec)
        if getattr(group, "enable_kv_transfer", True) is False or getattr(spec, "prefix_replay_tokens", None):
            raise ConfigurationError(f"KV cache group {number} is not kept in a way that Cistern knows")
        tokens = versions.group_tokens(spec, vllm_config)
        if block_tokens % tokens:
            raise ConfigurationError(f"KV cache group {number}: {tokens} tokens a block do not divide {block_tokens}")
        groups.append(
            GroupFacts(f"group{number}", window, block_tokens // tokens, layers, _page_bytes(spec, layers))
        )
    if not groups:
        raise ConfigurationError("the model has no KV cache")
    if all(group.window_tokens for group in groups):
        raise ConfigurationError("all of the model's attention is sliding-window: Cistern needs one full group")
    return tuple(groups)


def _window(number: int, layers: Sequence[str], spec: Any) -> int:
    """The widest window of a group's layers, as far back as vLLM keeps pages for it; 0 where one of them needs
    everything."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

    windows = set()
    for one in (versions.layer_specs(spec) or {"": spec}).values():
        kind = type(one)
        if kind is SlidingWindowSpec:
            windows.add(int(one.sliding_window) + int(getattr(one, "extra_retained_tokens", 0)))
        elif kind in (FullAttentionSpec, MLAAttentionSpec) and getattr(one, "attention_chunk_size", None) is None:
            windows.add(0)
        else:
            raise ConfigurationError(
                f"KV cache group {number} ({layers[0]} ...) is a {kind.__name__}: Cistern knows full "
                "and sliding-window attention"
            )
    return 0 if 0 in windows else max(windows)


def _page_bytes(spec: Any, layers: Sequence[str]) -> int | None:
    inner = versions.layer_specs(spec)
    sizes = [versions.unpadded_page_bytes((inner or {}).get(layer, spec)) for layer in layers]
    return None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)
