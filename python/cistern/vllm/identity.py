# SPDX-License-Identifier: Apache-2.0
"""Identity of a vLLM engine's KV: its configuration as a namespace's list of names and values.

The list has everything that a block's bytes depend on, and nothing else. vLLM's `compute_hash()` is not used: it
changes with the number of sequences.
"""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from ..engine.digests import file_digest
from ..engine.facts import ConfigurationError
from ..engine.files import UnknownIdentity, hub_snapshot, process_began, weights_digest
from ..engine.identity import Fields, digest_of
from .positions import position_fields
from .sources import code_of, files_beside_weights, models_named_by

KNOWN_LOADERS = ("auto", "hf", "safetensors", "pt", "mistral", "gguf", "fastsafetensors")
"""npcache is none: it reads a copy of the weights that it made once, whatever the files are by now."""
CONSOLIDATED = "consolidated*.safetensors"
"""Mistral's own files, which lie beside others of the same model."""
WITHOUT_KV = ("ngram", "[ngram]", "ngram_gpu", "suffix", "medusa", "mlp_speculator")
"""Ways of speculation that draft without KV of their own: the target's is what it is without them."""
SWITCHES = (
    "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "VLLM_BATCH_INVARIANT", "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION",
    "VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16", "VLLM_FLOAT32_MATMUL_PRECISION", "VLLM_HUMMING_ONLINE_QUANT_CONFIG",
    "VLLM_HUMMING_INPUT_QUANT_CONFIG", "VLLM_HUMMING_USE_F16_ACCUM", "VLLM_MOE_ROUTING_SIMULATION_STRATEGY",
    "VLLM_MARLIN_INPUT_DTYPE", "VLLM_CPU_INT4_W4A8", "VLLM_DEEPEPLL_NVFP4_DISPATCH",
    "VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE", "VLLM_B12X_MOE_FP4_FORCE_A16", "VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4",
    "VLLM_ROCM_USE_AITER_FP8BMM", "VLLM_ROCM_USE_AITER_FP4BMM", "VLLM_USE_DEEP_GEMM_E8M0", "VLLM_VIDEO_LOADER_BACKEND",
    "VLLM_DISABLED_KERNELS", "VLLM_XPU_INC_WNA16_BACKEND",
)
"""Variables of vLLM's environment that change what pages hold, or what is computed, without changing their shape:
decisions/0005 has all that were looked at."""
SETTINGS = (
    ("attention_config", (
        "indexer_kv_dtype", "use_non_causal", "use_prefill_query_quantization", "disable_flashinfer_q_quantization",
        "use_trtllm_attention",
    )),
    ("kernel_config", ("moe_backend", "linear_backend", "linear_backend_per_quant")),
)
"""Fields of vLLM's configuration that do."""
ARRANGEMENT = ("extra_retained_tokens", "max_tp_shards")
"""Fields of a group's specification that say how long its pages are kept and by whom, not what is in them."""


def weights(model: Any, load: Any, began: float) -> str:
    """Identity of the weights that an engine which began then has loaded, by its ModelConfig and LoadConfig; may take
    minutes. Raises UnknownIdentity."""
    kind = str(load.load_format)
    if kind == "dummy":
        return f"dummy, seed {model.seed}"
    if kind not in KNOWN_LOADERS:
        raise UnknownIdentity(f"load_format {kind}: not known how it loads")
    if elsewhere := getattr(model, "model_weights", ""):
        raise UnknownIdentity(f"the weights are loaded from {elsewhere}, not from files of this host")
    folder = folder_of(model, load, began)
    if kind == "pt":
        return "pt files " + weights_digest(folder, began, (".pt",))
    consolidated = kind == "mistral" or (kind == "auto" and folder.is_dir() and any(folder.glob(CONSOLIDATED)))
    return f"{'consolidated ' if consolidated else ''}files {weights_digest(folder, began)}"


def folder_of(model: Any, load: Any, began: float) -> Path:
    """Folder (or the one file) that a model was loaded from. Raises UnknownIdentity."""
    path = Path(model.model)
    if path.exists():
        return path
    if os.environ.get("VLLM_USE_MODELSCOPE", "").strip().lower() in ("1", "true"):
        raise UnknownIdentity(f"{model.model} is ModelScope's, whose cache is not known: name its folder as the model")
    commit = getattr(model.hf_config, "_commit_hash", None)
    return hub_snapshot(model.model, model.revision, load.download_dir, commit, began)


def weights_finder(vllm_config: Any) -> Callable[[], str]:
    """A function that finds out what weights the engine holds and what code computes with them, its draft's too; may
    take minutes and raises UnknownIdentity."""
    model, load, began = vllm_config.model_config, vllm_config.load_config, process_began()

    def find() -> str:
        if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
            raise UnknownIdentity("calculate_kv_scales: the scales depend on what was computed first")
        if callable(model.hf_overrides):
            raise UnknownIdentity("hf_overrides is a function")
        loaded = [(model, load)]
        if (draft := _draft_model(vllm_config)) is not None:
            loaded.append((draft, getattr(vllm_config.speculative_config, "draft_load_config", None) or load))
        return ", draft ".join(", ".join(_words_of(one, how, began)) for one, how in loaded)

    return find


def _words_of(model: Any, load: Any, began: float) -> list[str]:
    """Words for all that one model is loaded from. Raises UnknownIdentity."""
    folder = partial(folder_of, model, load, began)
    words = [weights(model, load, began), *files_beside_weights(model, folder, began)]
    words += [f"{name} {weights(other, load, began)}" for name, other in models_named_by(model)]
    return words + code_of(model, folder, began)


