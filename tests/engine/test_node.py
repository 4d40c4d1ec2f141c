# SPDX-License-Identifier: Apache-2.0
"""A node that an engine starts: what it is told, what is checked beforehand, and a host with little /dev/shm."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from harness import small_tmpfs
from scheduler_side import until

from cistern import Busy, IoError, cisternd_path
from cistern.engine import node, options
from cistern.engine.facts import ConfigurationError
from cistern.engine.options import WrongOption


def test_node_options_passed_as_flags() -> None:
    chosen = options.read({
        "socket": "/tmp/s", "linger_s": 0,
        "node_options": {"flash": ["/a:1GiB", "/b:2GiB"], "movers": 4, "discard_foreign": True, "loop": "epoll"},
    })
    assert node.command(chosen, node.socket_path(chosen))[5:] == [
        "--flash", "/a:1GiB", "--flash", "/b:2GiB", "--movers", "4", "--discard-foreign", "--loop", "epoll"
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("flash", "is not a mapping"),
        ({"memory": "1GiB"}, "give it as memory"),
        ({"linger": "1s"}, "give it as linger_s"),
        ({"--flash": "/a:1GiB"}, "no name of a setting"),
        ({"flash": {"path": "/a"}}, "is not a text"),
    ],
)
def test_wrong_node_options_named(given: object, says: str) -> None:
    with pytest.raises(WrongOption, match=says):
        options.read({"node_options": given})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"memory": "900TiB"}, "above what"),
        ({"node_options": {"flash": ["/no/such/device"]}}, "/no/such/device"),
        ({"node_options": {"flush": ["/a:1GiB"]}}, "flush"),
        ({"node_options": {"config": "/no/such.toml"}}, "/no/such.toml"),
    ],
)
def test_settings_checked_before_anything_is_loaded(tmp_path: Path, given: dict[str, object], says: str) -> None:
    pytest.importorskip("vllm")
    from cistern.vllm.connector import CisternConnector

    extra = {"socket": str(tmp_path / "socket"), "memory_dir": str(tmp_path), **given}
    with pytest.raises(ConfigurationError, match=says):
        CisternConnector.requires_piecewise_for_cudagraph(extra)
    good = {"socket": str(tmp_path / "socket"), "memory": "64MiB", "node_options": {"flash": [f"{tmp_path}:1GiB"]}}
    assert CisternConnector.requires_piecewise_for_cudagraph(good) is False
    assert not list(tmp_path.glob("socket*"))  # nothing was started


def in_small_tmpfs(folder: Path, size: str, words: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*small_tmpfs(folder, size), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_node_that_ends_before_it_answers_is_not_started_over_and_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    monkeypatch.setattr(node, "command", lambda *given: ["sh", "-c", f"echo one >>{starts}; echo no memory; false"])
    starter = node.NodeStarter(options.read({"socket": str(tmp_path / "socket")}))

    def started() -> int:
        starter.start()
        while starter._runs():
            os.sched_yield()
        return len(starts.read_text().splitlines())

    assert starter.failed() == ""
    assert started() == 1
    assert "the node ended: no memory (log: " in starter.failed()
    assert started() == 1
    starter.connected()  # one that has answered is needed, and could be started
    assert started() == 2


def test_end_of_a_long_log_alone_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "command", lambda *given: ["true"])
    starter = node.NodeStarter(options.read({"socket": str(tmp_path / "socket")}))
    starter.start()
    while starter._runs():
        os.sched_yield()
    with (tmp_path / "socket.log").open("rb+") as log:
        log.seek(1 << 40)  # more than any host has memory for
        log.write(b"\nout of memory\n")
    assert "the node ended: out of memory (log: " in starter.failed()


def test_long_log_of_a_node_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lies in memory, and its node runs for months, also without the engine that has started it."""
    monkeypatch.setattr(node, "LOG_BYTES", 20)
    log, former, go = tmp_path / "socket.log", tmp_path / "socket.log.1", tmp_path / "go"
    os.mkfifo(go)
    log.write_text("what a node of long ago has said\n")
    says = f"echo what this one says at first; read go <{go}; echo later; exec sleep 1000"
    monkeypatch.setattr(node, "command", lambda *given: ["sh", "-c", says])
    chosen = options.read({"socket": str(tmp_path / "socket")})
    starter = node.NodeStarter(chosen)
    starter.start()
    assert former.read_text() == "what a node of long ago has said\n"
    try:
        until(lambda: log.read_text() == "what this one says at first\n")
        node.NodeStarter(chosen).keep_log_short()
        assert (log.read_text(), former.read_text()) == ("", "what this one says at first\n")
        go.write_text("go\n")
        until(lambda: log.read_text() == "later\n")
    finally:
        os.kill(int((tmp_path / "socket.lock").read_text()), signal.SIGKILL)
    while starter._runs():
        os.sched_yield()
    log.write_text("another program's, which has a file of that name\n")
    node.NodeStarter(chosen).keep_log_short()
    assert log.read_text().startswith("another")


