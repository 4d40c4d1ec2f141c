# SPDX-License-Identifier: Apache-2.0
"""Lists of names and values of real vLLM configurations: who shares with whom, without an engine."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import model as models
import pytest

from cistern.engine.facts import ConfigurationError
from cistern.engine.files import UnknownIdentity
from cistern.vllm import identity, positions

SMALL = {**models.LLAMA, **models.SMALL}
LONGROPE = {
    "rope_type": "longrope", "original_max_position_embeddings": 4096, "rope_theta": 10000.0,
    "short_factor": [1.0] * 16, "long_factor": [2.0] * 16,
}


def groups() -> Any:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = FullAttentionSpec(block_size=128, num_kv_heads=4, head_size=32, dtype=torch.float32)
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer.0"], spec)])


class Folder:
    """A model's folder with its configuration, and what vLLM makes of it with these arguments."""

    def __init__(self, path: Path, config: dict[str, Any]) -> None:
        path.mkdir(parents=True)
        (path / "config.json").write_text(json.dumps(config))
        self.path = path

    def config(self, **asked: Any) -> Any:
        from vllm.engine.arg_utils import EngineArgs

        asked = {"dtype": "float32", "max_model_len": 2048, **asked}
        return EngineArgs(model=str(self.path), skip_tokenizer_init=True, **asked).create_engine_config()

    def fields(self, **asked: Any) -> dict[str, str]:
        return dict(identity.engine_fields(self.config(**asked), groups(), "0.32.0").items)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    return Folder(tmp_path_factory.mktemp("models") / "small", SMALL)


# ---------------------------------------------------------------------------- positions


def test_longrope_split_where_its_factors_change_alone(tmp_path: Path, small: Folder) -> None:
    config = {**SMALL, "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rope_parameters": LONGROPE,
              "original_max_position_embeddings": 4096, "pad_token_id": 0}
    model = Folder(tmp_path / "longrope", config)
    short, shorter, longer = (model.fields(max_model_len=length) for length in (4096, 2048, 8192))
    assert short == shorter != longer
    assert short["positions"] == "short factors" and longer["positions"] == "long factors"
    assert small.fields(max_model_len=4096) == small.fields(max_model_len=8192)
    assert "positions" not in small.fields()


def test_dynamic_scaling_split_where_the_table_has_the_length(small: Folder) -> None:
    def told(architecture: str, length: int, **more: Any) -> object:
        rope = {"rope_type": "dynamic", "factor": 2.0}
        config = {"architectures": [architecture], "text_config": {"rope_parameters": {"full_attention": rope}}}
        return positions.position_fields(SimpleNamespace(max_model_len=length, **more), config)

    assert told("LlamaForCausalLM", 2048) == told("LlamaForCausalLM", 4096) == ()
    assert told("Plamo3ForCausalLM", 2048) != told("Plamo3ForCausalLM", 4096)
    with pytest.raises(UnknownIdentity, match="longest of a batch"):
        told("LlamaForCausalLM", 2048, model_impl="transformers")


def test_llama4_split_where_its_queries_are_tuned(small: Folder) -> None:
    def told(length: int, **generation: Any) -> object:
        model = SimpleNamespace(
            max_model_len=length, try_get_generation_config=lambda: generation, override_generation_config={}
        )
        return positions.position_fields(model, {"text_config": {"model_type": "llama4_text"}})

    assert told(4096) == told(32768) != told(32769)
    assert told(4096, attn_temperature_tuning=True) == told(65536) == told(65536, attn_temperature_tuning=True)


def test_longrope_without_its_length_says_how_to_name_it() -> None:
    rope = {key: value for key, value in LONGROPE.items() if key != "original_max_position_embeddings"}
    with pytest.raises(UnknownIdentity, match="--hf-overrides"):
        positions.position_fields(SimpleNamespace(max_model_len=2048), {"rope_scaling": rope})


