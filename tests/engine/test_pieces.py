# SPDX-License-Identifier: Apache-2.0
"""Options, keys, identity, versions: the small pieces, without an engine."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import multiprocessing
import os
import shutil
import struct
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cistern import Hints, MatchRun
from cistern.engine import cpus, digests, files, identity, keys, options, tiers
from cistern.engine.changes import WeightChanges
from cistern.engine.files import UnknownIdentity
from cistern.engine.weights import Weights
from cistern.vllm import identity as vllm_identity
from cistern.vllm import versions
from cistern.vllm.updates import Sample, watch

# ---------------------------------------------------------------------------- options


def test_options_have_default_and_help() -> None:
    assert options.read(None) == options.Options()
    for one in options.fields(options.Options):
        assert one.metadata["help"] and one.metadata["check"](one.name, one.default) == one.default


def test_options_and_parameters_in_the_manual() -> None:
    manual = (Path(__file__).parents[2] / "docs" / "vllm.md").read_text()
    for one in options.fields(options.Options):
        assert f"| `{one.name}` | `{json.dumps(one.default)}` | {one.metadata['help']} |" in manual
    for one in options.fields(options.RequestParameters):
        assert f"| `cistern.{one.name}` | `{json.dumps(one.default)}` | {one.metadata['help']} |" in manual


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        ({"memori": "1GiB"}, "nearest: memory"),
        ({"memory": "12"}, "memory: '12' is not a size"),
        ({"memory": 12}, "is not a size"),
        ({"required": "yes"}, "required: 'yes' is not true or false"),
        ({"on_reset": "flush"}, "fork, ignore, drop"),
        ({"load_timeout_s": 0}, "from 0.05 to 300"),
        ({"linger_s": True}, "whole number"),
        ({"max_pages_share": 2}, "max_pages_share"),
        ({"flash_write": "selective:0"}, "from 1 to 255"),
        ({"flash_write": "selective:256"}, "from 1 to 255"),
        ({"flash_write": "sometimes"}, "through, back, selective"),
    ],
)
def test_wrong_option_named_with_its_value(extra: dict[str, object], says: str) -> None:
    with pytest.raises(options.WrongOption, match=says):
        options.read(extra)


def test_parameters_foreign_ignored_wrong_means_neither() -> None:
    assert options.read_parameters({"do_remote_prefill": True, "ttl_s": 3}) == (options.RequestParameters(), [])
    nothing = {"cistern.ttl_s": None, "cistern.conversation": None}  # as a client says what it does not set
    assert options.read_parameters(nothing) == (options.RequestParameters(), [])
    parameters, _ = options.read_parameters({"cistern.ttl_s": 3, "cistern.no_load": True})
    assert parameters == options.RequestParameters(no_load=True, ttl_s=3)
    parameters, wrong = options.read_parameters({"cistern.no_svae": True})
    assert parameters.no_save and parameters.no_load and "no_svae" in wrong[0]
    for given in ("cistern.no_load", ["cistern.no_load"], 7):  # OpenAI's servers hand on a text in vllm_xargs
        parameters, (text,) = options.read_parameters(given)
        assert parameters.no_save and parameters.no_load and "is not a mapping" in text


@pytest.mark.parametrize(
    ("params", "says"),
    [
        ({"cistern.conversation": ""}, "1 to 256 bytes"),
        ({"cistern.conversation": "x" * 257}, "1 to 256 bytes"),
        ({"cistern.conversation": 7}, "7 is not a name"),
        ({"cistern.conversation": "\ud800"}, "'\\ud800' is not a name of 1 to 256 bytes of UTF-8"),
        ({"cistern.end_conversation": True}, "no cistern.conversation"),
        ({"cistern.end_conversation": "talk", "cistern.conversation": "talk"}, "not true or false"),
        ({"cistern.priority": 1.5}, "whole number from -1000 to 1000"),
        ({"cistern.priority": 1001}, "whole number from -1000 to 1000"),
        ({"cistern.outlook": "alive"}, "not one of unknown, extended, ended, tool"),
        ({"cistern.importance": 2}, "not one of normal, low, high, keep"),
        ({"cistern.next_turn_s": -1}, "number from 0 to 86400"),
        ({"cistern.next_turn_s": "soon"}, "number from 0 to 86400"),
        ({"cistern.next_turn_s": 5, "cistern.outlook": "ended"}, "after which none is"),
    ],
)
def test_wrong_parameter_named_with_its_value(params: dict[str, object], says: str) -> None:
    (text,) = options.read_parameters(params)[1]
    assert says in text


def test_what_is_said_of_a_wrong_parameter_is_as_short_however_long_that_is() -> None:
    _, wrong = options.read_parameters({"cistern.conversation": "x" * 100_000, "cistern." + "y" * 100_000: 1})
    assert [len(text) < 500 for text in wrong] == [True, True]
    assert wrong[0].startswith("cistern.conversation: 'xxx") and wrong[0].endswith("1 to 256 bytes of UTF-8")


def test_hints_are_what_the_request_says() -> None:
    assert options.read_parameters(None)[0].hints == Hints()
    parameters, wrong = options.read_parameters(
        {"cistern.outlook": "tool", "cistern.next_turn_s": 1.5, "cistern.importance": "keep"}
    )
    assert (parameters.hints, wrong) == (Hints("tool", "keep", 1500), [])


# ---------------------------------------------------------------------------- keys


def test_key_of_a_block_is_the_hash_at_its_end() -> None:
    hashes = [bytes([i]) * 32 for i in range(11)]
    assert keys.new_keys(hashes, 0, 16, 16) == hashes
    assert keys.new_keys(hashes, 0, 16, 64) == [hashes[3], hashes[7]]
    assert keys.new_keys(hashes, 1, 16, 64) == [hashes[7]]
    assert keys.new_keys(hashes, 2, 16, 64) == []


@pytest.mark.parametrize(
    ("identifier", "good"),
    [("a" * 64, True), ("lora:" + "0" * 64, True), ("b" * 128, True), ("17-image-0", False), ("my-cat.png", False),
     ("A" * 64, False), ("", False), (None, False)],
)
def test_image_identifier_must_be_a_digest(identifier: str | None, good: bool) -> None:
    assert keys.content_hashed(identifier) is good


# ---------------------------------------------------------------------------- identity


def write_shard(path: Path, body: bytes, name: str = "w") -> None:
    header = json.dumps({name: {"dtype": "U8", "shape": [len(body)], "data_offsets": [0, len(body)]}}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + body)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    write_shard(folder / "model.safetensors", bytes(300_000))
    return folder


def test_weights_elsewhere_same_digest(model: Path, tmp_path: Path) -> None:
    other = tmp_path / "another name"
    other.mkdir()
    for file in model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    (other / "README.md").write_text("not content")
    assert files.weights_digest(model) == files.weights_digest(other)


@pytest.mark.parametrize("where", [0, 299_999])
def test_other_weights_of_same_size_and_name_other_digest(model: Path, where: int) -> None:
    before = files.weights_digest(model)
    body = bytearray(300_000)
    body[where] = 1
    write_shard(model / "model.safetensors", bytes(body))
    assert files.weights_digest(model) != before


def test_other_configuration_other_digest(model: Path) -> None:
    before = files.weights_digest(model)
    (model / "config.json").write_text('{"rope_theta": 2}')
    assert files.weights_digest(model) != before


def test_files_changed_after_the_start_unknown(model: Path) -> None:
    changed = (model / "model.safetensors").stat().st_ctime
    files.weights_digest(model, changed)
    with pytest.raises(UnknownIdentity, match="changed after"):
        files.weights_digest(model, changed - 1)


def test_every_byte_of_a_file_counts(model: Path) -> None:
    """Merged adapters, frozen parts and scales of an 8-bit cache change what lies between a shard's edges."""
    before = files.weights_digest(model)
    body = bytearray(300_000)
    body[150_000] = 1
    write_shard(model / "model.safetensors", bytes(body))
    middle = files.weights_digest(model)
    assert middle != before
    write_shard(model / "model.safetensors", bytes(300_000), "model.layers.0.self_attn.k_scale")
    assert files.weights_digest(model) not in (before, middle)


