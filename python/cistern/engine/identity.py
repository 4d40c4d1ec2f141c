# SPDX-License-Identifier: Apache-2.0
"""Identity of KV: the list of names and values that makes a namespace.

The list has everything that a block's bytes depend on, and nothing else: engines that differ only in how they schedule
or compute share. A path or a name of a model is never identity; the weights themselves are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NOT_CONTENT = {"_name_or_path", "transformers_version", "_commit_hash", "name_or_path", "max_model_len"}


@dataclass(frozen=True)
class Fields:
    """A namespace's list, in the order of its making."""

    items: tuple[tuple[str, str], ...]

    def with_(self, *more: tuple[str, str]) -> Fields:
        return Fields(self.items + more)


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


def fresh_generation() -> str:
    """A name for weights that nobody else holds."""
    return os.urandom(16).hex()


def rank_fields(
    device: str, isa: Sequence[str], layouts: Sequence[Sequence[str]], identical_ranks: int
) -> tuple[tuple[str, str], ...]:
    """Facts of the ranks: device and its instruction set, and each rank's pages."""
    return (
        ("device", device),
        ("isa", isa[0] if len(set(isa)) == 1 else ",".join(isa)),
        ("identical_ranks", str(identical_ranks)),
        ("layout", digest_of([list(one) for one in layouts])),
    )
