# SPDX-License-Identifier: Apache-2.0
"""A session with the node, and the specification that each of an engine's processes opens it by."""

from __future__ import annotations

from dataclasses import dataclass, field

from .. import Group, Namespace, NamespaceSpec, Store


@dataclass(frozen=True)
class GroupShape:
    name: str
    reach: str
    window_tokens: int
    part_bytes: tuple[int, ...]


@dataclass(frozen=True)
class SessionSpec:
    """Specification of a session: the node, the tenant, the owner, the namespaces. A higher number replaces a lower."""

    number: int
    socket: str
    """Empty: the default, which each connect looks for."""
    tenant: str
    owner: bytes | None
    """None: become an owner."""
    fields: tuple[tuple[tuple[str, str], ...], ...]
    """One list for each namespace, by its number: the base model first, then adapters."""
    groups: tuple[GroupShape, ...]
    block_tokens: int
    trusted_keys: bool
    flash_write: str
    flash_admit: str
    mesh: str = ""
    strict: bool = False
    node_user: str = ""
    engine_name: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    """Of each namespace."""

    def namespace_spec(self, number: int) -> NamespaceSpec:
        return NamespaceSpec(
            fields=dict(self.fields[number]),
            groups=tuple(
                Group(one.name, "window" if one.reach == "window" else "full", one.window_tokens, one.part_bytes)
                for one in self.groups
            ),
            block_tokens=self.block_tokens,
            trusted_keys=self.trusted_keys,
            flash_write=self.flash_write,
            flash_admit=self.flash_admit,
            mesh=self.mesh,
            strict=self.strict,
            labels=dict(self.labels),
        )


@dataclass(frozen=True)
class Session:
    """A session that stands."""

    spec: SessionSpec
    store: Store
    namespaces: list[Namespace] = field(default_factory=list)
    connects: int = 0
    """Number of times that this process has connected."""
