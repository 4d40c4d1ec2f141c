# SPDX-License-Identifier: Apache-2.0
"""Adapters' KV in an engine to which anything happens."""

from __future__ import annotations

import adapter_storm
import pytest


@pytest.mark.parametrize("first", range(1, 1001, 250))
def test_no_block_is_shown_or_loaded_as_another_adapters(first: int) -> None:
    outcomes = [adapter_storm.run(seed) for seed in range(first, first + 250)]
    broken = [f"adapter_storm.py {one.seed} 1: {one.broken}" for one in outcomes if one.broken]
    assert not broken
    assert sum(one.saved for one in outcomes) > 250 and sum(one.hits for one in outcomes) > 50
