# SPDX-License-Identifier: Apache-2.0
"""The scheduler side alone, of an engine with a group of sliding windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from scheduler_side import FACTS, SIZE, OneConnection, OneRequest, join

from cistern import MatchResult
from cistern.engine import options
from cistern.engine.coordinator import Coordinator
from cistern.engine.facts import GroupFacts, host
from cistern.engine.identity import Fields
from cistern.engine.orders import RankFacts, RankReport

WINDOW, BLOCKS = 2 * SIZE, 8


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("more_tokens", [0, 1])
def test_match_vouches_for_every_page_of_a_window_that_its_load_fills(
    connection: OneConnection, drafts: bool, more_tokens: int
) -> None:
    """The store keeps of a window what is needed behind the end of a chain, and evicts what lies before. A load that
    ends sooner, since a token is left to compute, needs as much behind its own end."""
    groups = (*FACTS.groups, GroupFacts("window", WINDOW, 1, ("other",), 64))
    chosen = options.read({"socket": "/nowhere/socket", "start_node": False})
    facts = replace(FACTS, groups=groups, drafts=drafts)
    side = Coordinator(chosen, facts, lambda: Fields((("test", "windows"),)), lambda: (("hash", "sha256"),))
    side.handle_reports([RankReport(0, 0, facts=RankFacts(0, host(), "cpu", "", (64, 64), ("x", "y")))], set())
    connection.store.blocks = BLOCKS
    request: Any = OneRequest("request", blocks=BLOCKS)
    request.tokens = BLOCKS * SIZE + more_tokens
    side.add_request(request, options.RequestParameters())
    join(side)
    tokens, beside = side.match("request", 0)
    assert tokens is not None and beside and BLOCKS * SIZE - tokens <= 2 * SIZE
    assert connection.spec is not None
    vouched_from = BLOCKS - -(-connection.spec.groups[1].window_tokens // SIZE)
    first_page = (tokens - WINDOW + 1) // SIZE  # the engine has pages from here on
    assert vouched_from <= first_page
    # What is held meanwhile is the chain that matched: a shorter one lacks what was evicted before its window.
    held: list[int] = []
    connection.store.match = lambda namespace, chain, **more: held.append(len(chain)) or MatchResult(0, (), None)  # type: ignore[method-assign,func-returns-value]
    pages = tuple([*range(1, 1 + tokens // SIZE)] for _ in groups)
    side.begin_load("request", pages, tokens)
    assert connection.session is not None
    for work in connection.work:
        work(connection.session)
    assert held == [BLOCKS]
