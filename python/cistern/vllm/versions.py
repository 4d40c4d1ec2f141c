# SPDX-License-Identifier: Apache-2.0
"""Differences between versions of vLLM, all of them."""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from types import FrameType, SimpleNamespace
from typing import Any

TESTED = ("0.32", "0.31", "0.30")


class UntestedVersion(RuntimeError):
    """vLLM is missing or of a version that this connector was not tested with."""


def check(version: str, allow_untested: bool) -> None:
    """Raises UntestedVersion unless `version` is one of TESTED or untested ones are allowed."""
    match = re.match(r"(\d+\.\d+)", version)
    if allow_untested or (match and match[1] in TESTED):
        return
    raise UntestedVersion(
        f"vLLM {version} was not tested with this connector (tested: {', '.join(TESTED)}); "
        'set "allow_untested": true in kv_connector_extra_config to try it'
    )


def lacking(version: str, error: ImportError) -> UntestedVersion:
    """What to say of a version that has not what this connector is made of."""
    return UntestedVersion(
        f"vLLM {version} lacks what Cistern's connector needs ({error}); it was tested with {', '.join(TESTED)}: "
        f"install one of them, or leave CisternConnector out of --kv-transfer-config"
    )


def hit_sources() -> dict[str, Any]:
    """The engine metrics' names for the tiers that tokens come from; before 0.32 they do not tell sources apart."""
    try:
        from vllm.v1.metrics.cache_hit_source import CacheHitSource
    except ModuleNotFoundError:
        return {}
    return {"memory": CacheHitSource.HOST, "flash": CacheHitSource.DISK, "peer": CacheHitSource.P2P}


def identical_ranks(kv_cache_config: Any) -> int:
    """Number of consecutive tensor-parallel ranks that hold the same KV. 0.30 does not say: each writes there."""
    return int(getattr(kv_cache_config, "kv_tp_replicas", 1) or 1)


def block_sizes(vllm_config: Any, kv_cache_config: Any) -> tuple[int, int]:
    """Tokens of a scheduler's block (over all groups), and of a hash."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    block_tokens, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    return int(block_tokens), int(hash_tokens)


def group_tokens(spec: Any, vllm_config: Any) -> int:
    """Tokens of one engine block of a group: context parallel ranks share a block's tokens."""
    context_ranks = vllm_config.parallel_config.decode_context_parallel_size
    sharded = getattr(spec, "dcp_sharded", True)
    return int(spec.block_size) * (context_ranks if sharded else 1)


def hash_seed() -> bytes:
    """The value from which the first block's hash chains. The engine core sets it after its connectors were built, so
    it is good from the first request on."""
    from vllm.v1.core import kv_cache_utils

    return bytes(kv_cache_utils.NONE_HASH)


def adapter_key(lora: Any) -> str:
    """What of a LoRARequest is in the hashes of its blocks: its name, from 0.32 on its path too."""
    return f"{lora.lora_name}\0{lora.lora_path}" if _hashes_adapter_path() else str(lora.lora_name)


@functools.cache
def _hashes_adapter_path() -> bool:
    from vllm.v1.core.kv_cache_utils import _gen_lora_extra_hash_keys

    asked: Any = SimpleNamespace(lora_request=SimpleNamespace(lora_name="name", lora_int_id=1, lora_path="path"))
    return any("path" in key for key in _gen_lora_extra_hash_keys(asked) if isinstance(key, tuple))


def event_extra_keys(request: Any, first: int, last: int) -> tuple[Any, ...] | None:
    """`BlockStored.extra_keys` of the block of these tokens. Where vLLM does not convert keys for events, they are as
    events have them."""
    from vllm.v1.core import kv_cache_utils

    keys, _ = kv_cache_utils.generate_block_hash_extra_keys(request, first, last, 0)
    told = getattr(kv_cache_utils, "to_event_extra_keys", None)
    if keys is not None and told is not None:
        (keys,) = told([keys])
    return keys  # type: ignore[no-any-return]


