# SPDX-License-Identifier: Apache-2.0
"""The OpenAI server as users run it, two engines on one node that the first of them started, KV events decoded from
the wire, Prometheus metrics, and MultiConnector with vLLM's example connector beside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import ENDS_WITH_US, Engine, Node, free_port, prompt, transfer_config

msgspec = pytest.importorskip("msgspec")
zmq = pytest.importorskip("zmq")
PROMPT = prompt(11, 700)
FULL = 640


class Server:
    def __init__(self, model: Path, folder: Path, name: str, connector: dict[str, Any], *more: str) -> None:
        self.port = free_port()
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*ENDS_WITH_US, sys.executable, "-m", "vllm.entrypoints.openai.api_server",
                 "--model", str(model), "--port", str(self.port), "--skip-tokenizer-init", "--dtype", "float32",
                 "--enforce-eager", "--max-model-len", "2048", "--kv-cache-memory-bytes", "60000000",
                 "--served-model-name", "m", "--kv-transfer-config", json.dumps(connector), *more],
                stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
                     "VLLM_LOGGING_LEVEL": "WARNING"},
            )

    def ready(self) -> Server:
        while True:
            assert self.process.poll() is None, self.log.read_text()[-5000:]
            try:
                self.get("/health")
                return self
            except OSError:
                with open("/proc/self/stat", "rb"):
                    os.sched_yield()

    def get(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            text = answer.read().decode()
            assert isinstance(text, str)
            return text

    def complete(self, tokens: list[int], **more: Any) -> dict[str, Any]:
        body = {"model": "m", "prompt": tokens, "max_tokens": 4, "temperature": 0, "ignore_eos": True,
                "return_token_ids": True, "detokenize": False, **more}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            found = json.loads(answer.read())
        assert isinstance(found, dict)
        return found

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def servers(small: Path, tmp_path: Path) -> Iterator[tuple[Server, Server, str, Path]]:
    """Two engines that find no node: one of them starts it; it ends five seconds after the last has left."""
    node = Node()
    events = f"tcp://127.0.0.1:{free_port()}"
    connector = transfer_config(
        socket=str(node.socket), memory="128MiB", memory_dir=str(node.folder / "memory"), linger_s=5
    )
    one = Server(
        small, tmp_path, "one", connector, "--kv-events-config",
        json.dumps({"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": events.replace("127.0.0.1", "*")}),
    )
    two = Server(small, tmp_path, "two", connector)
    try:
        yield one.ready(), two.ready(), events, node.socket
    finally:
        one.end()
        two.end()
        wait_for_end(node.socket)
        node.remove()


def wait_for_end(socket: Path) -> None:
    """Waits until nobody listens there any more."""
    from cistern import Error, Store

    try:
        with Store.connect(socket) as store:
            process = os.pidfd_open(store.status()["node"]["pid"])
    except Error:
        return
    import select

    assert select.select([process], [], [], 60)[0], "the node lives on"
    os.close(process)


def test_two_servers_on_one_node(servers: tuple[Server, Server, str, Path]) -> None:
    one, two, endpoint, _ = servers
    listener = zmq.Context.instance().socket(zmq.SUB)
    listener.connect(endpoint)
    listener.setsockopt(zmq.SUBSCRIBE, b"")
    listener.setsockopt(zmq.RCVTIMEO, 60_000)
    first = one.complete(PROMPT)
    blocks: set[int] = set()
    while len(blocks) < FULL // 128:
        _, _, payload = listener.recv_multipart()
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "BlockStored" and event["medium"] == "CPU":
                blocks.update(event["block_hashes"])
                assert len(event["token_ids"]) == len(event["block_hashes"]) * event["block_size"]
    listener.close()
    second = two.complete(PROMPT)
    assert second["choices"][0]["token_ids"] == first["choices"][0]["token_ids"]
    assert second["kv_transfer_params"]["cistern.loaded_tokens"] == FULL
    metrics = two.get("/metrics")
    loaded = [line for line in metrics.splitlines() if line.startswith("vllm:cistern_hit_tokens_total{")]
    assert loaded and float(loaded[0].split()[-1]) == FULL
    assert two.complete(PROMPT, kv_transfer_params={"cistern.no_load": True, "foreign": 1})["choices"]


def multi(node: Node, folder: Path, ours_first: bool) -> dict[str, Any]:
    ours = transfer_config(node)
    example = {
        "kv_connector": "ExampleConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    return {
        "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"connectors": [ours, example] if ours_first else [example, ours]},
    }


def test_beside_another_connector_chosen_or_not(small: Path, node: Node, tmp_path: Path) -> None:
    more = {"engine": {"disable_hybrid_kv_cache_manager": True}}
    with Engine(small, multi(node, tmp_path / "a", ours_first=True), **more) as first:
        (answer,) = first.generate([PROMPT])
    with Engine(small, multi(node, tmp_path / "empty", ours_first=True), **more) as chosen:
        (again,) = chosen.generate([PROMPT])
        assert again["tokens"] == answer["tokens"] and again["cached"] == FULL
        assert again["params"]["cistern.loaded_tokens"] == FULL
    with Engine(small, multi(node, tmp_path / "a", ours_first=False), **more) as passed_over:
        (again,) = passed_over.generate([PROMPT])
        assert again["tokens"] == answer["tokens"]
        assert (again["params"] or {}).get("cistern.loaded_tokens") is None
    with Node() as empty:
        with Engine(small, multi(empty, tmp_path / "a", ours_first=False), **more) as brought:
            (again,) = brought.generate([PROMPT])
            assert again["tokens"] == answer["tokens"]
            brought.generate([PROMPT[1:]])  # computed here, and saved behind what it stands on
            empty.wait_blocks(FULL // 128)
        with Engine(small, transfer_config(empty)) as other:
            of_another, own = other.generate([PROMPT])[0], other.generate([PROMPT[1:]])[0]
            assert (of_another["params"] or {}).get("cistern.loaded_tokens") is None
            assert own["params"]["cistern.loaded_tokens"] > 0