@pytest.fixture
def remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of digests, of this test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return digests.digests_folder()


def test_digests_of_tests_stay_out_of_the_users_cache(own_cache: Path) -> None:
    assert own_cache in digests.digests_folder().parents


def test_file_read_once_while_its_state_stands(
    model: Path, remembered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "SETTLED_S", -60.0)  # as if the files were a minute old
    first = files.weights_digest(model)
    assert len(list(remembered.iterdir())) == 2 and remembered.stat().st_mode & 0o077 == 0
    with monkeypatch.context() as without:
        without.setattr(hashlib, "file_digest", lambda *_: pytest.fail("it was read again"))
        assert files.weights_digest(model) == first
    write_shard(model / "model.safetensors", bytes(299_999) + b"x")
    assert files.weights_digest(model) != first


def test_digests_that_nobody_asks_for_are_forgotten(
    model: Path, remembered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "SETTLED_S", -60.0)
    files.weights_digest(model)
    asked, *others = sorted(remembered.iterdir())
    long_ago = time.time() - 100 * digests.DAY_S
    for one in (asked, *others):
        os.utime(one, (long_ago, long_ago))
    assert digests._read(asked)
    digests._forget_unasked.cache_clear()
    digests._write(remembered / "new", "0" * 64)
    assert {one.name for one in remembered.iterdir()} == {asked.name, "new"}


