# SPDX-License-Identifier: Apache-2.0
"""Weights and adapters that change while vLLM runs, and what it does not tell its connectors of that.

Every way by which vLLM loads weights into a model that serves is watched by its name. Whoever writes into parameters
past these is found out by a sample of them, which is looked at whenever the prefix cache is emptied.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from ..engine.coordinator import Coordinator
from ..engine.rank import Rank
from .facts import LOGGER
from .request import adapter_of

if TYPE_CHECKING:
    import torch

OF_A_WORKER = ("reload_weights", "start_weight_update", "start_draft_weight_update", "update_weights",
               "finish_weight_update", "reset_weights", "load_model")
OF_A_RUNNER = ("reload_weights", "load_model")
OF_A_MODEL = ("load_weights",)
WEIGHTS = "weights"
"""vLLM's tag of their memory."""
SAMPLED = 512
"""Bytes of each tensor that are looked at, spread over it."""


def watch_prefix_cache(manager: Any, coordinator: Coordinator) -> None:
    """Has the coordinator told before and after the engine empties its own prefix cache: `reset_prefix_cache()` does
    not reach connectors unless it is asked to."""
    empty = manager.reset_prefix_cache

    @functools.wraps(empty)
    def reset_prefix_cache() -> bool:
        coordinator.release_pages()
        done = bool(empty())
        if done:
            coordinator.prefix_cache_emptied()
        return done

    manager.reset_prefix_cache = reset_prefix_cache


def watch_adapters(core: Any, coordinator: Coordinator) -> None:
    """Has the coordinator told before and after the engine core loads an adapter that no request asks for yet: servers
    load those of their command line and of their API at once."""
    load = getattr(core, "add_lora", None)
    if not callable(load):
        return

    @functools.wraps(load)
    def add_lora(lora_request: Any) -> Any:
        adapter = adapter_of(lora_request)
        with coordinator.adapter_loading(adapter) if adapter is not None else nullcontext():
            return load(lora_request)

    core.add_lora = add_lora


def watch(worker: Any, rank: Rank) -> None:
    """Has the rank told whenever the worker's weights are loaded again, before it gives its memory back (sleep), and
    when that of its weights is there again. Where the worker cannot be looked into, every emptied prefix cache counts
    as a change."""
    _watch_memory(worker, rank)
    try:
        models = _models(worker)
        watched = [_watch_calls(owner, names, rank.weights_changed) for owner, names in (
            (worker, OF_A_WORKER), (worker.model_runner, OF_A_RUNNER), *((one, OF_A_MODEL) for one in models)
        )]
        if not watched[-1]:
            raise AttributeError(f"{type(models[-1]).__name__} has no load_weights")
        rank.watch_weights(Sample(models).changed)
    except Exception as error:  # of any kind: it is not known how this worker's weights change
        logging.getLogger(LOGGER).warning(
            "cistern: changes of this worker's weights cannot be seen (%r): every reset of the prefix cache counts as "
            "one, so that what is stored is not found after it", error
        )
        rank.watch_weights(lambda: True)


def _models(worker: Any) -> list[Any]:
    """The model, and the draft's where it has one; the two model runners call differently what drafts."""
    runner = worker.model_runner
    found = [runner.get_model()]
    drafts = getattr(runner, "drafter", None) or getattr(runner, "speculator", None)
    draft = getattr(drafts, "model", None)
    return [draft, *found] if draft is not None else found


def _watch_calls(owner: Any, names: tuple[str, ...], changed: Callable[[], None]) -> int:
    """Has `changed` called after each of these calls, whatever comes of it. How many of them there are."""
    watched = 0
    for name in names:
        call = getattr(owner, name, None)
        if callable(call):
            setattr(owner, name, _then(call, changed))
            watched += 1
    return watched


def _then(call: Callable[..., Any], changed: Callable[[], None]) -> Callable[..., Any]:
    @functools.wraps(call)
    def watched(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        finally:
            changed()

    return watched


def _watch_memory(worker: Any, rank: Rank) -> None:
    sleep, discard, wake_up = (getattr(worker, name, None) for name in ("sleep", "discard", "wake_up"))
    if callable(sleep):
        @functools.wraps(sleep)
        def watched_sleep(*args: Any, **kwargs: Any) -> Any:
            rank.let_go_of_pages()
            rank.weights_go()
            return sleep(*args, **kwargs)

        worker.sleep = watched_sleep
    if callable(discard):
        @functools.wraps(discard)
        def watched_discard(tags: Any) -> Any:
            rank.let_go_of_pages()
            if WEIGHTS in tags:
                rank.weights_go()
            return discard(tags)

        worker.discard = watched_discard
    if callable(wake_up):
        @functools.wraps(wake_up)
        def watched_wake_up(tags: Any = None) -> Any:
            done = wake_up(tags)
            if tags is None or WEIGHTS in tags:
                rank.weights_go(False)
            return done

        worker.wake_up = watched_wake_up


class Sample:
    """A few bytes of each of a model's tensors, from all over it."""

    def __init__(self, models: list[Any]) -> None:
        self._models = models
        self._last = self._take()

    def changed(self) -> bool:
        """Whether they are others than at the last call, or cannot be told."""
        before = self._last
        try:
            self._last = self._take()
        except Exception:  # of any kind: the tensors are others, or elsewhere
            return True
        return before != self._last

    def _take(self) -> tuple[int, ...]:
        import torch

        with torch.inference_mode():
            sums = [_weighted_sum(one) for one in _storages(self._models)]
            return tuple(torch.stack(sums).tolist()) if sums else ()


def _storages(models: list[Any]) -> Iterator[torch.Tensor]:
    """The bytes of each parameter and buffer, as they lie in memory."""
    import torch

    seen = set()
    for model in models:
        for tensor in [*model.parameters(), *model.buffers()]:
            storage = tensor.untyped_storage()
            if storage.nbytes() and storage.data_ptr() not in seen:
                seen.add(storage.data_ptr())
                yield torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)


def _weighted_sum(bytes_: torch.Tensor) -> torch.Tensor:
    import torch

    # An odd stride meets every byte of a number, its lowest ones too.
    some = bytes_[:: max(1, bytes_.numel() // SAMPLED) | 1].to(torch.int64)
    return (some * (torch.arange(some.numel(), device=some.device) * 2 + 1)).sum()