def _draft_model(vllm_config: Any) -> Any:
    """The draft's ModelConfig, where it has weights of its own and KV."""
    speculative = vllm_config.speculative_config
    if speculative is None or str(speculative.method) in WITHOUT_KV:
        return None
    draft = getattr(speculative, "draft_model_config", None)
    return None if draft is None or draft.model == vllm_config.model_config.model else draft


def _config_of(config: Any) -> Any:
    to_dict = getattr(config, "to_dict", None)
    return to_dict() if callable(to_dict) else str(config)


def engine_fields(vllm_config: Any, kv_cache_config: Any, version: str) -> Fields:
    """Fields known at construction: all but the weights. Raises ConfigurationError where the configuration lacks one
    of them."""
    try:
        return _engine_fields(vllm_config, kv_cache_config, version)
    except (AttributeError, KeyError, OSError, TypeError, ValueError, UnknownIdentity) as error:
        raise ConfigurationError(
            f"what this engine's KV depends on is not known: {error}; Cistern knows vLLM's configuration as of the "
            "versions in docs/vllm.md"
        ) from error


def _engine_fields(vllm_config: Any, kv_cache_config: Any, version: str) -> Fields:
    model, cache = vllm_config.model_config, vllm_config.cache_config
    parallel = vllm_config.parallel_config
    config = _config_of(model.hf_config)
    fields = [
        ("format", "vllm-2"),
        ("vllm", version),
        ("model_config", digest_of(config)),
        ("model_impl", str(getattr(model, "model_impl", ""))),
        ("quantization", str(model.quantization)),
        ("quantization_config", digest_of(getattr(model, "quantization_config", None))),
        ("dtype", str(model.dtype)),
        ("cache_dtype", _cache_dtype(cache.cache_dtype, model)),
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
        *(position_fields(model, config) if isinstance(config, dict) else ()),
        *_image_fields(getattr(model, "multimodal_config", None)),
        *_switch_fields(vllm_config),
    ]
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        fields.append((f"group{number}_spec", _spec_text(group.kv_cache_spec)))
        fields.append((f"group{number}_layers", digest_of(list(group.layer_names))))
    return Fields(tuple(fields))


def _cache_dtype(asked: str, model: Any) -> str:
    """The dtype of the cache, whether it was asked for or is the model's own; what is quantized has its own name."""
    name = str(model.dtype) if asked == "auto" else str(asked)
    return "fp8_e4m3" if name == "fp8" else name.removeprefix("torch.")


def _image_fields(images: Any) -> tuple[tuple[str, str], ...]:
    """What a model makes of an image beyond the image: vLLM's digest of one has a request's settings, not the
    engine's."""
    if images is None:
        return ()
    fields = [
        ("mm_processor", digest_of(getattr(images, "mm_processor_kwargs", None) or {})),
        ("mm_media_io", digest_of(getattr(images, "media_io_kwargs", None) or {})),
    ]
    if rate := getattr(images, "video_pruning_rate", None):
        fields.append(("video_pruning", f"{getattr(images, 'video_pruning_method', 'evs')} {float(rate):g}"))
    for name in ("mm_encoder_attn_dtype", "interleave_mm_strings", "mm_device_do_normalize"):
        if (value := getattr(images, name, None)) is not None:
            fields.append((name, str(value)))
    if scales := getattr(images, "mm_encoder_fp8_scale_path", None):
        try:
            fields.append(("mm_encoder_fp8_scales", file_digest(Path(scales))))
        except OSError as error:
            raise UnknownIdentity(f"mm_encoder_fp8_scale_path: {error}") from error
    return tuple(fields)


def _switch_fields(vllm_config: Any) -> tuple[tuple[str, str], ...]:
    """Switches that are not as vLLM has them by itself."""
    import vllm.envs as switches

    known = switches.environment_variables
    fields = []
    for name in SWITCHES:
        if os.environ.get(name) and name in known:
            value = known[name]()  # of a file's content, where vLLM takes it from one
            fields.append((name, _in_order(value)))
    for part, names in SETTINGS:
        config = getattr(vllm_config, part, None)
        for name in names:
            value = getattr(config, name, None)
            if value != getattr(type(config), name, None):
                fields.append((name, _in_order(value)))
    if more := getattr(vllm_config, "additional_config", None):  # of a platform that is no part of vLLM
        fields.append(("additional_config", digest_of(more) if isinstance(more, dict) else str(more.compute_hash())))
    return tuple(fields)


def _in_order(value: Any) -> str:
    """A setting's value, the same however it was put down."""
    if isinstance(value, dict):
        return digest_of(value)
    return " ".join(sorted(str(one) for one in value)) if isinstance(value, list) else str(value)


def _draft(vllm_config: Any) -> str:
    speculative = vllm_config.speculative_config
    if speculative is None or str(speculative.method) in WITHOUT_KV:
        return "none"
    words = [str(speculative.method)]
    draft = getattr(speculative, "draft_model_config", None)
    if draft is not None:
        config = _config_of(draft.hf_config)
        words += [digest_of(config), str(getattr(draft, "dtype", "")), str(getattr(draft, "quantization", None))]
        if (quantization := getattr(draft, "quantization_config", None)) is not None:
            words.append(digest_of(quantization))
        if (asked := getattr(speculative, "kv_cache_dtype", None)) is not None:
            words.append(f"cache {_cache_dtype(asked, draft)}")
        words += [value for _, value in (position_fields(draft, config) if isinstance(config, dict) else ())]
    return " ".join(words)


def _spec_text(spec: Any) -> str:
    """A group's specification: its kind and every field of it that a page's bytes depend on."""
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        values = {one.name: getattr(spec, one.name) for one in dataclasses.fields(spec)}
        values = {name: value for name, value in values.items() if name not in ARRANGEMENT}
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
