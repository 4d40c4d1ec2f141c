# SPDX-License-Identifier: Apache-2.0
"""Options of a connector, and parameters of one request: each key once, with its default, its meaning and its check."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..hints import Hints


class WrongOption(ValueError):
    """A key or a value that is not allowed; the message names it and what is."""


def _flag(name: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise WrongOption(f"{name}: {value!r} is not true or false")


def _text(name: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise WrongOption(f"{name}: {value!r} is not a text")


def _size(name: str, value: Any) -> str:
    if isinstance(value, str) and (value == "" or re.fullmatch(r"[0-9]+(B|KiB|MiB|GiB|TiB)", value)):
        return value
    raise WrongOption(f"{name}: {value!r} is not a size such as 64GiB")


def _flash_write(name: str, value: Any) -> str:
    if isinstance(value, str):
        uses = re.fullmatch(r"selective:([0-9]{1,3})", value)
        if value in ("", "through", "back", "selective") or (uses and 1 <= int(uses[1]) <= 255):
            return value
    raise WrongOption(f"{name}: {value!r} is not one of through, back, selective, selective:N with N from 1 to 255")


def _between(low: float, high: float) -> Callable[[str, Any], float]:
    def check(name: str, value: Any) -> float:
        if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
            return float(value)
        raise WrongOption(f"{name}: {value!r} is not a number from {low:g} to {high:g}")

    return check


def _name(name: str, value: Any) -> str:
    try:
        size = len(value.encode()) if isinstance(value, str) else 0
    except UnicodeEncodeError:  # a half of a character, which JSON can say and no call of the store takes
        size = 0
    if 1 <= size <= 256:
        return str(value)
    raise WrongOption(f"{name}: {value!r} is not a name of 1 to 256 bytes of UTF-8")


def _engine_name(name: str, value: Any) -> str:
    if isinstance(value, str) and re.fullmatch(r"[!-~]{0,64}", value):
        return value
    raise WrongOption(f"{name}: {value!r} is not a name of at most 64 visible ASCII characters")


def _whole(low: int, high: int) -> Callable[[str, Any], int]:
    def check(name: str, value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
            return value
        raise WrongOption(f"{name}: {value!r} is not a whole number from {low} to {high}")

    return check


def _one_of(*known: str) -> Callable[[str, Any], str]:
    def check(name: str, value: Any) -> str:
        if value in known:
            return str(value)
        raise WrongOption(f"{name}: {value!r} is not one of {', '.join(known)}")

    return check


OWN_NODE_OPTIONS = ("memory", "memory_dir", "socket", "tenant", "linger")
"""Settings of a node that have an option of their own here."""


def _node_options(name: str, value: Any) -> Mapping[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise WrongOption(f"{name}: {value!r} is not a mapping, such as {{\"flash\": [\"/mnt/nvme:100GiB\"]}}")
    for key, one in value.items():
        if not isinstance(key, str) or not re.fullmatch(r"[a-z][a-z_]*", key):
            raise WrongOption(f"{name}: {key!r} is no name of a setting; `cisternd --help` lists them, with _ for -")
        if key in OWN_NODE_OPTIONS:
            raise WrongOption(f"{name}.{key}: give it as {'linger_s' if key == 'linger' else key}, beside {name}")
        many = one if isinstance(one, (list, tuple)) else [one]
        if not all(isinstance(each, (str, int)) for each in many):
            raise WrongOption(f"{name}.{key}: {one!r} is not a text, a whole number, true, false or a list of texts")
    return dict(value)


def _option(default: Any, check: Callable[[str, Any], Any], help: str) -> Any:
    return field(default=default, metadata={"check": check, "help": help})


@dataclass(frozen=True)
class Options:
    socket: str = _option("", _text, "unix socket of the node; empty: the one of this user, logged in or not")
    tenant: str = _option("default", _text, "the trust boundary that the node serves")
    node_user: str = _option(
        "", _text, "whose node it may be beside this user's and root's: a user's number, or any; empty: nobody else's"
    )
    engine_name: str = _option(
        "", _engine_name,
        "what this engine is called in the node's status and logs, and by `cistern admin reads off --engine`: one that "
        "it keeps when it is started again; empty: the engine's own id",
    )
    start_node: bool = _option(True, _flag, "start a node as a process of its own where none answers")
    memory: str = _option(
        "", _size, "of a node that is started, for example 64GiB; empty: a quarter of the host's, or what fits"
    )
    memory_dir: str = _option("", _text, "where a started node keeps its memory; empty: /dev/shm/cistern-UID")
    linger_s: int = _option(600, _whole(0, 604_800), "a started node ends so long after its last client left; 0: never")
    node_options: Mapping[str, Any] | None = _option(
        None, _node_options,
        "of a node that is started: settings of cisternd by their names in its configuration file, for example "
        '{"flash": ["/mnt/nvme:100GiB"], "movers": 4}, or {"config": "/etc/cistern.toml"}',
    )
    required: bool = _option(
        False, _flag, "whether an engine that finds no node stops at its start instead of computing"
    )
    load: bool = _option(True, _flag, "whether KV is loaded")
    save: str = _option("all", _one_of("all", "prompt", "none"), "which KV is saved: prompt and output, prompt, none")
    ttl_s: int = _option(0, _whole(0, 315_360_000), "how long a saved block may live, in seconds; 0: until evicted")
    flash_write: str = _option(
        "", _flash_write,
        "when this model's blocks are written to a node's flash: through (at once), back (when they are cold), "
        "selective:N (after the N-th use); empty: as before, or else as the node has it",
    )
    flash_admit: str = _option(
        "", _one_of("", "worth", "all", "second-hit"),
        "which of them: worth (likely enough to be used while they lie there), all, or second-hit (used after they "
        "were saved); empty: as before, or else as the node has it",
    )
    mesh: str = _option(
        "", _one_of("", "on", "off"),
        "whether other nodes of the node's cell find and read this model's blocks: on, or off, which keeps them to "
        "this node; empty: as before, or else on",
    )
    strict: bool = _option(
        False, _flag,
        "blocks are read only while the node's membership of its cell stands, so that nothing is read after a drop of "
        "it was acknowledged, on any node; engines that say so share only with each other",
    )
    on_reset: str = _option(
        "fork",
        _one_of("fork", "ignore", "drop"),
        "when the engine resets its caches: go on under a fresh weights generation, do nothing, or delete what is "
        "stored for this model (its neighbours' too) and go on under a fresh generation",
    )
    load_timeout_s: float = _option(10.0, _between(0.05, 300), "a load that is not complete by then is computed")
    save_timeout_s: float = _option(10.0, _between(0.05, 25), "a save that is not complete by then is given up")
    match_timeout_s: float = _option(0.05, _between(0.001, 5), "how long a question to the node may take")
    start_timeout_s: float = _option(20.0, _between(0, 300), "how long the first requests may wait for the node")
    min_load_tokens: int = _option(0, _whole(0, 1 << 30), "hits below this are computed; 0: by measurement")
    max_pages_share: float = _option(
        0.5, _between(0.01, 0.9), "of the engine's KV blocks that saves on their way may keep from reuse"
    )
    max_bytes_per_s: int = _option(0, _whole(0, 1 << 50), "of loads and of saves, each rank; 0: no limit")
    kv_cache_layout: str = _option("", _text, "asks the engine for this KV cache layout; empty: whatever it takes")
    share_images: bool = _option(
        False, _flag,
        "whether requests with images, video or sound are shared: only where no client of this engine gives them names "
        "of its own (`uuid`), which the engine takes for their content",
    )
    trusted_keys: bool = _option(
        False, _flag, "whoever shares this model's blocks is trusted not to forge hashes: allows xxhash"
    )
    allow_untested: bool = _option(False, _flag, "run with a vLLM version that was not tested")


def read(extra: Mapping[str, Any] | None, source: str = "options") -> Options:
    """Checks all keys. Raises WrongOption for the first wrong one. `source`: the engine's name for this mapping."""
    known = {one.name: one for one in fields(Options)}
    values = {}
    for name, value in (extra or {}).items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; nearest: {near[0]}" if near else ""
            raise WrongOption(f"{source}: there is no key {name!r}{hint}; all: {', '.join(known)}")
        values[name] = known[name].metadata["check"](f"{source}.{name}", value)
    return Options(**values)


