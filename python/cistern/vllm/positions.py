# SPDX-License-Identifier: Apache-2.0
"""Dependence of a model's positions on `max_model_len`: what vLLM's rotary embeddings and models take from it.

decisions/0005 lists every place of vLLM that reads it, with a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..engine.files import UnknownIdentity

TABLES_BY_LENGTH = ("MiniMaxM2", "Plamo3", "CohereCompass", "EmbeddingGemma2", "Nomic")
"""Architectures, by how their names begin, whose table of rotations has `max_model_len` positions."""
OF_A_TABLE = ("dynamic", "longrope", "su")
"""Scalings whose rotations depend on how many positions the table has."""
TUNED_ABOVE = 32768
"""Llama 4: a longer model's queries are scaled by their position, unless its generation configuration says."""


def position_fields(model: Any, config: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Fields of a vLLM ModelConfig beyond its configuration as a dictionary; none where its length does not matter.
    Raises UnknownIdentity."""
    words = []
    architectures = [str(one) for one in config.get("architectures") or ()]
    for rope, outer in _ropes(config):
        kind = rope.get("rope_type") or rope.get("type")
        if kind in ("longrope", "su"):
            trained = rope.get("original_max_position_embeddings", outer.get("original_max_position_embeddings"))
            if not isinstance(trained, int):
                raise UnknownIdentity(
                    "the model's configuration has longrope without original_max_position_embeddings: by it the "
                    "factors are chosen; name it with --hf-overrides"
                )
            words.append("long factors" if model.max_model_len > trained else "short factors")
        if kind in OF_A_TABLE and any(one.startswith(TABLES_BY_LENGTH) for one in architectures):
            words.append(f"table of {model.max_model_len}")
        if kind in OF_A_TABLE and str(getattr(model, "model_impl", "")) == "transformers":
            raise UnknownIdentity(f"model_impl transformers chooses {kind}'s rotations by the longest of a batch")
    if any("llama4" in str(one) for one in _values(config, "model_type")):
        chosen = {**(model.try_get_generation_config() or {}), **(model.override_generation_config or {})}
        words.append(f"tuned {chosen.get('attn_temperature_tuning', model.max_model_len > TUNED_ABOVE)}")
    return (("positions", ", ".join(dict.fromkeys(words))),) if words else ()


def _values(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        if key in value:
            yield value[key]
        for one in value.values():
            yield from _values(one, key)


def _ropes(config: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each set of rotary parameters in a configuration (a model has several where its layers differ, or its parts),
    with the configuration that has it."""

    def within(value: Any, outer: dict[str, Any]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        if isinstance(value, dict):
            if isinstance(value.get("rope_type") or value.get("type"), str):
                yield value, outer
            for one in value.values():
                yield from within(one, outer)

    for key, value in config.items():
        if key in ("rope_parameters", "rope_scaling"):
            yield from within(value, config)
        elif isinstance(value, dict):
            yield from _ropes(value)
