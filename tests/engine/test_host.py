# SPDX-License-Identifier: Apache-2.0
"""Hosts that lack what an engine is used to, without an engine."""

from __future__ import annotations

import errno
import logging
import os
import threading
from functools import partial
from pathlib import Path

import pytest
from harness import WATCHDOG_S
from scheduler_side import until

from cistern.engine import beside as beside_module
from cistern.engine import cpus, digests
from cistern.engine import weights as weights_module
from cistern.engine.beside import Beside
from cistern.engine.files import UnknownIdentity, files_digest
from cistern.engine.weights import Weights


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


@pytest.mark.parametrize("why", [RuntimeError("can't start new thread"), MemoryError(), OSError(errno.EINVAL, "CPUs")])
def test_work_for_which_there_is_no_thread_fails_alone(monkeypatch: pytest.MonkeyPatch, why: Exception) -> None:
    """The engine's thread submits it, and would end with what it raised."""

    def start(self: threading.Thread) -> None:
        raise why

    beside = Beside("test")
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", start)
        assert beside.submit(0, lambda: 1).exception(WATCHDOG_S) is why
    assert beside.submit(0, lambda: 2).result(WATCHDOG_S) == 2
    beside.close()


def test_threads_beside_are_as_many_as_lanes_at_work_and_end_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside_module, "IDLE_S", WATCHDOG_S)
    go_on, begun = threading.Event(), [threading.Semaphore(0) for _ in range(3)]

    def hang(lane: int) -> threading.Thread:
        begun[lane].release()
        assert go_on.wait(WATCHDOG_S)
        return threading.current_thread()

    beside = Beside("test", most=2)
    hung = [beside.submit(lane, partial(hang, lane)) for lane in (0, 0, 1, 2)]
    assert begun[0].acquire(timeout=WATCHDOG_S) and begun[1].acquire(timeout=WATCHDOG_S)
    assert [one.running() for one in hung] == [True, False, True, False]
    go_on.set()
    threads = {one.result(WATCHDOG_S) for one in hung}
    assert len(threads) == 2
    until(lambda: beside._idle == 2)
    assert beside.submit(3, threading.current_thread).result(WATCHDOG_S) in threads
    beside.close()
    monkeypatch.setattr(beside_module, "IDLE_S", 0)
    short = Beside("test")
    threads.add(short.submit(0, threading.current_thread).result(WATCHDOG_S))
    for thread in threads:
        thread.join(WATCHDOG_S)
        assert not thread.is_alive()
    assert short.submit(0, lambda: 1).result(WATCHDOG_S) == 1


def test_thread_is_started_though_the_cpus_of_its_starter_are_taken_meanwhile(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(pid: int, mask: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(cpus, "given", lambda: os.sched_getaffinity(0) | {5000})
    monkeypatch.setattr(os, "sched_setaffinity", taken)
    done = threading.Event()
    with cpus.unbound():
        threading.Thread(target=done.set).start()
    assert done.wait(WATCHDOG_S)


@pytest.mark.parametrize("beside", [False, True])
def test_engine_that_is_not_bound_gets_the_cpus_that_its_container_is_given_later(
    monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """The kernel keeps to what a thread has set, and so do all that it starts."""
    monkeypatch.setattr(cpus, "given", lambda: os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: pytest.fail("it is bound from now on"))
    with cpus.unbound(beside):
        pass


@pytest.mark.parametrize("number", [errno.ESTALE, errno.EMFILE, errno.EIO])
def test_weights_that_could_not_be_read_for_a_moment_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(weights_module, "PAUSES_S", (0.0, 0.0))
    (tmp_path / "config.json").write_text("{}")
    failures = [OSError(number, os.strerror(number))] * 2

    def read(path: Path) -> str:
        if failures:
            raise failures.pop()
        return path.name

    monkeypatch.setattr("cistern.engine.files.file_digest", read)
    held = Weights(lambda: files_digest(tmp_path, [tmp_path / "config.json"]), logging.getLogger("test.cistern"))
    assert held.wait(WATCHDOG_S) and not failures and not str(held.value).startswith("unknown")


@pytest.mark.parametrize("cause", [FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT)), None])
def test_weights_that_are_not_there_are_looked_for_once(cause: OSError | None) -> None:
    looks: list[int] = []

    def find() -> str:
        looks.append(1)
        raise UnknownIdentity("no weights there") from cause

    held = Weights(find, logging.getLogger("test.cistern"))
    assert held.wait(WATCHDOG_S) and len(looks) == 1 and str(held.value).startswith("unknown")
