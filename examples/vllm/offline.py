# SPDX-License-Identifier: Apache-2.0
"""Run it twice: the second run loads what the first computed, and says how many tokens it did not compute.

    python offline.py MODEL        # a folder or a name; prompts are token ids, so no tokenizer is needed

A node is started if this host has none; it stays for ten minutes after its last engine.
"""

from __future__ import annotations

import os
import sys
import time

os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")

from vllm import LLM, SamplingParams  # noqa: E402
from vllm.config import KVTransferConfig  # noqa: E402

QUESTION = [3 + number * number % 1999 for number in range(3000)]


def main() -> None:
    llm = LLM(
        model=sys.argv[1],
        skip_tokenizer_init=True,
        max_model_len=4096,
        kv_cache_memory_bytes=1 << 30,
        kv_transfer_config=KVTransferConfig(
            kv_connector="CisternConnector", kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config={"memory": "1GiB"},
        ),
    )
    asked = SamplingParams(max_tokens=16, temperature=0, detokenize=False)
    begun = time.perf_counter()
    (answer,) = llm.generate([{"prompt_token_ids": QUESTION}], asked, use_tqdm=False)
    told = answer.kv_transfer_params or {}
    print(
        f"{time.perf_counter() - begun:.2f} s, {len(QUESTION)} tokens of prompt, "
        f"{told.get('cistern.loaded_tokens', 0)} of them loaded in {told.get('cistern.load_ms', 0)} ms"
    )


if __name__ == "__main__":
    main()
