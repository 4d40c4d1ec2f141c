# SPDX-License-Identifier: Apache-2.0
"""Two generations in two processes: the second loads what the first computed.

    python offline.py MODEL        # run it twice: the second run says how many tokens it did not compute

A node is started if this host has none; it stays for ten minutes after its last engine.
"""

from __future__ import annotations

import sys
import time

from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

QUESTION = "The history of the cistern, told at length. " * 120


def main() -> None:
    llm = LLM(
        model=sys.argv[1],
        kv_transfer_config=KVTransferConfig(
            kv_connector="CisternConnector", kv_role="kv_both", kv_load_failure_policy="recompute",
            kv_connector_extra_config={"memory": "1GiB"},
        ),
    )
    begun = time.perf_counter()
    (answer,) = llm.generate([QUESTION], SamplingParams(max_tokens=16, temperature=0))
    told = answer.kv_transfer_params or {}
    print(
        f"{time.perf_counter() - begun:.2f} s, {len(answer.prompt_token_ids or [])} tokens of prompt, "
        f"{told.get('cistern.loaded_tokens', 0)} of them loaded in {told.get('cistern.load_ms', 0)} ms"
    )


if __name__ == "__main__":
    main()