PREFIX = "cistern."
MAX_TEXT = 400
"""Characters of what is said of a wrong parameter, which quotes what a client sent and is kept to be said once."""


@dataclass(frozen=True)
class RequestParameters:
    """Parameters of one request, each key behind `cistern.`."""

    no_save: bool = _option(False, _flag, "nothing of this request is saved")
    no_load: bool = _option(False, _flag, "nothing is loaded for this request")
    ttl_s: int | None = _option(None, _whole(0, 315_360_000), "how long its blocks may live, in seconds")
    conversation: str | None = _option(None, _name, "a name of 1 to 256 bytes for what is to be ended together")
    end_conversation: bool = _option(
        False, _flag, "with `cistern.conversation`: nothing of this request is saved, and when it has ended, what that "
        "conversation wrote or used is removed, but for blocks of others that have not ended",
    )
    priority: int = _option(
        0, _whole(-1000, 1000), "where not all that is computed can be saved in time, blocks of the highest go first"
    )
    outlook: str = _option(
        "unknown", _one_of("unknown", "extended", "ended", "tool"),
        "whether a later prompt starts with this one: extended (the conversation goes on), ended (it does not), tool "
        "(it does as soon as a tool has answered)",
    )
    next_turn_s: float = _option(
        0.0, _between(0, 86_400),
        "when that prompt is expected, in seconds from this one's arrival; 0: not known. A node with flash has it in "
        "memory by then",
    )
    importance: str = _option(
        "normal", _one_of("normal", "low", "high", "keep"),
        "how its blocks count when some leave the node's memory: a hit an eighth (low) or eight times (high), or they "
        "leave last (keep: for an hour from their last use, at most a quarter of the blocks)",
    )

    @property
    def hints(self) -> Hints:
        return Hints(self.outlook, self.importance, round(self.next_turn_s * 1000))  # type: ignore[arg-type]


