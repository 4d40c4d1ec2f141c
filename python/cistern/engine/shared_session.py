# SPDX-License-Identifier: Apache-2.0
"""The session that the ranks of one engine share: specified and owned by the scheduler side, joined by every rank."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from .. import Gone
from .connection import Connection
from .facts import ConfigurationError, EngineFacts, host
from .identity import Fields, fresh_generation, rank_fields
from .options import Options
from .orders import RankFacts
from .session import GroupShape, Session, SessionSpec

JOIN_S = 2.0
"""Time that a request waits for the ranks to follow into a new session."""


class SharedSession:
    def __init__(
        self, options: Options, facts: EngineFacts, fields: Callable[[], Fields | None],
        hash_fields: Callable[[], tuple[tuple[str, str], ...]], connection: Connection, forget: Callable[[], None],
    ) -> None:
        """`fields`: the engine's part of the identity, None while it is being found out: nothing is shared until then,
        and nobody waits. `hash_fields`: the fields that are known with the first request's hashes. `forget`: called
        when the store is another one, so that no answer of the former stands."""
        self.session: Session | None = None
        """The session as of the last refresh(), if it is of the newest specification."""
        self.number = 0
        """The session's number: one that came or changed has the next."""
        self.block_bytes = 0
        """Bytes of a block on all ranks, once they are known."""
        self._options = options
        self._facts = facts
        self._fields = fields
        self._hash_fields = hash_fields
        self._connection = connection
        self._forget = forget
        self._generation = "0"
        self._namespaces: dict[str, int] = {"": 0}
        """Numbers by an adapter's digest; empty: the base model's."""
        self._ranks: dict[int, RankFacts] = {}
        self._unfit = ""
        """Why the ranks cannot share."""
        self._joined: dict[int, tuple[int, int]] = {}
        """The number of the session that each rank has joined, and how many of its namespaces."""
        self._spec_number = 0
        self._asked: dict[int, float] = {}
        """When a request first waited, by the number of the namespace that it waited for."""
        self._reached: set[int] = set()
        """Namespaces that every rank has had since the last reset."""
        self._rank_spec: SessionSpec | None = None
        self._began = 0.0

    # ------------------------------------------------------------------ the specification

    def add_rank(self, facts: RankFacts) -> None:
        """Where the ranks cannot share, raises ConfigurationError if they are required to."""
        self._ranks[facts.rank] = facts
        hosts = {host(), *(one.host for one in self._ranks.values())}
        devices = {one.device for one in self._ranks.values()}
        why = facts.unfit
        if not why and (len(hosts) > 1 or len(devices) > 1):
            why = (
                f"the engine's ranks and its scheduler are on {len(hosts)} hosts and {len(devices)} kinds of device: "
                "Cistern shares KV among the ranks of one host; run all ranks of an engine on one, with its scheduler"
            )
        if why and self._options.required:
            raise ConfigurationError(why)
        if why and not self._unfit:
            self._unfit = why
            logging.getLogger(self._facts.logger).warning("cistern: this engine runs without Cistern: %s", why)

    def rank_joined(self, rank: int, number: int, namespaces: int) -> None:
        """As its newest report says: a rank may lose its session alone."""
        self._joined[rank] = (number, namespaces)

    def specify_first(self) -> None:
        """Specifies the session, unless it is; to be called when a request has hashes. Nothing happens before every
        rank and the engine's own part are known."""
        if self._spec_number == 0:
            self._specify(another=True)

    def namespace(self, adapter_digest: str) -> int:
        """The number of an adapter's namespace; a new one extends the session, which stands meanwhile."""
        if adapter_digest not in self._namespaces:
            self._namespaces[adapter_digest] = len(self._namespaces)
            if self._spec_number:
                self._specify(another=False)
        return self._namespaces[adapter_digest]

    def reset(self) -> None:
        """Goes on under a fresh weights generation, in namespaces of its own."""
        self._generation = fresh_generation()
        self._namespaces = {"": 0}
        self._asked.clear()
        self._reached.clear()
        self._forget()
        self._specify(another=True)

    def _specify(self, another: bool) -> None:
        """`another`: not the session that stands with more namespaces."""
        facts, options, fields = self._facts, self._options, self._fields()
        if len(self._ranks) < facts.ranks or fields is None or self._unfit:
            return
        ranks = [self._ranks[rank] for rank in range(facts.ranks)]
        self.block_bytes = sum(
            rank.page_bytes[group] * one.pages_per_block for rank in ranks for group, one in enumerate(facts.groups)
        )
        common = fields.with_(
            *self._hash_fields(),
            *rank_fields(
                ranks[0].device, [one.isa for one in ranks], [one.layout for one in ranks], facts.identical_ranks
            ),
            ("generation", self._generation),
        )
        parts = ranks[:: facts.identical_ranks]
        self._spec_number += another
        self._connection.open(
            SessionSpec(
                number=self._spec_number,
                socket=options.socket,
                tenant=options.tenant,
                owner=None,
                fields=tuple(common.with_(("adapter", digest)).items for digest in self._namespaces),
                groups=tuple(
                    GroupShape(
                        one.name, "window" if one.window_tokens else "full", self._reach(one.window_tokens),
                        tuple(rank.page_bytes[group] for rank in parts for _ in range(one.pages_per_block)),
                    )
                    for group, one in enumerate(facts.groups)
                ),
                block_tokens=facts.block_tokens,
                trusted_keys=options.trusted_keys,
                flash_write=options.flash_write,
                flash_admit=options.flash_admit,
                mesh=options.mesh,
                strict=options.strict,
                node_user=options.node_user,
                engine_name=options.engine_name or facts.name,
                labels=facts.labels,
            )
        )

    def _reach(self, window_tokens: int) -> int:
        """What the store is to have of a window's group behind the end of a match: a load ends a block before it where
        it would leave nothing to compute, and another one where the engine drafts (Plan.external_tokens)."""
        return window_tokens and window_tokens + (1 + self._facts.drafts) * self._facts.block_tokens

    # ------------------------------------------------------------------ the session

    def refresh(self) -> None:
        """Looks whether the session came, went or changed."""
        session = self._connection.session
        if session is not None and session.spec.number != self._spec_number:
            session = None  # of before a reset
        if session is self.session:
            return
        before, self.session = self.session, session
        if before is not None and (session is None or session.store is not before.store):
            self._forget()
        if session is None:
            self._rank_spec = None
            return
        extended = before is not None and session.store is before.store and session.spec.number == before.spec.number
        if not extended:
            self.number += 1
            self._began = time.monotonic()
        try:
            self._rank_spec = replace(session.spec, number=self.number, owner=session.store.owner)
        except Gone:  # lost meanwhile
            self.session, self._rank_spec = None, None

    def _joined_by_all(self, spec: SessionSpec, namespaces: int) -> bool:
        return all(
            self._joined.get(rank, (0, 0)) >= (spec.number, namespaces) for rank in range(self._facts.ranks)
        )

    @property
    def specified(self) -> int:
        """Number of the newest specification; of the first, where there is none yet."""
        return max(1, self._spec_number)

    @property
    def spec_to_join(self) -> SessionSpec | None:
        """The specification for the ranks, as long as one of them has not joined, or lacks a namespace."""
        spec = self._rank_spec
        return None if spec is None or self._joined_by_all(spec, len(spec.fields)) else spec

    def ready(self, namespace: int) -> Session | None:
        """The session with this namespace, once every rank has it: an earlier answer could not be carried out."""
        self.refresh()
        session, spec = self.session, self._rank_spec
        if session is None or spec is None or namespace >= len(session.namespaces):
            return None
        if not self._joined_by_all(spec, namespace + 1):
            return None
        self._reached.add(namespace)
        return session

    @property
    def refused(self) -> bool:
        """Whether the node refuses this engine, or the engine cannot share."""
        return bool(self._connection.refusal or self._unfit)

    @property
    def possible(self) -> bool:
        """Whether anything is shared, or is to be once a session stands: else no request waits for what it needs."""
        self.refresh()
        return not self.refused and (self.session is not None or self.expected(0))

    def expected(self, namespace: int) -> bool:
        """Whether a request may wait on for this namespace: at start and for a new adapter, or while the ranks join a
        new session. The time for that is the engine's and not the request's: who comes when it is over computes at
        once."""
        if self._fields() is None:
            return False
        now = time.monotonic()
        if self._rank_spec is None:
            namespace = 0
        elif not self._joined_by_all(self._rank_spec, 1):
            if now - self._began < JOIN_S:
                return True
            namespace = 0
        elif self._connection.lacking and self.session is not None and namespace >= len(self.session.namespaces):
            return False
        possible = (
            len(self._ranks) < self._facts.ranks or self._connection.failures == 0
            or (self._options.start_node and not self._connection.start_failure)
        )
        since = self._asked.setdefault(namespace, now)
        return namespace not in self._reached and possible and now - since < self._options.start_timeout_s
