# SPDX-License-Identifier: Apache-2.0
"""Lists of names and values of real vLLM configurations: who shares with whom, without an engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import model as models
import pytest
from harness import transfer_config

import cistern.vllm
from cistern.engine import keys, options
from cistern.engine.facts import ConfigurationError, EngineFacts, GroupFacts, host
from cistern.engine.files import UnknownIdentity
from cistern.engine.orders import RankFacts, SaveOrder
from cistern.engine.rank import Rank
from cistern.engine.request import Adapter
from cistern.engine.shared_session import SharedSession
from cistern.vllm import identity, positions
from cistern.vllm.events import StoreEvents
from cistern.vllm.facts import images_counted, read_facts
from cistern.vllm.request import VllmRequest

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


def test_clients_send_embeddings_where_the_user_lets_them_alone(small: Folder) -> None:
    """vLLM takes a connector for one that brings KV of them: the engine ended with the first that had no tensor."""
    from vllm.config import VllmConfig
    from vllm.config.multimodal import MultiModalConfig

    if not hasattr(VllmConfig, "_resolve_mm_embedding_inputs"):
        pytest.skip("this vLLM takes those alone that the user lets it")
    for _ in range(2):  # as in a process that loads its plugins again
        cistern.vllm.register()

    def taken(transfer: Any, asked: bool = False, encoder: Any = None) -> tuple[bool, bool]:
        """Whether clients may send an image's embedding, and leave its tensor out."""
        config = small.config(kv_transfer_config=transfer)
        config.model_config.multimodal_config = images = MultiModalConfig(enable_mm_embeds=asked)
        config.ec_transfer_config = encoder
        config._resolve_mm_embedding_inputs()
        return images.enable_mm_embeds, images.allow_missing_mm_embeddings

    ours = transfer_config(socket="/nowhere", start_node=False)
    assert taken(ours) == taken(None) == (False, False)
    assert taken(ours, asked=True) == (True, False)
    assert taken(ours, encoder=SimpleNamespace(is_ec_consumer=True)) == (True, True)
    other = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    both = {"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "connectors": [other, ours]
    }}
    assert taken(both) == (True, True)  # the other one may bring KV of them


# ---------------------------------------------------------------------------- needless splits, switches


def named(uuid: str | None, content: str) -> str:
    """vLLM's name of an image in a request with processor settings."""
    from vllm.multimodal.processing.inputs import ProcessorInputs

    items: Any = {"image": SimpleNamespace(get_all_items_for_hash=lambda: [content])}
    asked = ProcessorInputs([1], items, {"image": [uuid]}, hf_processor_mm_kwargs={"max_pixels": 4})
    (name,) = asked.get_mm_hashes("model", "sha256")["image"]
    return str(name)


def test_image_that_a_client_named_not_shared_as_its_content() -> None:
    """Its name looks like a digest of what it holds, and is one of the name."""
    assert named("cat", "one image") == named("cat", "another") != named(None, "one image")
    request = SimpleNamespace(mm_features=[SimpleNamespace(identifier=named("cat", "one image"))])
    assert keys.content_hashed(request.mm_features[0].identifier)
    assert not VllmRequest(request, shares_images=False).content_hashed
    assert VllmRequest(request, shares_images=True).content_hashed
    assert VllmRequest(SimpleNamespace(mm_features=[]), shares_images=False).content_hashed


@pytest.mark.parametrize(("prefix", "processor", "counted"), [(True, 0, False), (False, 4, False), (False, 0, True)])
def test_counted_images_never_shared(prefix: bool, processor: float, counted: bool) -> None:
    config = SimpleNamespace(
        model_config=SimpleNamespace(multimodal_config=SimpleNamespace(mm_processor_cache_gb=processor)),
        cache_config=SimpleNamespace(enable_prefix_caching=prefix),
    )
    assert images_counted(config) is counted
    config.model_config.multimodal_config = None
    assert not images_counted(config)


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


SWITCHED = {
    **dict.fromkeys((
        "VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "VLLM_BATCH_INVARIANT", "VLLM_ROCM_QUICK_REDUCE_CAST_BF16_TO_FP16",
        "VLLM_HUMMING_USE_F16_ACCUM", "VLLM_CPU_INT4_W4A8", "VLLM_DEEPEPLL_NVFP4_DISPATCH",
        "VLLM_FLASHINFER_MOE_A2A_LOW_PRECISION_COMBINE", "VLLM_B12X_MOE_FP4_FORCE_A16",
        "VLLM_ROCM_USE_AITER_MOE_A4W4_DSV4", "VLLM_ROCM_USE_AITER_FP8BMM", "VLLM_ROCM_USE_AITER_FP4BMM",
        "VLLM_USE_DEEP_GEMM_E8M0",
    ), "1"),
    "VLLM_ROCM_QUICK_REDUCE_QUANTIZATION": "INT8", "VLLM_FLOAT32_MATMUL_PRECISION": "medium",
    "VLLM_MARLIN_INPUT_DTYPE": "int8", "VLLM_MOE_ROUTING_SIMULATION_STRATEGY": "uniform_random",
    "VLLM_VIDEO_LOADER_BACKEND": "opencv_dynamic",
    "VLLM_DISABLED_KERNELS": "CutlassNvFp4LinearKernel", "VLLM_XPU_INC_WNA16_BACKEND": "w4a8",
    "VLLM_HUMMING_ONLINE_QUANT_CONFIG": '{"b": 1}', "VLLM_HUMMING_INPUT_QUANT_CONFIG": '{"b": 1}',
}