def test_log_of_a_node_stays_short_though_another_was_started_in_vain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the engine that came behind the one which started it, before it listened."""
    monkeypatch.setattr(node, "LOG_BYTES", 20)
    log, chosen = tmp_path / "socket.log", options.read({"socket": str(tmp_path / "socket")})
    says = "echo what this one says at first; exec sleep 1000"
    monkeypatch.setattr(node, "command", lambda *given: ["sh", "-c", says])
    first, second = node.NodeStarter(chosen), node.NodeStarter(chosen)
    first.start()
    assert first._process is not None
    pid = first._process._pid
    try:
        until(lambda: log.read_text() == "what this one says at first\n")
        first._release()  # as the engine ends
        monkeypatch.setattr(node, "command", lambda *given: ["sh", "-c", "echo it is held"])
        second.start()
        until(lambda: not second._runs())
        assert log.read_text() == "what this one says at first\nit is held\n"
        second.keep_log_short()
        assert log.read_text() == ""
    finally:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not first._runs())


def test_node_that_cannot_be_executed_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "command", lambda *given: [str(tmp_path / "nothing")])
    starter = node.NodeStarter(options.read({"socket": str(tmp_path / "socket")}))
    starter.start()
    while starter._runs():
        os.sched_yield()
    assert "nothing: not found" in starter.failed()


def test_child_that_an_engine_forks_keeps_no_other_from_starting_a_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "command", lambda *given: ["true"])
    starter = node.NodeStarter(options.read({"socket": str(tmp_path / "socket")}))
    starter.start()
    assert starter._lock is not None
    child = os.dup(starter._lock)  # what a forked child has
    starter.connected()
    with (tmp_path / "socket.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(child)


@pytest.mark.parametrize("refusal", [Busy("32 sessions are open"), IoError("no descriptor is left")])
@pytest.mark.parametrize("starts", [False, True])
def test_required_node_that_has_no_room_for_a_moment_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception, starts: bool
) -> None:
    refusals = [refusal, refusal]

    def connect(*given: object, **more: object) -> object:
        if refusals:
            raise refusals.pop()
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setattr(node.Store, "connect", connect)
    monkeypatch.setattr(node, "LOOK_AGAIN_S", 0.0)
    monkeypatch.setattr(node, "start_detached", lambda *given: pytest.fail("there is one"))
    chosen = options.read({"socket": str(tmp_path / "socket"), "required": True})
    node.require_node(chosen, node.NodeStarter(chosen) if starts else None)
    assert not refusals


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_node_is_no_process_below_the_engine_and_is_seen_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "pid"
    os.mkfifo(told)
    monkeypatch.setattr(node, "command", lambda *given: ["sh", "-c", f"echo $$ >{told}; exec sleep 1000"])
    starter = node.NodeStarter(options.read({"socket": str(tmp_path / "socket")}))
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # CPUs are numbered from 0 without a gap on few hosts
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})  # as an engine binds itself
    try:
        starter.start()
    finally:
        os.sched_setaffinity(0, cores)
    pid = int(told.read_text())
    try:
        assert os.getsid(pid) not in (os.getsid(0), 0) and os.sched_getaffinity(pid) == cores
        above = pid
        while above > 1:
            above = parent_of(above)
            assert above != os.getpid()
        assert starter.failed() == "" and starter._runs()
    finally:
        os.kill(pid, signal.SIGKILL)
    while starter._runs():
        os.sched_yield()
    assert starter.failed() != ""


def test_default_socket_is_looked_for_at_each_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []
    monkeypatch.setattr(node, "command", lambda options, socket: started.append(socket) or ["true"])
    monkeypatch.setattr(node, "START_AGAIN_S", 0.0)
    starter = node.NodeStarter(options.Options())
    places = [tmp_path / "job.sock", tmp_path / "login.sock"]
    for place in places:
        monkeypatch.setattr(node, "default_socket_path", lambda place=place: place)
        starter.start()
        while starter._runs():
            os.sched_yield()
    assert started == places


def test_node_of_which_an_engine_gets_no_descriptor_is_started_once_and_seen_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "pid"
    os.mkfifo(told)
    monkeypatch.setattr(node, "command", lambda *given: ["sh", "-c", f"echo $$ >{told}; exec sleep 1000"])
    starter = node.NodeStarter(options.read({"socket": str(tmp_path / "socket")}))
    pidfd_open = os.pidfd_open

    def full(pid: int, flags: int = 0) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "pidfd_open", full)
    starter.start()
    pid = int(told.read_text())
    starter.start()
    assert starter.failed() == "" and starter._runs()
    monkeypatch.setattr(os, "pidfd_open", pidfd_open)
    os.kill(pid, signal.SIGKILL)
    while starter._runs():
        os.sched_yield()
    assert starter.failed() != ""


@pytest.fixture
def small_shm(tmp_path: Path) -> Path:
    folder = tmp_path / "shm"
    folder.mkdir()
    if in_small_tmpfs(folder, "1m", ["true"]).wait() != 0:
        pytest.skip("mount namespaces are not allowed here")
    return folder


def test_default_memory_fits_a_small_file_system(small_shm: Path, tmp_path: Path) -> None:
    words = [cisternd_path(), "--socket", str(tmp_path / "socket"), "--memory-dir", str(small_shm / "mine")]
    process = in_small_tmpfs(small_shm, "160m", words)
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "node ready" in line:
                return
        pytest.fail(f"the node did not start: {''.join(lines)}")
    finally:
        process.kill()
        process.wait()


def test_file_system_too_small_for_any_node_says_how_to_mend_it(small_shm: Path, tmp_path: Path) -> None:
    words = [cisternd_path(), "--socket", str(tmp_path / "socket"), "--memory-dir", str(small_shm / "mine")]
    said, _ = in_small_tmpfs(small_shm, "64m", words).communicate()
    assert "64MiB" in said and str(small_shm) in said and "--shm-size" in said
