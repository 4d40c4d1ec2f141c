# SPDX-License-Identifier: Apache-2.0
"""Codes of a call that gives no answer: eleven, each telling what the caller does next.

A miss is no error: it stands in an answer as `Code.MISS`, `None` or a count. The exceptions here are for what
the caller has to act on; their text names the thing, its value and its limit.
"""

from __future__ import annotations

import enum
from typing import ClassVar


class Code(enum.IntEnum):
    """Outcome of one block; `outcomes` of an answer hold one byte of this a block."""

    OK = 0
    MISS = 1  # not here, or no longer: compute it
    BUSY = 2  # a bound is reached: go without, or try again later
    TOO_LATE = 3  # the deadline passed, it would be ready after worth_us, or it was cancelled: compute it
    LAPSED = 4  # the lease ended before its use did: discard what was read through it
    INVALID = 5  # an argument is wrong: fix the call
    MISMATCH = 6  # two sides disagree (namespace list, protocol or format version): fix the configuration
    DENIED = 7  # not this session's to do (foreign owner, forked handle): do not retry
    GONE = 8  # the node or session is gone: reconnect; nothing published is lost
    IO_ERROR = 9  # the system or a device failed
    UNAVAILABLE = 10  # what the call needs beside the node (its cell's etcd): nothing has changed; try again later


class State(enum.IntEnum):
    """State of one written part; `states` of an answer hold one byte of this a part."""

    NONE = 0  # not written: its outcome says why
    PUBLISHED = 1  # visible now
    PRESENT = 2  # the block was there already; the first published wins
    PENDING = 3  # waits for its other parts, its parent, or publish()


class Error(Exception):
    """Base of all errors of this package."""

    code: ClassVar[Code] = Code.IO_ERROR


class Missed(Error):
    """An answer that has to be there is not: only where a call has no value to say so."""

    code = Code.MISS


class Busy(Error):
    """A bound is reached: go without, or try again later."""

    code = Code.BUSY


class TooLate(Error, TimeoutError):
    """The deadline passed, or the answer would come after `worth_us`."""

    code = Code.TOO_LATE


class LeaseLapsed(Error):
    """The lease ended (released, deadline, drop, its session) before its use did: discard what was read."""

    code = Code.LAPSED


class Invalid(Error, ValueError):
    """An argument is wrong; the message names it, its value and its limit."""

    code = Code.INVALID


class Mismatch(Error):
    """Two sides disagree: the message has the differing field and both values."""

    code = Code.MISMATCH


class Denied(Error):
    """Not this process's to do: a foreign owner's put, another user's node, a handle in a forked child."""

    code = Code.DENIED


class Gone(Error, ConnectionError):
    """The node or the session is gone, or the handle was closed: connect again; nothing published is lost."""

    code = Code.GONE


class IoError(Error, OSError):
    """The system or a device failed; the message carries its error."""

    code = Code.IO_ERROR


class Unavailable(Error):
    """What the call needs beside the node, its cell's etcd, cannot be reached: nothing has changed; try again later."""

    code = Code.UNAVAILABLE


ERROR_OF: dict[int, type[Error]] = {
    int(kind.code): kind
    for kind in (Missed, Busy, TooLate, LeaseLapsed, Invalid, Mismatch, Denied, Gone, IoError, Unavailable)
}
