# SPDX-License-Identifier: Apache-2.0
"""A real vLLM in a process of its own, told what to do by JSON lines on its standard input. One process, so that a
test can look at the pages; with "processes" as many as vLLM likes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import time
from typing import Any


def start(asked: dict[str, Any]) -> Any:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1" if asked.get("processes") else "0"
    os.environ["VLLM_NO_USAGE_STATS"] = "1"
    os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # tests send functions to the ranks
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    from vllm import LLM

    more = {"enforce_eager": True, **asked.get("engine", {})}
    if asked.get("connector") is not None:
        more["kv_transfer_config"] = asked["connector"]
    return LLM(
        model=asked["model"], skip_tokenizer_init=True, dtype=asked.get("dtype", "float32"),
        kv_cache_memory_bytes=asked.get("kv_bytes", 300_000_000), max_model_len=asked.get("max_model_len", 8448),
        disable_log_stats=False, **more,
    )


def core(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core


def connector(llm: Any) -> Any:
    return core(llm).scheduler.connector


def rank() -> Any:
    from cistern.vllm.connector import rank_of_this_process

    return rank_of_this_process()


def generate(llm: Any, asked: dict[str, Any]) -> list[dict[str, Any]]:
    from vllm import SamplingParams

    prompts = []
    for tokens in asked["prompts"]:
        prompt: dict[str, Any] = {"prompt_token_ids": tokens}
        if asked.get("salt"):
            prompt["cache_salt"] = asked["salt"]
        prompts.append(prompt)
    extra = {"kv_transfer_params": asked["params"]} if asked.get("params") else None
    chosen = SamplingParams(
        max_tokens=asked.get("max_tokens", 8), temperature=0, detokenize=False, ignore_eos=True, extra_args=extra
    )
    more: dict[str, Any] = {}
    if asked.get("adapter"):
        from vllm.lora.request import LoRARequest

        more["lora_request"] = LoRARequest(**asked["adapter"])
    begun = time.perf_counter()
    outputs = llm.generate(prompts, chosen, use_tqdm=False, **more)
    took = time.perf_counter() - begun
    settle(llm)
    return [
        {
            "tokens": list(one.outputs[0].token_ids),
            "cached": one.num_cached_tokens,
            "params": one.kv_transfer_params,
            "took": took,
        }
        for one in outputs
    ]


def page_bytes(llm: Any) -> dict[str, bytes]:
    """Pages of the engine's own prefix cache: the bytes of each, by the block's hash and group."""
    import ctypes

    from vllm.v1.core.kv_cache_utils import get_block_hash, get_group_id

    from cistern.engine.layout import group_layout

    scheduler = core(llm).scheduler
    runner = core(llm).model_executor.driver_worker.worker.model_runner
    context = runner.compilation_config.static_forward_context
    layouts = []
    for group in scheduler.kv_cache_config.kv_cache_groups:
        caches = {name: context[name].kv_cache for name in group.layer_names}
        caches = {name: one[0] if isinstance(one, list) else one for name, one in caches.items()}
        layouts.append(group_layout(group.layer_names, caches, scheduler.kv_cache_config.num_blocks, None))
    found = {}
    for block in scheduler.kv_cache_manager.block_pool.blocks:
        if block.block_hash is None or block.is_null:
            continue
        group = get_group_id(block.block_hash)
        found[f"{get_block_hash(block.block_hash).hex()}/{group}"] = b"".join(
            ctypes.string_at(one.address + block.block_id * one.stride, one.bytes)
            for one in layouts[group].fragments
        )
    return found


def pages(llm: Any, asked: dict[str, Any]) -> dict[str, str]:
    """A digest of each page; with "into" their bytes in a file as well (numpy's, by the same names)."""
    found = page_bytes(llm)
    if asked.get("into"):
        import numpy as np

        np.savez(asked["into"], **{name: np.frombuffer(body, dtype=np.uint8) for name, body in found.items()})
    return {name: hashlib.sha256(body).hexdigest() for name, body in found.items()}


def serve(llm: Any, asked: dict[str, Any]) -> dict[str, list[int]]:
    """Requests all at once, stepped by hand; some are aborted after so many steps. What they answered."""
    from vllm import SamplingParams

    engine = llm.llm_engine
    aborts = {int(step): names for step, names in asked.get("aborts", {}).items()}
    for name, tokens in asked["requests"].items():
        chosen = SamplingParams(max_tokens=asked["max_tokens"], temperature=0, detokenize=False, ignore_eos=True)
        engine.add_request(name, {"prompt_token_ids": tokens}, chosen)
    answers, step = {}, 0
    while engine.has_unfinished_requests():
        step += 1
        if step in aborts:
            engine.abort_request(aborts[step])
        for output in engine.step():
            if output.finished:
                answers[output.request_id] = list(output.outputs[0].token_ids)
    return answers


def settle(llm: Any) -> None:
    """Where the engine is in this process nobody steps it between two questions, and on a busy host it has not
    published everything by now. A save ends by its deadline, whatever comes of it."""
    engine = getattr(llm.llm_engine.engine_core, "engine_core", None)
    side = getattr(getattr(engine, "scheduler", None), "connector", None)
    for one in getattr(side, "sub_connectors", None) or [side]:
        coordinator = getattr(one, "coordinator", None)
        while coordinator is not None and coordinator.pending:
            engine.step_fn()
        if coordinator is not None:
            coordinator.connection.flush(60)


def counted(llm: Any) -> dict[str, int]:
    """The connector's counters of its whole life."""
    return dict(connector(llm).coordinator.stats.total)


def on_rank(_: Any, code: str) -> Any:
    names: dict[str, Any] = {"side": rank()}
    exec(code, names)
    return names.get("answer")


def do(llm: Any, asked: dict[str, Any]) -> Any:
    what = asked["do"]
    if what == "generate":
        return generate(llm, asked)
    if what == "pages":
        return pages(llm, asked)
    if what == "serve":
        return serve(llm, asked)
    if what == "counted":
        return counted(llm)
    if what == "reset":
        return llm.reset_prefix_cache(reset_connector=asked.get("connector", False))
    if what == "ranks":  # the same in each rank's process; an answer each
        return llm.collective_rpc(on_rank, args=(asked["code"],))
    if what == "metrics":
        return {one.name: one.value for one in llm.get_metrics() if hasattr(one, "value")}
    if what == "exec":  # a test's own: lines of Python that leave their answer in `answer`
        names: dict[str, Any] = {
            "llm": llm, "core": core, "connector": connector, "rank": rank, "settle": settle, "asked": asked,
        }
        exec(asked["code"], names)
        return names.get("answer")
    raise ValueError(what)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints is no answer
    llm = start(json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer = {"answer": do(llm, json.loads(line))}
        except Exception as error:
            import traceback

            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)
    with contextlib.suppress(Exception):
        llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main()
