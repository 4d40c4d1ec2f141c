# SPDX-License-Identifier: Apache-2.0
"""A process that forks, or ends with work in flight; and the programs that come with the package."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import TIMEOUT_S, Node

import cistern

KEYS = [bytes([i]) * 32 for i in range(8)]


def run(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-X", "dev", "-c", script, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


PRELUDE = """
import os, sys, cistern
keys = [bytes([i]) * 32 for i in range(8)]
def begin(store):
    namespace = store.attach(cistern.NamespaceSpec({"model": "ends"}))
    store.write(namespace, keys, [b"data" * 1000] * 8)
    pool = bytearray(8 * 4000)
    pages = cistern.Pages.over([pool], [(0, 0, 4000, 4000)], 8)
    transfers = cistern.Transfers(store)
    for _ in range(100):
        transfers.submit_load(namespace, keys, pages, range(8))
        transfers.submit_save(namespace, [os.urandom(32) for _ in keys], pages, range(8), held=False)
    return namespace, pages, transfers, store.acquire(namespace, keys, lease_us=60_000_000)
"""
ENDS = {
    "falls off the end": "kept = begin(store)",
    "exits": "kept = begin(store); sys.exit(0)",
    "in a cycle": "kept = [begin(store)]; kept.append(kept); del kept",
    "closes the store first": "kept = begin(store); store.close()",
    "closes nothing and forgets the store": "kept = begin(store); del store",
    "keeps a view": "kept = begin(store)[3][0].memoryview()",
}


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("way", ["connected", "embedded"])
def test_a_process_ends_with_work_in_flight(how: str, way: str, node: Node, directory: pathlib.Path) -> None:
    opened = {
        "connected": "store = cistern.Store.connect(sys.argv[1])",
        "embedded": "store = cistern.Store.open(memory_bytes=64 << 20, memory_dir=sys.argv[2])",
    }[way]
    ended = run(f"{PRELUDE}\n{opened}\n{ENDS[how]}", node.socket, str(directory / "embedded"))
    # A node in the process says which calls took long, as on a loaded host.
    said = [line for line in ended.stderr.splitlines() if " warning slow: " not in line]
    assert (ended.returncode, ended.stdout, said) == (0, "", [])


WAITS = """
import sys, cistern
store = cistern.Store.connect(sys.argv[1])
namespace = store.attach(cistern.NamespaceSpec({"model": "waits"}))
pages = cistern.Pages.over([bytearray(4000)], [(0, 0, 4000, 4000)], 1)
transfers = cistern.Transfers(store)
print("asks", flush=True)
sys.stdin.readline()
transfers.submit_save(namespace, [b"k" * 32], pages, [0], held=False, deadline_us=1_000_000_000)
print("waits", flush=True)
transfers.wait(1_000.0)
"""


def test_ctrl_c_ends_a_wait_for_transfers(node: Node) -> None:
    command = [sys.executable, "-c", WAITS, node.socket]
    pipe = subprocess.PIPE
    waits = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert waits.stdin is not None and waits.stdout is not None
    assert waits.stdout.readline() == "asks\n"
    node.stop()
    waits.stdin.write("\n")
    waits.stdin.flush()
    assert waits.stdout.readline() == "waits\n"
    # Asleep in it: what comes before would be heard in any case.
    stat = pathlib.Path(f"/proc/{waits.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "S":
        pass
    waits.send_signal(signal.SIGINT)
    _, said = waits.communicate(timeout=TIMEOUT_S)
    assert "KeyboardInterrupt" in said and waits.returncode != 0


DAEMONS = """
import sys, threading, cistern
store = OPENED
namespace = store.attach(cistern.NamespaceSpec({"model": "daemons"}))
key, begun = b"k" * 32, threading.Barrier(9)
store.put(namespace, key, b"data" * 1000)
def call():
    begun.wait()
    while True:
        store.get(namespace, key)
        store.touch(namespace, [key])
for _ in range(8):
    threading.Thread(target=call, daemon=True).start()
begun.wait()
store.get(namespace, key)
"""


@pytest.mark.parametrize("way", ["connected", "embedded"])
def test_a_process_ends_while_daemon_threads_call(way: str, node: Node, directory: pathlib.Path) -> None:
    opened = {
        "connected": "cistern.Store.connect(sys.argv[1])",
        "embedded": "cistern.Store.open(memory_bytes=64 << 20, memory_dir=sys.argv[2])",
    }[way]
    for _ in range(5):
        ended = run(DAEMONS.replace("OPENED", opened), node.socket, str(directory / "embedded"))
        # A thread may still have told that the store was closed beside it.
        assert ended.returncode == 0, ended.stderr
        assert "Fatal" not in ended.stderr and "terminate" not in ended.stderr


def test_a_process_that_raises_with_work_in_flight_says_that(node: Node) -> None:
    script = f"{PRELUDE}\nstore = cistern.Store.connect(sys.argv[1])\nkept = begin(store)\nraise KeyError('mine')"
    ended = run(script, node.socket)
    assert ended.returncode == 1 and ended.stderr.rstrip().endswith("KeyError: 'mine'")


FORKS = """
store = cistern.Store.connect(sys.argv[1]) if sys.argv[3] == "connected" else cistern.Store.open(
    memory_bytes=64 << 20, memory_dir=sys.argv[2])
namespace, pages, transfers, lease = begin(store)
child = os.fork()
if child == 0:
    for call in (
        lambda: store.match(namespace, keys), lambda: store.write(namespace, keys, [b"1"] * 8),
        lambda: store.acquire(namespace, keys), lambda: store.status(),
        lambda: transfers.submit_load(namespace, keys, pages, range(8)),
    ):
        try:
            call()
        except cistern.Denied:
            continue
        os._exit(3)
    assert transfers.poll() == [] and transfers.wait(1) == [] and transfers.in_flight == 0
    assert not lease.good
    lease.release()
    if sys.argv[4] == "close":
        transfers.close()
        store.close()
    sys.exit(0)
_, status = os.waitpid(child, 0)
assert status == 0, status
assert lease.good
while transfers.in_flight:
    assert transfers.wait(60)
assert store.match(namespace, keys).blocks == 8
"""


@pytest.mark.parametrize("closing", ["close", "leave"])
@pytest.mark.parametrize("way", ["connected", "embedded"])
def test_a_forked_child_is_denied_and_takes_nothing_from_its_parent(
    way: str, closing: str, node: Node, directory: pathlib.Path
) -> None:
    ended = run(PRELUDE + FORKS, node.socket, str(directory / "embedded"), way, closing)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_the_programs_are_there_and_run() -> None:
    for path in (cistern.cisternd_path(), cistern.cistern_path()):
        shown = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        assert "Usage" in shown.stdout
    for program in ("cistern", "cisternd"):
        script = f"from cistern.programs import run_{program} as become; become()"
        ended = run(script, "--help")
        assert ended.returncode == 0 and "Usage" in ended.stdout
    assert os.access(cistern.cisternd_path(), os.X_OK)
