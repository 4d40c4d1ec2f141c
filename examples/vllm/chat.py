# SPDX-License-Identifier: Apache-2.0
"""A conversation of several turns with an OpenAI server that has the connector, told as token ids.

    python chat.py http://127.0.0.1:8001 http://127.0.0.1:8002

Each turn goes to the next server of the list: each finds the history that the others computed.
"""

from __future__ import annotations

import json
import random
import sys
import time
import urllib.request
from typing import Any

TURNS, ASKED, ANSWERED = 6, 200, 40


def complete(server: str, tokens: list[int]) -> dict[str, Any]:
    body = {
        "model": "m", "prompt": tokens, "max_tokens": ANSWERED, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True,
    }
    request = urllib.request.Request(
        f"{server}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as answer:
        found = json.loads(answer.read())
    assert isinstance(found, dict)
    return found


def main() -> None:
    servers = sys.argv[1:] or ["http://127.0.0.1:8001"]
    dice, history = random.Random(1), []
    for turn in range(TURNS):
        history += [dice.randrange(3, 500) for _ in range(ASKED)]
        server = servers[turn % len(servers)]
        begun = time.perf_counter()
        answer = complete(server, history)
        told = answer.get("kv_transfer_params") or {}
        print(
            f"turn {turn + 1} at {server}: {len(history)} tokens, {told.get('cistern.loaded_tokens', 0)} loaded, "
            f"{time.perf_counter() - begun:.2f} s"
        )
        history += answer["choices"][0]["token_ids"]


if __name__ == "__main__":
    main()
