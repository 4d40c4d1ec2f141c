# SPDX-License-Identifier: Apache-2.0
"""Nodes and engines as processes of a test's own, and how to wait for them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WATCHDOG_S = 600
ENDS_WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: it is killed when the thread that starts it ends, or is."""


def prompt(seed: int, tokens: int, vocabulary: int = 500) -> list[int]:
    dice = random.Random(seed)
    return [dice.randrange(3, vocabulary) for _ in range(tokens)]


class Node:
    """cisternd with a directory of its own."""

    def __init__(self, memory: str = "512MiB", *more: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"cistern-test-{os.getpid()}-", dir="/dev/shm"))
        self.socket = self.folder / "socket"
        self.memory = memory
        self.more = more
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        from cistern import cisternd_path

        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*ENDS_WITH_US, cisternd_path(), "--memory", self.memory, "--memory-dir", str(self.folder / "memory"),
                 "--socket", str(self.socket), *self.more],
                stdout=log, stderr=subprocess.PIPE,
            )
        assert self.process.stderr is not None
        line = b""
        while b"node ready" not in line:
            line = self.process.stderr.readline()
            assert line, "the node did not start"

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
            if self.process.stderr is not None:
                self.process.stderr.close()
            self.process = None

    def status(self) -> dict[str, Any]:
        from cistern import Store

        with Store.connect(self.socket) as store:
            return store.status()

    def wait_status(self, so: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Waits until the node's status is as wanted."""
        from cistern import Error

        end = time.monotonic() + WATCHDOG_S
        status: dict[str, Any] = {}
        while True:
            with contextlib.suppress(Error):
                if so(status := self.status()):
                    return status
            assert time.monotonic() < end, status
            assert not self.ends_within(0.02), "the node ended"

    def wait_blocks(self, least: int) -> int:
        """Waits until so many blocks are visible: engines publish beside their answers."""
        from cistern import Error

        end = time.monotonic() + WATCHDOG_S
        blocks = -1
        while blocks < least:
            assert time.monotonic() < end, f"{blocks} blocks of {least} are there"
            assert not self.ends_within(0.02), "the node ended"
            with contextlib.suppress(Error):
                blocks = self.status()["now"]["blocks"]
        return blocks

    def ends_within(self, seconds: float) -> bool:
        assert self.process is not None
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        return self.process.returncode is not None

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Node:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


class Etcd:
    """A real etcd on loopback: Debian's etcd-server."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix=f"cistern-etcd-{os.getpid()}-", dir="/dev/shm"))
        self.endpoint = ""
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Etcd:
        self.endpoint, peers = f"http://127.0.0.1:{free_port()}", "http://127.0.0.1:0"
        log = self.folder / "log"
        with log.open("wb") as into:
            # A fast clock makes one member a leader in 0.1 s instead of 1.
            self.process = subprocess.Popen(
                [*ENDS_WITH_US, "etcd", "--data-dir", str(self.folder / "data"),
                 "--logger", "zap", "--log-outputs", "stderr",
                 "--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint,
                 "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers,
                 "--initial-cluster", f"default={peers}", "--heartbeat-interval", "10", "--election-timeout", "100"],
                stdout=into, stderr=into,
            )
        while '"serving client traffic' not in log.read_text():
            assert self.process.poll() is None, log.read_text()[-3000:]
            os.sched_yield()
        return self

    def __exit__(self, *error: object) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


class CellNode(Node):
    """cisternd in a cell, under a key, with two ports of its own."""

    def __init__(self, etcd: Etcd, member: str, *more: str, memory: str = "512MiB") -> None:
        key = etcd.folder / "key"
        if not key.exists():
            key.touch(0o600)
            key.write_text("7a" * 32)
        super().__init__(
            memory, "--cell", etcd.endpoint, "--member", member, "--cell-address", f"127.0.0.1:{free_port(2)}",
            "--cell-key", str(key), *more,
        )


BY_SOURCE = """
name = "vllm:prompt_tokens_cached_by_source"
answer = {one.labels["source"]: one.value for one in llm.get_metrics() if one.name == name and one.value}
"""
"""The engine's own metric of where cached tokens came from: from vLLM 0.32 on it tells them apart."""

PATIENT = {"match_timeout_s": 5.0, "save_timeout_s": 25.0}
"""Of an engine whose every hit is asserted, on a host that may be busy: with a user's 50 ms and 10 s it computes."""


def transfer_config(node: Node | None = None, **extra: Any) -> dict[str, Any]:
    if node is not None:
        extra = {"socket": str(node.socket), "start_node": False, **extra}
    return {
        "kv_connector": "CisternConnector",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": extra,
    }


def namespace_spec(fields: list[list[list[str]]], shapes: list[dict[str, Any]], block_tokens: int) -> Any:
    from cistern import Group, NamespaceSpec

    return NamespaceSpec(
        fields={name: value for name, value in fields[0]},
        groups=tuple(Group(**{**shape, "part_bytes": tuple(shape["part_bytes"])}) for shape in shapes),
        block_tokens=block_tokens,
    )


def stored(node: Node, fields: list[list[list[str]]], shapes: list[dict[str, Any]], block_tokens: int,
           keys: list[bytes], group: int = 0) -> dict[bytes, bytes]:
    """Content of the store for these keys, all parts in order, in a namespace with these fields and groups."""
    from cistern import Store

    with Store.connect(node.socket) as store:
        namespace = store.attach(namespace_spec(fields, shapes, block_tokens))
        found = {}
        for key in keys:
            with store.acquire(namespace, [key], group=group) as lease:
                if lease[0] is not None:
                    found[key] = lease[0].tobytes()
    return found


def free_port(ports: int = 1) -> int:
    """The first of so many ports of 127.0.0.1 that nobody listens at now, where no connection of somebody else's gets
    one by itself before they are taken."""
    ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        first = random.SystemRandom().randrange(min(10_000, ephemeral // 2), ephemeral - ports)
        with contextlib.ExitStack() as taken, contextlib.suppress(OSError):
            for port in range(first, first + ports):
                taken.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def small_tmpfs(folder: Path, size: str) -> list[str]:
    """What runs a command in a mount namespace of its own, where the folder is a tmpfs of that size."""
    mount = f"mount -t tmpfs -o size={size} none {folder} && exec \"$@\""
    return ["unshare", "-r", "-m", "sh", "-c", mount, "sh"]


NAMESPACE = """
spec = side.connection._spec
answer = dict(fields=spec.fields, block_tokens=spec.block_tokens, shapes=[
    dict(name=g.name, reach=g.reach, window_tokens=g.window_tokens, part_bytes=g.part_bytes) for g in spec.groups])
"""
"""Asks the scheduler side or a rank for its namespace."""


class Engine:
    """A vLLM in a process of its own; see driver.py."""

    def __init__(self, model: Path, connector: dict[str, Any] | None, environment: dict[str, str] | None = None,
                 within: Sequence[str] = (), **more: Any) -> None:
        """`within`: a command that runs the engine's."""
        asked = {"model": str(model), "connector": connector, **more}
        self._log = tempfile.NamedTemporaryFile("w+", prefix="cistern-engine-", suffix=".log")
        self._process = subprocess.Popen(
            [*ENDS_WITH_US, *within, sys.executable, str(HERE / "driver.py"), json.dumps(asked)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )
        self._asked = False

    def ready(self) -> Engine:
        self._answer()
        return self

    def ask(self, what: str, **more: Any) -> Any:
        self.begin(what, **more)
        return self.end()

    def begin(self, what: str, **more: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **more}) + "\n")
        self._process.stdin.flush()

    def end(self) -> Any:
        answer = self._answer()
        if "error" in answer:
            raise RuntimeError(f"{answer['error']}\n{self.log()[-6000:]}")
        return answer.get("answer")

    def generate(self, prompts: list[list[int]], **more: Any) -> list[dict[str, Any]]:
        answer = self.ask("generate", prompts=prompts, **more)
        assert isinstance(answer, list)
        return answer

    def run(self, code: str, **more: Any) -> Any:
        return self.ask("exec", code=code, **more)

    def on_ranks(self, code: str) -> list[Any]:
        """Lines of Python for each rank's process, which find the rank as `side`."""
        answers = self.ask("ranks", code=code)
        assert isinstance(answers, list)
        return answers

    def log(self) -> str:
        with open(self._log.name) as file:
            return file.read()

    def pause(self) -> None:
        """Stops all of its processes where they are, until `go_on`."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """Kills the engine and all of its processes."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self.kill()

    def __enter__(self) -> Engine:
        return self.ready()

    def __exit__(self, error: object, *more: object) -> None:
        if error is not None:
            print(self.log()[-6000:])  # shown by pytest with the failure
        self.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(WATCHDOG_S):
                self.kill()
                raise TimeoutError(f"the engine does not answer\n{self.log()[-6000:]}")
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            raise RuntimeError(f"the engine ended with {self._process.returncode}\n{self.log()[-6000:]}")
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer
