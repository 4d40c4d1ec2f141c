# SPDX-License-Identifier: Apache-2.0
"""What computes KV beside vLLM's own code: whose files count, most of real vLLM configurations."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from test_fields import SMALL, Folder, groups

from cistern.engine.files import UnknownIdentity, weights_digest
from cistern.vllm import identity, sources
from cistern.vllm.facts import read_facts


@pytest.fixture
def loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A model with weights, of an engine that begins later than all that a test writes."""
    monkeypatch.setattr(identity, "process_began", lambda: 1e12)
    folder = Folder(tmp_path / "loaded", SMALL)
    (folder.path / "model.safetensors").write_bytes(bytes(1000))
    return folder


def test_weights_are_those_that_the_loader_reads(tmp_path: Path) -> None:
    """A folder may have the same model in several forms, and others' files beside an adapter's."""

    def told(kind: str) -> str:
        config = SimpleNamespace(model=str(tmp_path), revision=None, seed=0)
        return identity.weights(config, SimpleNamespace(load_format=kind, download_dir=None), 1e12)

    (tmp_path / "model.safetensors").write_bytes(bytes(1000))
    plain = told("auto")
    (tmp_path / "model.pt").write_bytes(b"one")
    (tmp_path / "model.bin").write_bytes(b"one")
    first = told("pt")
    assert plain == told("auto") == told("hf") == told("safetensors") != first
    (tmp_path / "model.pt").write_bytes(b"two")
    assert told("auto") == plain and told("pt") not in (plain, first)
    with pytest.raises(UnknownIdentity, match="npcache"):
        told("npcache")
    (tmp_path / "consolidated.safetensors").write_bytes(bytes(10))
    assert told("auto") == told("mistral") != told("hf") == told("safetensors")
    before = told("hf")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert told("hf") != before
    (tmp_path / "adapter_config.json").write_text("{}")
    with_one = weights_digest(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"two")
    assert weights_digest(tmp_path) != with_one


