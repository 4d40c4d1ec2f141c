# SPDX-License-Identifier: Apache-2.0
"""Identity of LoRA adapters."""

from __future__ import annotations

from pathlib import Path

from .files import UnknownIdentity, folder_state, weights_digest
from .request import Adapter


class Adapters:
    """Files of the adapters that the engine holds. The engine knows an adapter by its number alone, and loads it again
    only when told to: an adapter whose place or files changed since has no known identity, since either of the two may
    be loaded."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[str, object]] = {}

    def digest(self, adapter: Adapter) -> str:
        """Raises UnknownIdentity."""
        folder = Path(adapter.path)
        if not folder.exists():
            raise UnknownIdentity(f"adapter {adapter.name}: no files at {adapter.path}")
        state = (adapter.path, folder_state(folder))
        known = self._known.get(adapter.number)
        if known is None or (adapter.reload and known[1] != state):
            known = (weights_digest(folder), state)
            if folder_state(folder) != state[1]:
                raise UnknownIdentity(f"adapter {adapter.name}: its files change")
            self._known[adapter.number] = known
        if known[1] != state:
            raise UnknownIdentity(
                f"adapter {adapter.name}: its place or its files changed since the engine first used number "
                f"{adapter.number}"
            )
        return known[0]
