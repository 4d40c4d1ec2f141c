# SPDX-License-Identifier: Apache-2.0
"""Cistern: a shared store for the KV cache of LLM inference.

    import cistern

    store = cistern.Store.connect()                       # or Store.open(): the node in this process
    namespace = store.attach(cistern.NamespaceSpec({"model": "m", "dtype": "bf16"}))
    store.put(namespace, key, data, parent=None)          # a block of KV; None: it is the first
    data = store.get(namespace, key)                      # its exact bytes, or None

An engine uses match, acquire, read, write and publish, or `Transfers` to move whole pages in the background;
`cistern.aio` has the store's calls as coroutines.
"""

from __future__ import annotations

from ._native import __version__
from .errors import (
    Busy,
    Code,
    Denied,
    Error,
    Gone,
    Invalid,
    IoError,
    LeaseLapsed,
    Mismatch,
    Missed,
    State,
    TooLate,
    Unavailable,
)
from .hints import Hints
from .namespace import Group, NamespaceSpec
from .programs import cistern_path, cisternd_path
from .store import (
    Chain,
    Lease,
    MatchResult,
    MatchRun,
    Namespace,
    PendingMatch,
    Range,
    ReadResult,
    Store,
    View,
    WriteResult,
    new_put_id,
)
from .transfers import Done, Fragment, Pages, Transfers

__all__ = [
    "Busy",
    "Chain",
    "Code",
    "Denied",
    "Done",
    "Error",
    "Fragment",
    "Gone",
    "Group",
    "Hints",
    "Invalid",
    "IoError",
    "Lease",
    "LeaseLapsed",
    "MatchResult",
    "MatchRun",
    "Mismatch",
    "Missed",
    "Namespace",
    "NamespaceSpec",
    "Pages",
    "PendingMatch",
    "Range",
    "ReadResult",
    "State",
    "Store",
    "TooLate",
    "Transfers",
    "Unavailable",
    "View",
    "WriteResult",
    "__version__",
    "cistern_path",
    "cisternd_path",
    "new_put_id",
]