def of_class(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """The tests' model is computed by a class of this module."""
    from vllm import ModelRegistry

    entry = SimpleNamespace(module_name=module, class_name="Model")
    monkeypatch.setitem(ModelRegistry.models, "LlamaForCausalLM", entry)


def test_models_that_a_configuration_names_count_by_their_files(
    loaded: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ultravox's language model is another one than its folder's: its KV was found after it had changed."""
    config = loaded.config()

    def told(content: bytes) -> str:
        (other.path / "model.safetensors").write_bytes(content)
        return identity.weights_finder(config)()

    for name in ("text_model_id", "audio_model_id"):
        other = Folder(tmp_path / name, SMALL)
        setattr(config.model_config.hf_config, name, str(other.path))
        assert told(b"one") == told(b"two")
    of_class(monkeypatch, "vllm.model_executor.models.ultravox")
    for name in ("text_model_id", "audio_model_id"):
        other = Folder(tmp_path / f"another-{name}", SMALL)
        setattr(config.model_config.hf_config, name, str(other.path))
        assert told(b"one") == told(b"one") != told(b"two")
    config.model_config.hf_config.text_model_id = "nobody/no-such-model"
    with pytest.raises(UnknownIdentity, match="nobody/no-such-model"):
        identity.weights_finder(config)()
    config.model_config.hf_config.text_model_id = None
    assert identity.weights_finder(config)()


@pytest.mark.parametrize(("module", "file"), [
    ("kimi_audio", "whisper-large-v3/model.safetensors"), ("mimo_v2_omni", "audio_tokenizer/model.safetensors"),
    ("funaudiochat", "speech_tokenizer/preprocessor_config.json"), ("cosmos3", "transformer/model.safetensors"),
    ("jina", "adapters/retrieval/adapter_model.safetensors"), ("qwen3_dflash", "mask_embedding.pt"),
])
def test_files_that_a_class_loads_beside_the_weights_count(
    loaded: Folder, module: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, place = loaded.config(), loaded.path / file
    place.parent.mkdir(parents=True, exist_ok=True)

    def told(content: bytes) -> str:
        place.write_bytes(content)
        return identity.weights_finder(config)()

    assert told(b"one") == told(b"two")
    of_class(monkeypatch, f"vllm.model_executor.models.{module}")
    before = told(b"one")
    assert before == told(b"one") != told(b"two")
    place.unlink()
    assert identity.weights_finder(config)() not in (before, "")


def test_class_that_loads_files_which_are_not_known_shares_with_nobody(
    loaded: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "another_plugin_of_this_test"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "model.py").write_text("class Model:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = loaded.config()
    of_class(monkeypatch, "another_plugin_of_this_test.model")
    assert identity.weights_finder(config)()
    (package / "model.py").write_text("class Model:\n    secondary_weights = []\n")
    with pytest.raises(UnknownIdentity, match=r"another_plugin_of_this_test.model:Model.*secondary_weights"):
        identity.weights_finder(config)()


def test_every_class_of_vllm_that_loads_files_beside_its_weights_is_judged() -> None:
    """A newer vLLM with another one: its files belong into BESIDE_WEIGHTS, and into decisions/0005."""
    import vllm

    root, judged = Path(vllm.__file__).parent, set(sources.BESIDE_WEIGHTS)
    judged |= {"adapters"}  # makes a pooling model of another class, with heads behind all KV
    code = {path.stem: path.read_text() for path in (root / "model_executor/models").rglob("*.py")}
    code |= {str(path): path.read_text() for path in (root / "models").rglob("*.py")}
    loading = {name for name, text in code.items() if sources.ELSEWHERE.search(text)}
    assert loading <= judged
    parts = "|".join(name for name in sorted(loading) if sources.BESIDE_WEIGHTS.get(name))
    by_import = re.compile(rf"^from \.({parts}) import|^from vllm\.model_executor\.models\.({parts}) import", re.M)
    assert {name for name, text in code.items() if by_import.search(text)} <= judged


def test_what_is_made_of_an_image_counts_where_a_model_takes_images(loaded: Folder) -> None:
    from vllm.config.multimodal import MultiModalConfig

    config = loaded.config()

    def told(file: str, content: str) -> str:
        (loaded.path / file).write_text(content)
        return identity.weights_finder(config)()

    assert told("preprocessor_config.json", '{"max_pixels": 1}') == told("preprocessor_config.json", "{}")
    config.model_config.multimodal_config = MultiModalConfig()
    for file in ("preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json", "tekken.json"):
        one = told(file, '{"max_pixels": 1}')
        assert one == told(file, '{"max_pixels": 1}') != told(file, '{"max_pixels": 2}')
    assert told("processing.py", "1") == told("processing.py", "2")
    config.model_config.trust_remote_code = True
    assert told("processing.py", "1") != told("processing.py", "2")


def test_version_of_transformers_counts_where_its_code_computes(
    loaded: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(config: Any, version: str) -> str:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr("importlib.metadata.version", lambda name: version)
            return identity.weights_finder(config)()

    config = loaded.config()
    assert told(config, "1") == told(config, "2")
    by_transformers = loaded.config(model_impl="transformers")
    assert told(by_transformers, "1") != told(by_transformers, "2")


def test_code_of_another_repository_counts_by_its_commit(loaded: Folder) -> None:
    config = loaded.config(model_impl="transformers")
    model = config.model_config
    model.trust_remote_code = True
    model.hf_config.auto_map = {"AutoModel": "org/code--modeling.Model"}
    with pytest.raises(UnknownIdentity, match="--code-revision"):
        identity.weights_finder(config)()
    model.code_revision = "main"
    with pytest.raises(UnknownIdentity, match="org/code"):
        identity.weights_finder(config)()
    model.code_revision = "a" * 40
    one = identity.weights_finder(config)()
    model.code_revision = "b" * 40
    assert identity.weights_finder(config)() != one


def test_class_of_a_plugin_counts_by_its_packages_code(
    loaded: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm import ModelRegistry

    config = loaded.config()
    own = identity.weights_finder(config)()
    assert "class" not in own
    package = tmp_path / "a_plugin_of_this_test"
    (package / "models").mkdir(parents=True)
    for file in ("__init__.py", "models/__init__.py", "models/llama.py", "layers.py"):
        (package / file).write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(ModelRegistry.models, "LlamaForCausalLM", SimpleNamespace(
        module_name="a_plugin_of_this_test.models.llama", class_name="Llama"
    ))
    one = identity.weights_finder(config)()
    assert one != own and one == identity.weights_finder(config)()
    (package / "layers.py").write_text("2")
    assert identity.weights_finder(config)() not in (one, own)
    monkeypatch.setitem(ModelRegistry.models, "LlamaForCausalLM", SimpleNamespace(
        module_name="no_package_of_this_host.models", class_name="Llama"
    ))
    with pytest.raises(UnknownIdentity, match="no_package_of_this_host"):
        identity.weights_finder(config)()


def test_draft_of_another_loader_is_not_what_its_files_hold(loaded: Folder, tmp_path: Path) -> None:
    from vllm.config import LoadConfig

    draft = Folder(tmp_path / "draft", {**SMALL, "num_hidden_layers": 1})
    (draft.path / "model.safetensors").write_bytes(bytes(500))
    config = loaded.config(speculative_config={
        "method": "draft_model", "model": str(draft.path), "num_speculative_tokens": 2
    })
    assert "draft files" in identity.weights_finder(config)()
    config.speculative_config.draft_load_config = LoadConfig(load_format="dummy")
    assert "draft dummy" in identity.weights_finder(config)()


def test_what_an_engine_applies_of_an_adapter_is_told(loaded: Folder) -> None:
    def told(**asked: Any) -> str:
        config = loaded.config(enable_lora=True)
        for name, value in asked.items():
            object.__setattr__(config.lora_config, name, value)
        return read_facts(config, groups()).engine.adapters

    assert told() == told(max_loras=2) == read_facts(loaded.config(), groups()).engine.adapters == ""
    others = [
        told(target_modules=["q_proj"]), told(target_modules=["q_proj", "o_proj"]), told(lora_dtype="bfloat16"),
        told(enable_tower_connector_lora=True), told(enable_mixed_moe_lora_format=True),
    ]
    assert len({"", *others}) == 6
    assert told(target_modules=["q_proj", "o_proj"]) == told(target_modules=["o_proj", "q_proj"])
