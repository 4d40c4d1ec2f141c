# SPDX-License-Identifier: Apache-2.0
"""A small OpenAI-compatible server that streams, counts, caches by prefix, and misbehaves as a test asks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

BLOCK_TOKENS = 16


class FakeOpenAi:
    """Answers as vLLM does: its own prefix cache, below it one that keeps what Cistern's would. A token is a word."""

    def __init__(self) -> None:
        self.model = "fake"
        self.tells_cached = True
        self.has_reset = True
        self.metrics: Callable[[], str] | None = self._metrics
        self.answer: Callable[[int, dict[str, Any]], Iterator[bytes] | tuple[int, bytes]] = self.stream
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.engine: set[str] = set()
        self.cistern: set[str] = set()
        self.asked = self.engine_hits = self.cistern_hits = self.resets = 0
        self.lock = threading.Lock()
        self.ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"fake": self}))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def text(self, body: dict[str, Any]) -> str:
        if "prompt" in body:
            return str(body["prompt"])
        return " ".join(message["content"] for message in body["messages"])

    def cached(self, body: dict[str, Any]) -> int:
        """How many of the prompt's tokens are known, and what is learnt of it."""
        words = self.text(body).split()
        wish = body.get("kv_transfer_params", {})
        prefixes = [" ".join(words[:end]) for end in range(BLOCK_TOKENS, len(words), BLOCK_TOKENS)]
        with self.lock:
            own = sum(prefix in self.engine for prefix in prefixes)
            below = 0 if wish.get("cistern.no_load") else sum(prefix in self.cistern for prefix in prefixes)
            self.engine.update(prefixes)
            if not wish.get("cistern.no_save"):
                self.cistern.update(prefixes)
            self.asked += len(words)
            self.engine_hits += own * BLOCK_TOKENS
            self.cistern_hits += max(0, below - own) * BLOCK_TOKENS
        return max(own, below) * BLOCK_TOKENS

    def stream(self, number: int, body: dict[str, Any]) -> Iterator[bytes]:
        cached = self.cached(body)
        yield b": a comment\r\n\r\n"
        for index in range(body["max_tokens"]):
            last = index + 1 == body["max_tokens"]
            yield self.event({"choices": [self.choice(body, f"w{number}.{index} ", "length" if last else None)]})
        usage: dict[str, Any] = {
            "prompt_tokens": len(self.text(body).split()), "completion_tokens": body["max_tokens"],
        }
        if self.tells_cached:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        yield self.event({"choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    @staticmethod
    def choice(body: dict[str, Any], text: str, finish: str | None) -> dict[str, Any]:
        said = {"text": text} if "prompt" in body else {"delta": {"content": text}}
        return {"index": 0, "finish_reason": finish, **said}

    @staticmethod
    def event(value: Any) -> bytes:
        return b"data: " + json.dumps(value).encode() + b"\n\n"

    def _metrics(self) -> str:
        missing = self.asked - self.engine_hits
        return (
            f'vllm:prefix_cache_queries_total{{engine="0"}} {self.asked}.0\n'
            f'vllm:prefix_cache_hits_total{{engine="0"}} {self.engine_hits}.0\n'
            f'vllm:external_prefix_cache_queries_total{{engine="0"}} {missing}.0\n'
            f'vllm:external_prefix_cache_hits_total{{engine="0"}} {self.cistern_hits}.0\n'
            f'vllm:cistern_asked_tokens_total{{engine="0"}} {missing}.0\n'
            f'vllm:cistern_hit_tokens_total{{engine="0"}} {self.cistern_hits}.0\n'
        )


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeOpenAi

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def whole(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self.fake.headers.append(dict(self.headers))
        if self.path == "/v1/models":
            self.whole(200, json.dumps({"object": "list", "data": [{"id": self.fake.model}]}).encode())
        elif self.path == "/metrics" and self.fake.metrics:
            self.whole(200, self.fake.metrics().encode())
        else:
            self.whole(404, b'{"detail":"Not Found"}')

    def do_POST(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/reset_prefix_cache" and self.fake.has_reset:
            with self.fake.lock:
                self.fake.engine.clear()
                self.fake.resets += 1
            self.whole(200, b'{"success": true}')
            return
        if self.path not in ("/v1/chat/completions", "/v1/completions"):
            self.whole(404, b'{"detail":"Not Found"}')
            return
        body = json.loads(sent)
        with self.fake.lock:
            self.fake.bodies.append(body)
            number = len(self.fake.bodies)
        answer = self.fake.answer(number, body)
        if isinstance(answer, tuple):
            self.whole(*answer)
            return
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            for piece in answer:
                self.wfile.write(piece)
        except OSError:
            pass  # the client has left