@pytest.mark.parametrize("switch", SWITCHED)
def test_switch_of_vllm_that_changes_pages_splits(small: Folder, switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm.envs

    if switch not in vllm.envs.environment_variables:
        pytest.skip(f"this vLLM has no {switch}")
    config, before = small.config(), small.fields()
    monkeypatch.setenv(switch, SWITCHED[switch])
    assert dict(identity.engine_fields(config, groups(), "0.32.0").items) != before


def test_every_listed_switch_is_tested() -> None:
    assert set(identity.SWITCHES) == set(SWITCHED)


def test_switch_that_names_a_file_counts_by_its_content(
    small: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, place = small.config(), tmp_path / "quantization.json"

    def told(content: str) -> dict[str, str]:
        place.write_text(content)
        return dict(identity.engine_fields(config, groups(), "0.32.0").items)

    monkeypatch.setenv("VLLM_HUMMING_ONLINE_QUANT_CONFIG", str(place))
    one = told('{"b": 1, "a": 2}')
    assert one == told('{"a": 2, "b": 1}') != told('{"a": 2, "b": 3}')
    place.unlink()
    with pytest.raises(ConfigurationError, match="not known"):
        identity.engine_fields(config, groups(), "0.32.0")


@pytest.mark.parametrize(("part", "name", "value"), [
    ("attention_config", "indexer_kv_dtype", "fp8"), ("attention_config", "use_non_causal", True),
    ("attention_config", "use_prefill_query_quantization", True),
    ("attention_config", "disable_flashinfer_q_quantization", True),
    ("attention_config", "use_trtllm_attention", False),
    ("kernel_config", "moe_backend", "marlin"), ("kernel_config", "linear_backend", "marlin"),
    ("kernel_config", "linear_backend_per_quant", {"nvfp4": "marlin"}), ("", "additional_config", {"a": 1}),
])
def test_setting_of_vllm_that_changes_what_is_computed_splits(
    small: Folder, part: str, name: str, value: object
) -> None:
    config = small.config()
    of = getattr(config, part) if part else config
    if not hasattr(of, name):
        pytest.skip(f"this vLLM has no {name}")
    before = dict(identity.engine_fields(config, groups(), "0.32.0").items)
    object.__setattr__(of, name, value)
    assert dict(identity.engine_fields(config, groups(), "0.32.0").items) != before


def test_settings_in_another_order_share(small: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    config = small.config()

    def told(kernels: str, backends: dict[str, str]) -> dict[str, str]:
        monkeypatch.setenv("VLLM_DISABLED_KERNELS", kernels)
        object.__setattr__(config.kernel_config, "linear_backend_per_quant", backends)
        return dict(identity.engine_fields(config, groups(), "0.32.0").items)

    assert told("A,B", {"a": "marlin", "b": "torch"}) == told("B,A", {"b": "torch", "a": "marlin"})


def test_draft_with_other_cache_dtype_or_quantization_splits(small: Folder, tmp_path: Path) -> None:
    draft = Folder(tmp_path / "draft", {**SMALL, "num_hidden_layers": 1})
    config = small.config(speculative_config={
        "method": "draft_model", "model": str(draft.path), "num_speculative_tokens": 2
    })

    def told(of: Any, name: str, value: object) -> dict[str, str]:
        before = getattr(of, name, None)
        object.__setattr__(of, name, value)
        found = dict(identity.engine_fields(config, groups(), "0.32.0").items)
        object.__setattr__(of, name, before)
        return found

    speculative = config.speculative_config
    plain = told(speculative, "kv_cache_dtype", None)
    others = [
        told(speculative, "kv_cache_dtype", "fp8_e5m2"), told(speculative, "kv_cache_dtype", "fp8_e4m3"),
        told(speculative.draft_model_config, "quantization", "fp8"),
        told(speculative.draft_model_config, "dtype", "torch.float16"),
    ]
    assert all(one not in [plain, *others[:i]] for i, one in enumerate(others))


def test_configuration_that_lacks_a_field_says_so(small: Folder) -> None:
    whole = small.config()
    config = SimpleNamespace(
        model_config=whole.model_config, cache_config=whole.cache_config, speculative_config=None,
        parallel_config=SimpleNamespace(pipeline_parallel_size=1),
    )
    with pytest.raises(ConfigurationError, match="tensor_parallel_size.*docs/vllm.md"):
        identity.engine_fields(config, groups(), "0.32.0")


def test_window_reaches_as_far_back_as_its_pages_are_kept(small: Folder) -> None:
    """A draft of several modules has some tokens more kept: their pages are there to be loaded."""
    import torch
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec, SlidingWindowSpec

    if "extra_retained_tokens" not in SlidingWindowSpec.__dataclass_fields__:
        pytest.skip("this vLLM keeps none")
    kept = []
    for more in (0, 3):
        spec = SlidingWindowSpec(
            block_size=128, num_kv_heads=4, head_size=32, dtype=torch.float32, sliding_window=512,
            extra_retained_tokens=more,
        )
        kv = groups()
        kv.kv_cache_groups.append(KVCacheGroupSpec(["layer.1"], spec))
        kept.append([group.window_tokens for group in read_facts(small.config(), kv).engine.groups])
    assert kept == [[0, 512], [0, 515]]


# ---------------------------------------------------------------------------- without Cistern


def connector(config: Any, kv: Any, role: str) -> Any:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole

    from cistern.vllm.connector import CisternConnector

    return CisternConnector(config, KVConnectorRole[role], kv)


def chunked() -> Any:
    import torch
    from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    spec = ChunkedLocalAttentionSpec(
        block_size=128, num_kv_heads=4, head_size=32, dtype=torch.float32, attention_chunk_size=512
    )
    return KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer.0"], spec)])


def test_unsupported_group_runs_without_cistern_and_says_so_once(
    small: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1

    config = small.config(kv_transfer_config=transfer_config(socket="/nowhere", start_node=False))
    scheduler, worker = (connector(config, chunked(), role) for role in ("SCHEDULER", "WORKER"))
    assert caplog.text.count("runs without Cistern") == 1 and "ChunkedLocalAttentionSpec" in caplog.text
    request = SimpleNamespace(request_id="r")
    scheduler.bind_kv_cache_manager(SimpleNamespace(block_pool=None))
    scheduler.on_new_request(request)
    assert scheduler.get_num_new_matched_tokens(request, 0) == (0, False)
    scheduler.update_state_after_alloc(request, None, 0)
    metadata = scheduler.build_connector_meta(None)
    assert scheduler.request_finished_all_groups(request, ()) == (False, None)
    assert scheduler.request_finished(request, []) == (False, None)
    assert not scheduler.has_pending_push_work() and not list(scheduler.take_events())
    worker.register_kv_caches({})
    worker.bind_connector_metadata(metadata)
    worker.start_load_kv(None)
    worker.wait_for_save()
    assert worker.get_finished(set()) == (None, None) and worker.build_connector_worker_meta() is None
    for one in (scheduler, worker):
        assert isinstance(one, KVConnectorBase_V1) and not one.requires_kv_delivery
        one.shutdown()


def test_model_that_needs_every_token_computed_runs_without_cistern(
    small: Folder, caplog: pytest.LogCaptureFixture
) -> None:
    """A hit ends vLLM's pooling by mean with an error, and the engine with it: its own prefix cache is off there, but
    connectors are asked."""
    from vllm.config import PoolerConfig

    from cistern.vllm.connector import CisternConnector

    def made(pooling: str) -> Any:
        config = small.config(
            runner="pooling", convert="embed", pooler_config=PoolerConfig(seq_pooling_type=pooling),  # type: ignore[arg-type]
            kv_transfer_config=transfer_config(socket="/nowhere", start_node=False),
        )
        return connector(config, groups(), "SCHEDULER")

    for pooling in ("MEAN", "CLS"):
        assert not isinstance(made(pooling), CisternConnector)
    assert caplog.text.count("runs without Cistern: vLLM caches no prefixes") == 2
    last = made("LAST")
    assert isinstance(last, CisternConnector)
    last.shutdown()


def test_diffusion_model_runs_without_cistern(small: Folder) -> None:
    model = SimpleNamespace(is_diffusion=True, is_prefix_caching_supported=True)
    with pytest.raises(ConfigurationError, match="diffusion"):
        read_facts(SimpleNamespace(model_config=model), groups())


def test_unsupported_group_stops_an_engine_that_requires_cistern(small: Folder) -> None:
    config = small.config(kv_transfer_config=transfer_config(socket="/nowhere", required=True))
    with pytest.raises(ConfigurationError, match="ChunkedLocalAttentionSpec"):
        connector(config, chunked(), "SCHEDULER")


FACTS = EngineFacts(1, 1, 128, 128, 8, (GroupFacts("group0", 0, 1, ("layer.0",), None),), False, "vllm.cistern")


def test_pages_that_cannot_be_moved_end_sharing_and_nobody_waits(caplog: pytest.LogCaptureFixture) -> None:
    rank = Rank(options.Options(), FACTS, 0)
    rank.register({})
    report = rank.report()
    assert report is not None and report.facts is not None and "no KV cache" in report.facts.unfit
    opened: list[Any] = []
    node = SimpleNamespace(session=None, refusal="", failures=0, start_failure="", open=opened.append)
    shared = SharedSession(options.Options(), FACTS, lambda: None, lambda: (), node, lambda: None)  # type: ignore[arg-type]
    for _ in range(2):
        shared.add_rank(report.facts)
    shared.specify_first()
    assert shared.refused and not opened
    assert caplog.text.count("runs without Cistern: layer layer.0") == 1
    rank.close()


def test_pages_that_cannot_be_moved_stop_an_engine_that_requires_cistern_at_its_start() -> None:
    rank = Rank(options.Options(required=True), FACTS, 0)
    with pytest.raises(ConfigurationError, match="no KV cache"):
        rank.register({})
    rank.close()


@pytest.mark.parametrize("required", [True, False])
def test_ranks_on_several_hosts_do_not_share(caplog: pytest.LogCaptureFixture, required: bool) -> None:
    node = SimpleNamespace(session=None, refusal="", failures=0, start_failure="", open=lambda spec: None)
    chosen = options.Options(required=required)
    shared = SharedSession(chosen, FACTS, lambda: None, lambda: (), node, lambda: None)  # type: ignore[arg-type]
    shared.add_rank(RankFacts(0, host(), "cpu", "", (1,), ("one",)))
    assert not shared.refused
    other = RankFacts(1, "there", "cpu", "", (1,), ("one",))
    if required:
        with pytest.raises(ConfigurationError, match="2 hosts"):
            shared.add_rank(other)
    else:
        shared.add_rank(other)
        assert shared.refused and "run all ranks of an engine on one" in caplog.text


def test_ranks_on_another_host_than_their_scheduler_do_not_share(caplog: pytest.LogCaptureFixture) -> None:
    """The node is on its host: they would look for it on theirs for ever, and requests of the start would wait."""
    node = SimpleNamespace(session=None, refusal="", failures=0, start_failure="", open=lambda spec: None)
    shared = SharedSession(options.Options(), FACTS, lambda: None, lambda: (), node, lambda: None)  # type: ignore[arg-type]
    shared.add_rank(RankFacts(0, "there", "cpu", "", (1,), ("one",)))
    assert shared.refused and "with its scheduler" in caplog.text


def test_nobody_waits_while_the_weights_are_read() -> None:
    opened: list[Any] = []
    known: list[identity.Fields] = []
    node = SimpleNamespace(session=None, refusal="", failures=0, start_failure="", open=opened.append)
    shared = SharedSession(
        options.Options(), FACTS, lambda: known[0] if known else None, lambda: (), node, lambda: None  # type: ignore[arg-type]
    )
    shared.add_rank(RankFacts(0, host(), "cpu", "", (1,), ("one",)))
    shared.specify_first()
    assert not opened and not shared.expected(0)
    known.append(identity.Fields((("weights", "files 17"),)))
    shared.specify_first()
    assert dict(opened[0].fields[0])["weights"] == "files 17" and shared.expected(0)


# ---------------------------------------------------------------------------- versions, events


LACKS = """
import vllm
import vllm.distributed.kv_transfer.kv_connector.v1.base as base
del base.KVConnectorTransferResults
vllm.__version__ = "0.29.1"
import cistern.vllm.connector
"""


def test_version_that_lacks_what_is_imported_said_plainly() -> None:
    ended = subprocess.run([sys.executable, "-c", LACKS], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    last = ended.stderr.strip().splitlines()[-1]
    assert "UntestedVersion: vLLM 0.29.1 lacks" in last and "KVConnectorTransferResults" in last
    assert "tested with 0.32, 0.31, 0.30: install one of them" in last


def test_version_without_connectors_told_when_plugins_are_loaded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", "0.5.0")
    monkeypatch.setitem(sys.modules, "vllm.distributed.kv_transfer.kv_connector.factory", None)
    cistern.vllm.register()
    assert "vLLM 0.5.0 lacks" in caplog.text and "install one of them" in caplog.text


ORDER = SaveOrder(1, 1, 0, 1, b"p" * 32, [b"k" * 32, b"l" * 32], [[b"1", b"2"]], [[1, 2]])


def asked_for(adapter: Adapter | None) -> Any:
    """Of three blocks of two tokens, with a salt that is in the second's hash."""
    def beside(first: int, last: int) -> tuple[str, ...] | None:
        assert last == first + 2
        return ("salt",) if first == 2 else None

    return SimpleNamespace(token_ids=[1, 2, 3, 4, 5, 6], adapter=adapter, hashed_beside=beside)


def announced(blocks: int) -> StoreEvents:
    events = StoreEvents(2)
    events.ordered(ORDER, asked_for(Adapter("a", 7, "/a", False)))
    events.published(ORDER.id, blocks)
    return events


def test_events_in_the_format_that_subscribers_read() -> None:
    """Types as in vLLM's own example of a subscriber: whole numbers for hashes, a medium that routers know."""
    import msgspec
    from vllm.distributed import kv_events

    array_like = kv_events.KVCacheEvent.__struct_config__.array_like
    stored = msgspec.defstruct(
        "BlockStored",
        [("block_hashes", list[int]), ("parent_block_hash", int | None), ("token_ids", list[int]), ("block_size", int),
         ("lora_id", int | None), ("medium", str | None), ("lora_name", str | None),
         ("extra_keys", list[tuple[str, ...] | None] | None)],
        tag=True, array_like=array_like, omit_defaults=True,
    )
    removed = msgspec.defstruct(
        "BlockRemoved", [("block_hashes", list[int]), ("medium", str | None)],
        tag=True, array_like=array_like, omit_defaults=True,
    )
    batch = msgspec.defstruct(
        "KVEventBatch",
        [("ts", float), ("events", list[stored | removed])],  # type: ignore[valid-type]
        array_like=True,
    )
    events = announced(1)
    events.forked()
    sent = msgspec.msgpack.Encoder().encode(kv_events.KVEventBatch(ts=1.0, events=list(events.take())))
    event, loss = msgspec.msgpack.Decoder(batch).decode(sent).events
    low = [int.from_bytes(letter * 8, "big") for letter in (b"k", b"p")]
    assert (event.block_hashes, event.parent_block_hash) == ([low[0]], low[1])
    assert (event.token_ids, event.block_size, event.lora_id) == ([3, 4], 2, 7)
    assert event.medium == kv_events.MEDIUM_CPU
    assert event.extra_keys == [("salt",)]
    assert (loss.block_hashes, loss.medium) == ([low[0]], event.medium)  # routers look for both
    assert not list(events.take())


def test_events_tell_what_hashes_are_of_beside_tokens() -> None:
    """As vLLM's own do: a router that computes keys of tokens finds no block of another salt."""
    from cistern.vllm.request import VllmRequest

    image = SimpleNamespace(identifier="image", mm_position=SimpleNamespace(offset=18, length=10))
    asked: Any = SimpleNamespace(mm_features=[image], lora_request=None, cache_salt="salt", prompt_embeds=None)
    request = VllmRequest(asked, False)
    assert request.hashed_beside(0, 16) == ("salt",)
    assert request.hashed_beside(16, 32) == (("image", 2),)
    assert request.hashed_beside(32, 48) is None


def removed_by(events: StoreEvents) -> list[int]:
    return [one for event in events.take() if type(event).__name__ == "BlockRemoved" for one in event.block_hashes]


def test_lost_block_taken_back_once() -> None:
    events, now = announced(2), time.monotonic()
    keys = [b"x" * 32, *ORDER.keys]
    events.missing(keys, now)
    assert not removed_by(events)  # it may have been asked before they were published
    events.missing(keys[:2], now + 1000)
    assert removed_by(events) == [int.from_bytes(b"k" * 8, "big")]
    events.missing(keys, now + 1000)
    assert removed_by(events) == [int.from_bytes(b"l" * 8, "big")]
    events.missing(keys, now + 1000)
    events.forked()
    assert not removed_by(events)


def test_newest_announced_blocks_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cistern.vllm.events.MAX_ANNOUNCED", 1)
    events = announced(2)
    events.forked()
    assert removed_by(events) == [int.from_bytes(b"l" * 8, "big")]


def test_save_under_way_at_a_reset_is_not_announced() -> None:
    events = announced(0)
    list(events.take())
    events.ordered(ORDER, asked_for(None))
    events.forked()
    events.published(ORDER.id, 2)
    assert not list(events.take())
