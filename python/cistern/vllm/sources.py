# SPDX-License-Identifier: Apache-2.0
"""What makes a model's KV beside its weights and vLLM's own code, which its version tells: a plugin's classes, those of
transformers, a repository's own, what is made of an image before the model sees it, and files that a class loads
itself."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ..engine.files import UnknownIdentity, files_digest

PROCESSORS = ("*processor_config.json", "tekken.json")
"""Files of a model's folder that say what is made of an image, a video or a sound."""

ELSEWHERE = re.compile(
    r"\b(secondary_weights|allow_patterns_overrides|get_hf_file_bytes|load_file|safe_open|hf_hub_download|"
    r"snapshot_download)\b|\btorch\.load\(|\bsubfolder="
)
"""What a class's code has where it loads more than the weights at the top of its model's folder."""
OWN_CLASSES = "vllm.model_executor.models."
BESIDE_WEIGHTS: dict[str, tuple[str, ...]] = {
    "kimi_audio": ("whisper-large-v3/*",),
    "mimo_audio": ("audio_tokenizer/*",),
    "mimo_v2_omni": ("audio_tokenizer/*",),
    "funaudiochat": ("speech_tokenizer/*",),
    "jina": ("adapters/*/*",),
    "cosmos3": ("[tv]*er/*.safetensors",),
    "cosmos3_edge": ("[tv]*er/*.safetensors",),
    **dict.fromkeys(
        ("qwen3_dflash", "qwen3_dflash2", "laguna_dflash", "qwen3_dspark", "gemma4_dspark", "lilicorr"),
        ("mask_embedding.pt",),
    ),
    "ultravox": (),  # whole models that its configuration names
    "clef_omni": (),  # a file at the top of the folder, among the weights
    "roberta": (),  # heads behind all KV
}
"""Files below a model's folder that vLLM's own classes load beside its weights, by their modules."""


def models_named_by(model: Any) -> list[tuple[str, Any]]:
    """Other models that a ModelConfig's class takes parts of, as far as they say what is loaded."""
    if _class_of(model)[0] != f"{OWN_CLASSES}ultravox":
        return []
    config = model.hf_config
    parts = (("text_model_id", "wrapped_model_config"), ("audio_model_id", "audio_config"))
    return [
        (name, SimpleNamespace(model=place, revision=None, seed=model.seed, hf_config=getattr(config, part, None)))
        for name, part in parts if (place := getattr(config, name, None)) is not None
    ]


def files_beside_weights(model: Any, folder: Callable[[], Path], began: float) -> list[str]:
    """Words for files that a ModelConfig's class loads beside the weights; none where it loads no others. Raises
    UnknownIdentity where it does and is none whose files are known, and as code_of() does."""
    name, class_ = _class_of(model)
    patterns = BESIDE_WEIGHTS.get(name.removeprefix(OWN_CLASSES)) if name.startswith(OWN_CLASSES) else None
    if patterns is None and (found := ELSEWHERE.search(_code(name))):
        raise UnknownIdentity(f"{name}:{class_} loads files beside its weights ({found[0]}): not known which")
    if not patterns:
        return []
    place = folder()
    files = sorted(path for pattern in patterns for path in place.glob(pattern) if path.is_file())
    return [f"beside {files_digest(place, files, began)}"] if files else []


def _code(name: str) -> str:
    """Text of a module, which need not be imported for it, or nothing."""
    try:
        spec = importlib.util.find_spec(name)
        return Path(spec.origin).read_text(encoding="utf-8") if spec is not None and spec.origin else ""
    except (ImportError, ValueError, OSError):
        return ""


def code_of(model: Any, folder: Callable[[], Path], began: float) -> list[str]:
    """Words for what a ModelConfig's KV is made by beside vLLM; none where that is all. `folder`: where the model was
    loaded from. Raises UnknownIdentity, also for what changed after `began`, in seconds since the epoch."""
    words = []
    name, class_ = _class_of(model)
    if name.partition(".")[0] != "vllm":
        words.append(f"class {name}:{class_} {_package_digest(name.partition('.')[0], began)}")
    images = getattr(model, "multimodal_config", None) is not None
    by_transformers = name.startswith("vllm.model_executor.models.transformers")
    if by_transformers or images:
        words.append(f"transformers {importlib.metadata.version('transformers')}")
    patterns: tuple[str, ...] = PROCESSORS if images else ()
    if (by_transformers or images) and getattr(model, "trust_remote_code", False):
        words += _elsewhere(model)
        patterns += ("*.py",)
    if patterns:
        place = folder()
        found = sorted({path for pattern in patterns for path in (place.glob(pattern) if place.is_dir() else ())})
        words.append(f"processors {files_digest(place, found, began)}")
    return words


def _class_of(model: Any) -> tuple[str, str]:
    """Module and name of the class that vLLM has for a model: a plugin may have put another one in its own's place."""
    entry = model.registry.models.get(model.architecture)
    of = getattr(entry, "model_cls", None)
    name, class_ = (of.__module__, of.__name__) if of else (
        getattr(entry, "module_name", ""), getattr(entry, "class_name", "")
    )
    if not name:
        raise UnknownIdentity(f"{model.architecture}: not known which class computes it")
    return name, class_


def _package_digest(package: str, began: float) -> str:
    """Digest of all code of a package, which need not be imported for it."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or spec.origin is None:
        raise UnknownIdentity(f"the model's class is of {package}, whose files are not known")
    origin = Path(spec.origin)
    if not spec.submodule_search_locations:
        return files_digest(origin.parent, [origin], began)
    found = [path for pattern in ("*.py", "*.so") for path in origin.parent.rglob(pattern)]
    return files_digest(origin.parent, sorted(found), began)


def _elsewhere(model: Any) -> list[str]:
    """The commit of code that a model takes from another repository."""
    places = {
        place for of in (getattr(model.hf_config, "auto_map", None) or {}).values()
        for place in (of if isinstance(of, (list, tuple)) else [of]) if place and "--" in place
    }
    commit = getattr(model, "code_revision", None) or ""
    if places and not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise UnknownIdentity(
            f"the model's code is of another repository ({min(places)}), whose branches move: give a commit as "
            "--code-revision"
        )
    return [f"code {commit}"] if places else []