def test_every_place_of_vllm_that_reads_the_length_is_judged() -> None:
    """A newer vLLM whose rotations or models read max_model_len elsewhere: judge it, in decisions/0005 and here."""
    import vllm

    root = Path(vllm.__file__).parent
    judged = {
        "model_executor/layers/rotary_embedding/phi3_long_rope_scaled_rope.py",  # its factors
        "model_executor/models/llama4.py",  # whether queries are tuned
        "model_executor/models/config.py",  # Nomic's table; EmbeddingGemma2's bound of itself
        *(f"model_executor/models/{name}.py" for name in (
            "minimax_m2", "plamo3", "cohere_compass", "embedding_gemma2",  # the table's length
            "deepseek_v2", "diffusion_gemma",  # sizes of buffers
            # How large a dummy image or sound is, or a prompt may be:
            "internvl", "kimi_vl", "qwen3_vl", "parakeet", "gemma4_mm", "deepseek_ocr", "nano_nemotron_vl", "step3_vl",
            "colpali", "voxtral_realtime", "voxtral", "qwen2_5_vl", "kimi_k25", "qwen2_vl", "idefics3", "glm4_1v",
            "lfm2_vl", "minicpmv", "ernie45_vl", "gemma3_mm", "mllama4",
        )),
    }
    found = {
        str(path.relative_to(root))
        for folder in ("model_executor/layers/rotary_embedding", "model_executor/models")
        for path in (root / folder).rglob("*.py")
        if re.search(r"\bmax_model_len\b", path.read_text())
    }
    assert found <= judged


# ---------------------------------------------------------------------------- images


def test_images_split_by_the_engines_settings(small: Folder) -> None:
    from vllm.config.multimodal import MultiModalConfig

    def told(**asked: Any) -> dict[str, str]:
        config = small.config()
        config.model_config.multimodal_config = MultiModalConfig(**asked)
        return dict(identity.engine_fields(config, groups(), "0.32.0").items)

    plain = told()
    assert plain == told(mm_processor_kwargs={}) == told(video_pruning_rate=0.0) == told(mm_processor_cache_gb=1)
    assert plain != small.fields()
    others = [
        told(mm_processor_kwargs={"max_pixels": 1}), told(mm_processor_kwargs={"max_pixels": 2}),
        told(video_pruning_rate=0.5), told(video_pruning_rate=0.25),
        told(media_io_kwargs={"video": {"num_frames": 40}}), told(mm_encoder_attn_dtype="fp8"),
    ]
    assert all(one not in [plain, *others[:i]] for i, one in enumerate(others))


# ---------------------------------------------------------------------------- needless splits, switches


def test_cache_dtype_asked_for_or_by_itself_shares(small: Folder) -> None:
    assert small.fields(dtype="bfloat16") == small.fields(dtype="bfloat16", kv_cache_dtype="bfloat16")
    assert small.fields(dtype="float32") != small.fields(dtype="float32", kv_cache_dtype="bfloat16")


def test_speculation_without_kv_shares(small: Folder) -> None:
    ngram = {"method": "ngram", "prompt_lookup_max": 3}
    assert small.fields() == small.fields(speculative_config={**ngram, "num_speculative_tokens": 2})


def test_number_of_drafts_shares(small: Folder, tmp_path: Path) -> None:
    draft = Folder(tmp_path / "draft", {**SMALL, "num_hidden_layers": 1})

    def told(number: int) -> dict[str, str]:
        return small.fields(speculative_config={
            "method": "draft_model", "model": str(draft.path), "num_speculative_tokens": number
        })

    assert told(2) == told(4) != small.fields()


@pytest.mark.parametrize("switch", identity.SWITCHES)
def test_switch_of_vllm_that_changes_pages_splits(small: Folder, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, before = small.config(), small.fields()
    monkeypatch.setenv(switch, "1")
    assert dict(identity.engine_fields(config, groups(), "0.32.0").items) != before


def test_configuration_that_lacks_a_field_says_so(small: Folder) -> None:
    config = small.config()
    del config.parallel_config.tensor_parallel_size
    with pytest.raises(ConfigurationError, match="tensor_parallel_size.*docs/vllm.md"):
        identity.engine_fields(config, groups(), "0.32.0")
