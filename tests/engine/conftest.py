# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import model as models  # noqa: E402
from harness import Node  # noqa: E402
from scheduler_side import Clock, OneConnection  # noqa: E402

# Files with scenarios that take minutes; `-m "not minutes"` leaves them out.
MINUTES = {f"test_{name}.py" for name in (
    "adapters", "failures", "flash", "host", "hybrid", "identity", "parallel", "parameters", "races", "server")}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "minutes: engines that start anew, or several beside each other")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name in MINUTES:
            item.add_marker(pytest.mark.minutes)


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of this run's engines: digests of its models' files are nobody else's. What vLLM keeps of itself takes
    long to find out, and stays where it is."""
    with pytest.MonkeyPatch.context() as patched:
        folder = tmp_path_factory.mktemp("cache")
        if "VLLM_CACHE_ROOT" not in os.environ:
            users = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
            patched.setenv("VLLM_CACHE_ROOT", f"{users}/vllm")
        patched.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write(tmp_path_factory.mktemp("models") / "small", {**models.LLAMA, **models.SMALL})


@pytest.fixture(scope="session")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.write(tmp_path_factory.mktemp("models") / "hybrid", models.GEMMA)


@pytest.fixture
def node() -> Iterator[Node]:
    with Node() as started:
        yield started


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def connection(monkeypatch: pytest.MonkeyPatch) -> OneConnection:
    """In place of the coordinator's own."""
    one = OneConnection()
    monkeypatch.setattr("cistern.engine.coordinator.Connection", lambda logger, starter=None: one)
    return one