def layer_specs(spec: Any) -> dict[str, Any] | None:
    """The layers' own specifications where a group's stands for several of one kind; None: the group's is theirs."""
    inner = getattr(spec, "kv_cache_specs", None)
    return dict(inner) if inner else None


def unpadded_page_bytes(spec: Any) -> int | None:
    """Bytes of one layer's page without padding, or None where this version does not say."""
    for name in ("unpadded_page_size_bytes", "real_page_size_bytes"):
        value = getattr(spec, name, None)
        if isinstance(value, int):
            return value
    return None


def page_writers(vllm_config: Any) -> dict[str, str]:
    """Names of the attention backends that write the layers' pages."""
    writers = {}
    for name, layer in vllm_config.compilation_config.static_forward_context.items():
        ask = getattr(layer, "get_attn_backend", None)
        backend = ask() if callable(ask) else getattr(layer, "attn_backend", None)
        if backend is not None:
            writers[name] = str(backend.get_name())
    return writers


def cpu_features() -> str:
    """What vLLM's kernels ask of a CPU beside what torch knows of it: with it they quantize what they multiply whole
    without."""
    try:
        from vllm._custom_ops import cpu_has_amx_fp8
    except ImportError:
        return ""
    return "amx_fp8" if cpu_has_amx_fp8() else ""


def leave_embeddings_as_asked(connector: str) -> None:
    """From 0.32 on, vLLM takes embeddings of images from every client of an engine whose connector brings KV, also
    without their tensor, since another engine computed what they are for. This connector brings no such KV, and the
    engine ends with the first one: where nothing else is there that does, clients may send what the user has let
    them."""
    from vllm.config import VllmConfig

    resolve = getattr(VllmConfig, "_resolve_mm_embedding_inputs", None)
    if resolve is None or resolve.__module__ == __name__:
        return

    def resolved(config: Any) -> None:
        images = getattr(config.model_config, "multimodal_config", None)
        transfer, encoder = config.kv_transfer_config, config.ec_transfer_config
        alone = transfer is not None and transfer.kv_connector == connector
        if images is None or not alone or (encoder is not None and encoder.is_ec_consumer):
            resolve(config)
        else:
            images.allow_missing_mm_embeddings = False

    VllmConfig._resolve_mm_embedding_inputs = resolved


def worker_of_caller() -> Any:
    """The worker that makes its connector, which vLLM does not hand to it; None where no caller is one."""
    return _caller("model_runner", "initialize_from_config")


def core_of_caller() -> Any:
    """The engine core that makes its scheduler and with it the connector; None where no caller is one."""
    return _caller("model_executor", "add_lora")


def _caller(attribute: str, method: str) -> Any:
    """The nearest caller that is an object with both."""
    for _, caller in _callers():
        if hasattr(caller, attribute) and callable(getattr(caller, method, None)):
            return caller
    return None


def _callers() -> Iterator[tuple[str, Any]]:
    """From the nearest on: the name of each function, and the object that it is called of, or None."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        yield frame.f_code.co_name, frame.f_locals.get("self")
        frame = frame.f_back


def engine_transfer_config(vllm_config: Any) -> Any:
    """The engine's own KVTransferConfig: of a child of MultiConnector, which makes each child with a configuration that
    has the child's alone, that of the outermost one."""
    found = getattr(vllm_config, "kv_transfer_config", None)
    for _, caller in _callers():
        if any(one.__name__ == "MultiConnector" for one in type(caller).__mro__):
            found = getattr(getattr(caller, "_vllm_config", None), "kv_transfer_config", None) or found
    return found


def stepped_by_caller() -> bool:
    """Whether the calling engine core is stepped from this very process, by a caller that stops when no request is
    left: `LLM` without an engine process. An engine core with a process of its own goes on as long as its connector
    says that work is pending."""
    return any(name == "get_output" and type(caller).__name__ == "InprocClient" for name, caller in _callers())
