# SPDX-License-Identifier: Apache-2.0
"""Load or compute: which blocks of a prompt to load, which to compute, and in which order, so that the first token
comes soonest. A decision on plain values, in C++ (src/policy/load.h); the store knows nothing of prefill.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from . import _native


class LoadRun(NamedTuple):
    """Neighbouring blocks of the prompt on one source."""

    blocks: int
    source: int
    """Its place in the sources."""


class LoadSource(NamedTuple):
    """Where blocks are read from. Sources work at the same time, each on one block after another."""

    latency_us: float
    """Until the first block begins to arrive."""
    queued_us: float
    """That it works for others first."""
    us_per_block: float
    """At the bandwidth that it reaches."""


class Prefill(NamedTuple):
    """Tokens [a, b) of a prompt take us_per_token * (b - a) + us_per_square * (b**2 - a**2)."""

    us_per_token: float
    us_per_square: float = 0.0
    block_tokens: int = 16
    tail_tokens: int = 0
    """Behind the runs: computed in any case, when all before is there."""
    load_overhead_us: float = 0.0
    """That loading anything costs beside the transfer."""
    loads_behind: bool = False
    """The engine computes while blocks behind are being loaded. Otherwise it loads first, then computes the rest."""


class LoadStretch(NamedTuple):
    """Blocks [first, first + blocks) of the prompt."""

    first: int
    blocks: int
    source: int
    from_back: bool
    """Last block first: nothing behind it waits to be computed."""


class LoadPlan(NamedTuple):
    """What to load; the rest of the prompt is computed."""

    loads: tuple[LoadStretch, ...]
    """By position; a source takes its own in this order. Empty: compute all."""
    first_token_us: float
    """Expected."""
    compute_us: float
    """Of computing everything; never less than first_token_us."""
    worth_us: float
    """Later than this, computing everything from the start would have been sooner. 0 without loads."""


def plan_load(runs: Sequence[LoadRun], sources: Sequence[LoadSource], prefill: Prefill) -> LoadPlan:
    """The soonest plan. A load that would end later than computing what it replaces is not in it. Neighbouring runs of
    one source should be one. Raises Invalid for a source that is not there and for times that cannot be."""
    loads, first_token_us, compute_us, worth_us = _native.plan_load(runs, sources, prefill)
    return LoadPlan(tuple(LoadStretch(*one) for one in loads), first_token_us, compute_us, worth_us)
