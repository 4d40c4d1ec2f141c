# SPDX-License-Identifier: Apache-2.0
"""Small models with seeded random weights, written where a test wants them.

    python tests/engine/model.py DIR
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 1536,
    "vocab_size": 2048,
    "max_position_embeddings": 16384,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "torch_dtype": "bfloat16",
}
SMALL = {
    "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 32,
    "intermediate_size": 256, "vocab_size": 512,
}
GEMMA: dict[str, Any] = {
    **LLAMA,
    **SMALL,
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "num_hidden_layers": 4,
    "sliding_window": 256,
    "query_pre_attn_scalar": 32,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
"""Every other layer with a window: two KV cache groups."""


def write(folder: Path, config: dict[str, Any], seed: int = 1234) -> Path:
    """A folder that vLLM can load. Weights are large enough that a missing block shows in the tokens."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    dice = torch.Generator().manual_seed(seed)

    def random(*shape: int, gain: float = 1.0) -> torch.Tensor:
        return (torch.randn(*shape, generator=dice) * shape[-1] ** -0.5 * gain).to(torch.bfloat16)

    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    values = config["num_key_value_heads"] * config["head_dim"]
    gemma = config["model_type"] == "gemma2"

    def norm() -> torch.Tensor:
        return torch.zeros(hidden, dtype=torch.bfloat16) if gemma else torch.ones(hidden, dtype=torch.bfloat16)

    tensors = {"model.embed_tokens.weight": random(config["vocab_size"], hidden, gain=hidden**0.5)}
    tensors["model.norm.weight"] = norm()
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = random(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        tensors[at + "self_attn.q_proj.weight"] = random(queries, hidden, gain=1.5)
        tensors[at + "self_attn.k_proj.weight"] = random(values, hidden, gain=1.5)
        tensors[at + "self_attn.v_proj.weight"] = random(values, hidden)
        tensors[at + "self_attn.o_proj.weight"] = random(hidden, queries, gain=2.0)
        tensors[at + "mlp.gate_proj.weight"] = random(inner, hidden)
        tensors[at + "mlp.up_proj.weight"] = random(inner, hidden)
        tensors[at + "mlp.down_proj.weight"] = random(hidden, inner)
        norms = ["input_layernorm", "post_attention_layernorm"]
        if gemma:
            norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"]
        for name in norms:
            tensors[f"{at}{name}.weight"] = norm()
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return folder


def write_adapter(folder: Path, config: dict[str, Any], seed: int) -> Path:
    """A LoRA adapter of rank 4 for such a model, with random weights that show in the tokens."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none",
        "target_modules": ["q_proj", "v_proj"], "base_model_name_or_path": "",
    }))
    dice = torch.Generator().manual_seed(seed)
    out = {"q_proj": config["num_attention_heads"], "v_proj": config["num_key_value_heads"]}
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, heads in out.items():
            at = f"base_model.model.model.layers.{layer}.self_attn.{name}."
            tensors[at + "lora_A.weight"] = torch.randn(4, config["hidden_size"], generator=dice) * 0.1
            tensors[at + "lora_B.weight"] = torch.randn(heads * config["head_dim"], 4, generator=dice)
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    return folder


if __name__ == "__main__":
    line = argparse.ArgumentParser(description="Writes a small model with seeded random weights, for vLLM to load.")
    line.add_argument("folder", metavar="DIR", type=Path, help="where to; made if it is not there")
    print(write(line.parse_args().folder, LLAMA))