def test_file_that_has_just_changed_not_remembered(model: Path, remembered: Path) -> None:
    files.weights_digest(model)
    assert not remembered.exists()


def test_full_disk_costs_the_next_start_a_reading_and_leaves_nothing(
    model: Path, remembered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "SETTLED_S", -60.0)
    right, write = files.weights_digest(model), Path.write_text
    shutil.rmtree(remembered)

    def full(self: Path, text: str, **more: Any) -> int:
        write(self, text[:10], **more)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", full)
    assert files.weights_digest(model) == right
    assert not list(remembered.iterdir())


def test_digests_that_others_may_write_not_believed(model: Path, remembered: Path) -> None:
    right = digests.file_digest(model / "config.json")
    remembered.mkdir(parents=True)
    remembered.chmod(0o777)
    place = remembered / "-".join(f"{number:x}" for number in digests.state_of(model / "config.json"))
    place.write_text("0" * 64)
    assert digests.file_digest(model / "config.json") == right
    remembered.chmod(0o700)
    assert digests.file_digest(model / "config.json") == "0" * 64


def test_files_that_vanish_or_change_while_they_are_read_unknown(
    model: Path, remembered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, shard = hashlib.file_digest, model / "model.safetensors"

    def changing(file: Any, kind: str) -> Any:
        digest = read(file, kind)
        write_shard(shard, bytes(10))
        return digest

    def vanishing(file: Any, kind: str) -> Any:
        shard.unlink(missing_ok=True)
        return read(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", changing)
    with pytest.raises(UnknownIdentity, match="chang"):
        files.weights_digest(model)
    monkeypatch.setattr(hashlib, "file_digest", vanishing)
    with pytest.raises(UnknownIdentity, match="No such file"):
        files.weights_digest(model)


def test_weights_found_out_beside_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    go, logger = threading.Event(), logging.getLogger("vllm.cistern.test")

    def find() -> str:
        go.wait()
        return "files 17"

    held = Weights(find, logger)
    assert held.value is None and not held.wait(0)
    go.set()
    assert held.wait(60) and held.value == "files 17"

    def fail() -> str:
        raise UnknownIdentity("no weights there")

    first, second = Weights(fail, logger), Weights(fail, logger)
    assert first.wait(60) and second.wait(60)
    assert first.value != second.value and str(first.value).startswith("unknown")
    assert "shares its KV with no other: no weights there" in caplog.text


COMMIT, LATER = "a" * 40, "b" * 40


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A hub's cache with one model of two commits, as its client keeps it."""
    place = tmp_path / "hub" / "models--org--name"
    for commit, body in ((COMMIT, b"one"), (LATER, b"two")):
        folder = place / "snapshots" / commit
        folder.mkdir(parents=True)
        for name, blob in (("config.json", b"{}"), ("model.safetensors", body)):
            large = name.endswith("safetensors")
            where = place / "blobs" / (hashlib.sha256 if large else hashlib.sha1)(blob).hexdigest()
            where.parent.mkdir(exist_ok=True)
            where.write_bytes(blob)
            (folder / name).symlink_to(os.path.relpath(where, folder))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(COMMIT)
    return tmp_path / "hub"


def test_hub_model_from_where_it_was_loaded(hub: Path) -> None:
    began = time.time() + 60
    found = files.hub_snapshot("org/name", None, str(hub), None, began)
    assert found.name == COMMIT
    assert files.hub_snapshot("org/name", LATER, str(hub), None, 0.0).name == LATER
    with pytest.raises(UnknownIdentity, match="not to be resolved"):
        files.hub_snapshot("org/name", None, str(hub / "elsewhere"), None, began)
    with pytest.raises(UnknownIdentity, match="is not at"):
        files.hub_snapshot("org/name", "c" * 40, str(hub), None, began)


def test_branch_that_moved_while_the_engine_loaded_unknown(hub: Path) -> None:
    ref = hub / "models--org--name" / "refs" / "main"
    began = ref.stat().st_ctime - 1
    assert files.hub_snapshot("org/name", None, str(hub), COMMIT, began).name == COMMIT  # this engine downloaded it
    ref.write_text(LATER)
    with pytest.raises(UnknownIdentity, match="moved to bbbbbbbbbbbb.*a commit as its revision"):
        files.hub_snapshot("org/name", None, str(hub), COMMIT, began)


def test_hub_model_and_its_copy_share(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a name, under the path of its snapshot, and as a copy of its files; blobs are not read, they are named."""
    load = SimpleNamespace(load_format="auto", download_dir=str(hub))
    snapshot = hub / "models--org--name" / "snapshots" / COMMIT

    def told(model: str) -> str:
        config = SimpleNamespace(model=model, revision=None, seed=0, hf_config=SimpleNamespace(_commit_hash=COMMIT))
        return vllm_identity.weights(config, load, time.time() + 60)

    copy = tmp_path / "copy"
    shutil.copytree(snapshot, copy)
    assert told("org/name") == told(str(snapshot)) == told(str(copy))
    digest, read = hashlib.file_digest, []

    def noted(file: Any, kind: str) -> Any:
        read.append(Path(file.name).name)
        return digest(file, kind)

    monkeypatch.setattr(hashlib, "file_digest", noted)
    told("org/name")
    assert read == ["config.json"]
    monkeypatch.setenv("VLLM_USE_MODELSCOPE", "True")  # the other hub's model of that name
    with pytest.raises(UnknownIdentity, match="ModelScope"):
        told("org/name")
    assert told(str(snapshot)) == told(str(copy))


def test_no_weights_and_unknown_loader_unknown(tmp_path: Path) -> None:
    def told(kind: str, **more: Any) -> str:
        config = SimpleNamespace(model=str(tmp_path), revision=None, seed=7, **more)
        return vllm_identity.weights(config, SimpleNamespace(load_format=kind, download_dir=None), 0.0)

    with pytest.raises(UnknownIdentity, match="no weights"):
        files.weights_digest(tmp_path)
    with pytest.raises(UnknownIdentity, match="load_format"):
        told("tensorizer")
    with pytest.raises(UnknownIdentity, match="s3://"):
        told("auto", model_weights="s3://bucket/weights")
    assert told("dummy") == "dummy, seed 7"


def test_this_process_began_before_now(model: Path) -> None:
    assert files.process_began() < (model / "config.json").stat().st_ctime + 2


def test_configuration_digest_without_name_and_place() -> None:
    one = {"rope": {"b": 2, "a": 1}, "_name_or_path": "x", "transformers_version": "1"}
    other = {"_name_or_path": "y", "rope": {"a": 1, "b": 2}, "transformers_version": "2"}
    assert identity.digest_of(one) == identity.digest_of(other)
    assert identity.digest_of(one) != identity.digest_of({"rope": {"a": 1, "b": 3}})


def test_hash_fields_have_seed_and_scheme() -> None:
    def told(*given: object) -> dict[str, str]:
        return dict(vllm_identity.hash_fields(*given))  # type: ignore[arg-type]

    assert told("sha256", b"a", 16, 16, 32) != told("sha256", b"b", 16, 16, 32)
    assert "pickle" in told("sha256", b"a", 16, 16, 32)["hash_scheme"]
    assert "pickle" not in told("sha256_cbor", b"a", 16, 16, 32)["hash_scheme"]
    assert told("xxhash_cbor", b"a", 16, 16, 16)["hash"] == "xxhash"


# ---------------------------------------------------------------------------- versions, tiers, node


def test_unknown_version_refused_unless_allowed() -> None:
    for version in ("0.30.0", "0.31.0", "0.32.0", "0.32.1", "0.32.0.post1"):
        versions.check(version, False)
    for version in ("0.33.0", "1.0", "0.3.2", "dev"):
        with pytest.raises(versions.UntestedVersion, match="allow_untested"):
            versions.check(version, False)
        versions.check(version, True)


def test_tokens_of_a_load_counted_by_tier() -> None:
    runs = [MatchRun(4, "memory", 0), MatchRun(3, "flash", 1), MatchRun(2, "peer", 1), MatchRun(1, "flash", 1)]
    assert tiers.tokens_by_tier(runs, 16, 0, 160) == {"memory": 64, "flash": 64, "peer": 32}
    # It begins within a block of the engine's own, and ends before the last token.
    assert tiers.tokens_by_tier(runs, 16, 40, 111) == {"memory": 24, "flash": 47}
    assert tiers.tokens_by_tier(runs, 16, 64, 64) == tiers.tokens_by_tier([], 16, 0, 160) == {}


def test_load_ends_at_runs_with_wait_for_lower_tiers() -> None:
    runs = [
        MatchRun(4, "memory", 0), MatchRun(3, "flash", 200_000), MatchRun(2, "memory", 0), MatchRun(1, "flash", 100_000)
    ]
    assert tiers.load_ends(runs, 0) == [(10, pytest.approx(0.3)), (9, 0.2), (7, 0.2), (4, 0.0)]
    assert tiers.load_ends(runs, 4) == [(10, pytest.approx(0.3)), (9, 0.2), (7, 0.2)]
    assert tiers.load_ends(runs, 7) == [(10, 0.1), (9, 0.0)]
    assert tiers.load_ends(runs, 10) == tiers.load_ends([], 0) == []


def test_lowest_tier_of_a_load() -> None:
    runs = [MatchRun(4, "memory", 0), MatchRun(3, "flash", 200_000), MatchRun(2, "memory", 0)]
    assert tiers.lowest_tier(runs, 0, 4) == tiers.lowest_tier(runs, 7, 9) == tiers.lowest_tier([], 0, 4) == "memory"
    assert tiers.lowest_tier(runs, 0, 5) == tiers.lowest_tier(runs, 6, 9) == tiers.lowest_tier(runs, 4, 7) == "flash"


def test_node_command_of_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    from cistern.engine import node

    monkeypatch.setattr(node, "cisternd_path", lambda: "/bin/cisternd")
    chosen = options.read({"memory": "2GiB", "linger_s": 5, "socket": "/tmp/s"})
    assert node.command(chosen, node.socket_path(chosen)) == [
        "/bin/cisternd", "--socket", "/tmp/s", "--tenant", "default", "--memory", "2GiB", "--linger", "5s"
    ]
    # Where no other user can prepare a socket: a directory of this user's alone, or one that the node makes.
    default = node.socket_path(options.Options())
    found = default.parent.stat() if default.parent.exists() else None
    assert default.name == "cistern.sock"
    assert (found is not None and found.st_uid == os.geteuid() and not found.st_mode & 0o022) or (
        str(default.parent) == f"/tmp/cistern-{os.geteuid()}"
    )


def test_engine_fields_without_scheduling() -> None:
    """Attributes that a schedule or a compiler is made of are not even read."""

    class Fenced(SimpleNamespace):
        def __getattr__(self, name: str) -> object:
            assert name not in ("max_model_len", "enforce_eager", "max_num_seqs", "compilation_config")
            raise AttributeError(name)

    model = Fenced(hf_config=SimpleNamespace(to_dict=lambda: {"a": 1}), quantization=None, dtype="f")
    config = Fenced(
        model_config=model,
        cache_config=Fenced(cache_dtype="auto", sliding_window=None),
        parallel_config=Fenced(tensor_parallel_size=1, pipeline_parallel_size=1, decode_context_parallel_size=1),
        speculative_config=None,
    )
    groups = Fenced(kv_cache_groups=[], kv_cache_layout="LBHNC")
    fields = dict(vllm_identity.engine_fields(config, groups, "0.32.0").items)
    assert fields["cache_dtype"] == fields["dtype"] == "f" and "positions" not in fields


# ---------------------------------------------------------------------------- weights that change


def test_weights_changed_before_the_cache_was_emptied_shared_from_then_on() -> None:
    changes = WeightChanges()
    changes.emptied(next_step=7)
    assert changes.doubtful and changes.awaited and changes.ask(7) and not changes.ask(8)
    assert changes.doubtful
    assert changes.answered(7, changed_at=7)  # a fresh generation is due
    assert not changes.doubtful and changes.step == 7
    assert not changes.answered(7, changed_at=7)  # another rank's


def test_weights_changed_and_the_cache_not_emptied_nothing_shared() -> None:
    changes = WeightChanges()
    assert changes.answered(0, changed_at=5) and changes.doubtful and not changes.awaited
    changes.emptied(next_step=9)
    assert changes.ask(9) and not changes.answered(9, changed_at=5)
    assert not changes.doubtful


def test_cache_emptied_and_weights_the_same_stays() -> None:
    changes = WeightChanges()
    changes.emptied(next_step=3)
    assert changes.ask(3) and not changes.answered(0, changed_at=0) and changes.awaited is True
    assert not changes.answered(3, changed_at=0) and not changes.doubtful


def test_generation_of_a_reset_holds_for_the_weights_loaded_before_it() -> None:
    changes = WeightChanges()
    changes.emptied(next_step=4)
    changes.forked(next_step=4)
    assert changes.ask(4) and not changes.answered(4, changed_at=4) and not changes.doubtful


def test_sample_shows_weights_changed_by_hand() -> None:
    import torch

    model = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
    model.register_buffer("packed", torch.arange(4096, dtype=torch.uint8).view(64, 64).t())
    sample = Sample([model])
    assert not sample.changed()
    model.weight.data.mul_(1.01)
    assert sample.changed() and not sample.changed()
    model.bias.data.zero_()
    assert sample.changed()
    model.bias = torch.nn.Parameter(model.bias.to("meta"))
    assert sample.changed() and sample.changed()  # cannot be read


def test_worker_that_cannot_be_looked_into_counts_every_reset_as_a_change(caplog: pytest.LogCaptureFixture) -> None:
    looks = []
    rank = SimpleNamespace(watch_weights=looks.append, weights_changed=lambda: None)
    watch(None, rank)  # type: ignore[arg-type]
    assert looks[0]() and looks[0]() and "cannot be seen" in caplog.text


@pytest.mark.parametrize("name", ["reload_weights", "update_weights", "load_weights", "drafter", "speculator"])
def test_loading_of_weights_noticed(name: str) -> None:
    import torch

    class Model(torch.nn.Linear):
        def load_weights(self) -> str:
            return "loaded"

    model, draft, noticed = Model(4, 4), Model(2, 2), []
    runner = SimpleNamespace(get_model=lambda: model, reload_weights=lambda: "loaded")
    if name in ("drafter", "speculator"):  # of the first model runner, and of the second
        setattr(runner, name, SimpleNamespace(model=draft))
    worker = SimpleNamespace(model_runner=runner, reload_weights=lambda: "loaded", update_weights=lambda: 1 / 0)
    rank = SimpleNamespace(watch_weights=lambda look: None, weights_changed=lambda: noticed.append(name))
    watch(worker, rank)  # type: ignore[arg-type]
    if name == "update_weights":  # one that fails half way has changed something, too
        with pytest.raises(ZeroDivisionError):
            worker.update_weights()
    else:
        loads = {"load_weights": model.load_weights, "reload_weights": runner.reload_weights}
        assert loads.get(name, draft.load_weights)() == "loaded"
    assert noticed == [name]


@pytest.mark.parametrize("name", ["sleep", "discard"])
def test_pages_let_go_of_before_their_memory_is_taken(name: str) -> None:
    """A copy that reads or writes memory of a device which is not mapped any more ends the engine."""
    told: list[str] = []
    worker = SimpleNamespace(sleep=lambda level: told.append("sleep"), discard=lambda tags: told.append("discard"))
    rank = SimpleNamespace(
        watch_weights=lambda look: None, let_go_of_pages=lambda: told.append("let go"),
        weights_go=lambda gone=True: None,
    )
    watch(worker, rank)  # type: ignore[arg-type]
    getattr(worker, name)(1 if name == "sleep" else ("kv_cache",))
    assert told == ["let go", name]


def test_weights_gone_from_before_their_memory_is_taken_until_it_is_back() -> None:
    told: list[str] = []
    worker = SimpleNamespace(
        sleep=lambda level: told.append("sleep"), discard=lambda tags: told.append("discard"),
        wake_up=lambda tags: told.append("wake"),
    )
    rank = SimpleNamespace(
        watch_weights=lambda look: None, let_go_of_pages=lambda: None,
        weights_go=lambda gone=True: told.append("gone" if gone else "back"),
    )
    watch(worker, rank)  # type: ignore[arg-type]
    worker.sleep(1)
    worker.wake_up(["kv_cache"])
    worker.wake_up()
    worker.discard(("kv_cache",))
    worker.discard(("weights",))
    worker.wake_up(["weights"])
    assert told == ["gone", "sleep", "wake", "wake", "back", "discard", "gone", "discard", "wake", "back"]


def _where_a_thread_runs(answer: Connection) -> None:
    """In a process that was bound at its start, as vLLM's workers on CPUs are."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    seen: list[set[int]] = []
    for beside in (False, True):
        with cpus.unbound(beside):
            thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
            thread.start()
        thread.join()
    answer.send((*seen, os.sched_getaffinity(0)))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="this process has one CPU")
def test_copying_thread_not_bound_to_the_computing_core() -> None:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_where_a_thread_runs, args=(there,))
    process.start()
    thread, beside, main = here.recv()
    process.join()
    assert thread == os.sched_getaffinity(0)
    assert beside == thread - main
    assert main == {min(os.sched_getaffinity(0))}


def test_engine_stepped_by_its_caller_known_by_the_stack() -> None:
    class InprocClient:  # vLLM's, by its name
        def get_output(self) -> bool:
            return versions.stepped_by_caller()

    from vllm.v1.engine.core_client import InprocClient as Real

    assert Real.__name__ == InprocClient.__name__ and hasattr(Real, "get_output")
    assert InprocClient().get_output()
    assert not versions.stepped_by_caller()
