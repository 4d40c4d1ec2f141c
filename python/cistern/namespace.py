# SPDX-License-Identifier: Apache-2.0
"""Namespaces: who may share with whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Group:
    """A kind of KV in a namespace, for example all full-attention layers."""

    name: str
    """Printable, 1 to 64 bytes."""
    reach: Literal["full", "window"] = "full"
    """Tokens before a position for which its KV is needed: all, or the last `window_tokens`."""
    window_tokens: int = 0
    """For reach="window": at least 1. Not part of the identity."""
    part_bytes: Sequence[int] = ()
    """Bytes of each part (one rank's share) of a block, in rank order; at most 64. Empty: one part, of the
    length that its write gives."""


@dataclass(frozen=True)
class NamespaceSpec:
    """A namespace is identified by its fields, its groups and their part sizes; compared field by field."""

    fields: Mapping[str, str]
    """Printable (name, value): what weights, dtype, layout, hash scheme ... At most 256, 64 KiB in all."""
    groups: Sequence[Group] = field(default_factory=lambda: (Group("all"),))
    """1 to 8."""
    name: str = ""
    """Optional: stands for one durably stored list; the same name with another list raises Mismatch. Never
    identity."""
    block_tokens: int = 1
    """Tokens in a block; turns a window's tokens into blocks."""
    trusted_keys: bool = False
    """Says that whoever writes is trusted not to make two contents with one key: allows keys under 16 bytes
    and hashes that are not cryptographic. Part of the identity."""
    flash_write: str = ""
    """When a block is written to flash: "through" (as soon as it is put), "back" (when it is cold), "selective" or
    "selective:N" (after its N-th use). Empty: as the namespace's users said last, or else as the node has it. Not part
    of the identity; it holds from then on for whoever uses the namespace, also after a restart."""
    flash_admit: str = ""
    """Blocks that are written: "worth" (likely enough to be used while they lie there), "all", or
    "second-hit" (used after they were put); otherwise as flash_write."""
    mesh: str = ""
    """Whether other nodes of a cell find and read its blocks: "on", or "off", which keeps them to this node; drops
    reach every node all the same. Empty: as its users of this node said last, or else "on". Not part of the
    identity."""
    strict: bool = False
    """Read only while the node's membership of its cell stands, so that no read that begins after a drop was
    acknowledged hits, on any node; a node that cannot reach its cell answers with misses after 10 seconds. Part of
    the identity."""
    copies: int = 0
    """How many nodes of a cell are to have a block that is put here, this one too: 1 to 8. 0: as its users of this node
    said last, or else as the node has it. Not part of the identity."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """What people call what is in it, such as the name under which a model is served: drops, quotas, switches and lists
    look for NAME=VALUE here as they do among `fields`. At most 8, printable, name and value of 127 bytes together.
    Empty: as its users said last; else all of them take the place of those of before. Never identity: two namespaces
    with the same labels share nothing."""
