# SPDX-License-Identifier: Apache-2.0
"""The engine's KV cache groups, as far as Cistern knows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import versions


class ConfigurationError(ValueError):
    """The engine cannot run with this connector as configured; the message says what to change."""


@dataclass(frozen=True)
class Group:
    name: str
    window_tokens: int
    """How far back its KV is needed; 0: to the begin."""
    pages_per_block: int
    """Engine blocks of this group in one block of the store."""


def read_groups(vllm_config: Any, kv_cache_config: Any, block_tokens: int) -> list[Group]:
    """Raises ConfigurationError for a kind of attention whose KV this connector does not know."""
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec

    groups = []
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = group.kv_cache_spec
        inner = versions.layer_specs(spec)
        windows = set()
        for one in (inner or {"": spec}).values():
            kind = type(one)
            if kind is SlidingWindowSpec:
                windows.add(int(one.sliding_window))
            elif kind in (FullAttentionSpec, MLAAttentionSpec) and getattr(one, "attention_chunk_size", None) is None:
                windows.add(0)
            else:
                raise ConfigurationError(
                    f"KV cache group {number} ({group.layer_names[0]} ...) is a {kind.__name__}: Cistern knows full "
                    "and sliding-window attention, so this model runs without it"
                )
        if getattr(group, "enable_kv_transfer", True) is False or getattr(spec, "prefix_replay_tokens", None):
            raise ConfigurationError(f"KV cache group {number} is not kept in a way that Cistern knows")
        tokens = versions.group_tokens(spec, vllm_config)
        if block_tokens % tokens:
            raise ConfigurationError(f"KV cache group {number}: {tokens} tokens a block do not divide {block_tokens}")
        window = 0 if 0 in windows else max(windows)
        groups.append(Group(f"group{number}", window, block_tokens // tokens))
    if not groups:
        raise ConfigurationError("the model has no KV cache")
    if all(group.window_tokens for group in groups):
        raise ConfigurationError("all of the model's attention is sliding-window: Cistern needs one full group")
    return groups
