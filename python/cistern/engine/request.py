# SPDX-License-Identifier: Apache-2.0
"""An engine's own objects, as the scheduler side sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Pages = tuple[Sequence[int], ...]
"""Engine pages of one request: a list for each group, from token 0 on."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter as a request names it."""

    name: str
    number: int
    path: str
    reload: bool
    """This request makes the engine load the adapter again."""
    form: str = ""
    """How the engine takes its files, where a request says so."""
    cached_by: str = field(default="", compare=False)
    """What of it the engine's own prefix cache finds blocks by, where that is not the name alone."""


class Request(Protocol):
    """A view of the engine's record of a request; every number is as of now."""

    @property
    def id(self) -> str: ...
    @property
    def prompt_tokens(self) -> int: ...
    @property
    def tokens(self) -> int:
        """Tokens of prompt and answer that are known."""
        ...

    @property
    def computed_tokens(self) -> int: ...
    @property
    def placeholder_tokens(self) -> int:
        """Tokens that count as computed, but that no step has confirmed: drafts, and steps in flight."""
        ...

    @property
    def token_ids(self) -> Sequence[int]: ...
    @property
    def hashes(self) -> Sequence[bytes]:
        """The engine's chained hashes, one every `hash_tokens` tokens."""
        ...

    @property
    def adapter(self) -> Adapter | None: ...
    @property
    def content_hashed(self) -> bool:
        """Whether its hashes stand for content alone, its images included."""
        ...

    def hashed_beside(self, first: int, last: int) -> tuple[Any, ...] | None:
        """What the hash of the block of these tokens is of beside the tokens, as the engine's events tell it: an
        adapter, images, a salt. None: nothing, or the engine does not say."""
        ...

    @property
    def skips_cache(self) -> bool:
        """Whether the engine wants it computed whatever is known."""
        ...


class PagePool(Protocol):
    """The engine's pages: which a request has, and how their reuse is held back."""

    def pages_of(self, request_id: str) -> Pages: ...
    def reference(self, pages: Sequence[int]) -> None:
        """Keeps these pages from reuse, once for each time that they are named."""
        ...

    def used(self) -> int:
        """Pages that cannot be reused now, whoever keeps them from it."""
        ...

    def release(self, pages: Sequence[int]) -> None:
        """Ends as many references; pages that come first are reused first."""
        ...