def read_parameters(params: Any) -> tuple[RequestParameters, list[str]]:
    """A request's parameters, and a text for each wrong one. A request is not refused for a wrong one, but neither
    saved nor loaded, since its meaning is not known. Keys without our prefix are another's."""
    if not params:
        return RequestParameters(), []
    if not isinstance(params, Mapping):  # an engine may take whatever a client says, and ends where this raises
        return RequestParameters(no_save=True, no_load=True), [_shortened(f"{params!r} is not a mapping")]
    known = {one.name: one for one in fields(RequestParameters)}
    values: dict[str, Any] = {}
    wrong = []
    for key, value in params.items():
        if not isinstance(key, str) or not key.startswith(PREFIX):
            continue
        name = key[len(PREFIX) :]
        if name not in known:
            wrong.append(f"{key}: unknown; known: {', '.join(PREFIX + one for one in known)}")
            continue
        if value is None and known[name].default is None:
            continue
        try:
            values[name] = known[name].metadata["check"](key, value)
        except WrongOption as error:
            wrong.append(str(error))
    if values.get("end_conversation") and "conversation" not in values:
        wrong.append(f"{PREFIX}end_conversation: there is no {PREFIX}conversation, which names it")
    if values.get("outlook") == "ended" and values.get("next_turn_s"):
        wrong.append(f"{PREFIX}next_turn_s: {values['next_turn_s']:g} with {PREFIX}outlook ended, after which none is")
    if wrong:
        return RequestParameters(no_save=True, no_load=True), [_shortened(text) for text in wrong]
    return RequestParameters(**values), wrong


def _shortened(text: str) -> str:
    half = MAX_TEXT // 2
    return text if len(text) <= MAX_TEXT else f"{text[:half]} ... {text[-half:]}"
