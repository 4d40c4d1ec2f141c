# SPDX-License-Identifier: Apache-2.0
"""Code and settings that make a model's KV and are no part of vLLM: a plugin's classes, those of transformers, a
repository's own, and what is made of an image before the model sees it. vLLM's own code is told by its version."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..engine.files import UnknownIdentity, files_digest

PROCESSORS = ("*processor_config.json", "tekken.json")
"""Files of a model's folder that say what is made of an image, a video or a sound."""


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
