# SPDX-License-Identifier: Apache-2.0
"""Hosts that lack what an engine is used to, without an engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from cistern.engine import digests


def test_file_of_an_image_that_has_no_change_times_is_read_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next image at its place may have other weights of the same device, inode, size and constant time."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    built = 1_700_000_000
    monkeypatch.setattr(digests, "state_of", lambda path: (7, 12, path.stat().st_size, built * 1_000_000_000))
    one, other = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"one")
    other.write_bytes(b"two")
    assert digests.file_digest(one) != digests.file_digest(other)
    assert not digests.digests_folder().exists()
