# SPDX-License-Identifier: Apache-2.0
"""A node of this host, started by the first engine that finds none.

It is a process of its own, in a session of its own, and no child of the engine's: who ends an engine with all its
children leaves the node, which other engines use. It ends by itself some time after its last client left. A file lock
beside its socket makes sure that engines which start together start one node; the numbers of the processes that were
started and write to its log stand in it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import IO

from .. import Denied, Error, Gone, Invalid, Mismatch, Store
from ..programs import cisternd_path, default_socket_path, own_socket_directory
from .facts import ConfigurationError
from .options import Options
from .session import SessionSpec


def socket_path(asked: Options | SessionSpec) -> Path:
    """The socket at which the node listens; where none is asked for the default, which is looked for at each use."""
    if asked.socket:
        return Path(asked.socket)
    return default_socket_path()


def command(options: Options, socket: Path) -> list[str]:
    words = [cisternd_path(), "--socket", str(socket), "--tenant", options.tenant]
    if options.memory:
        words += ["--memory", options.memory]
    if options.memory_dir:
        words += ["--memory-dir", options.memory_dir]
    if options.linger_s:
        words += ["--linger", f"{options.linger_s}s"]
    for name, value in (options.node_options or {}).items():
        flag = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is True:
                words.append(flag)
            elif one is not False:
                words += [flag, str(one)]
    return words


CHECK_S = 30.0


def check_node_options(options: Options) -> None:
    """Raises ConfigurationError where a node could not be started as these options say: before the engine has loaded
    anything. Not for what the host lacks without being asked: then the engine computes."""
    if not options.start_node or not (options.memory or options.memory_dir or options.node_options):
        return
    words = [*command(options, socket_path(options)), "--check"]
    try:
        checked = subprocess.run(words, capture_output=True, text=True, timeout=CHECK_S)
    except (OSError, subprocess.TimeoutExpired):  # the start will tell
        return
    if checked.returncode != 0:
        raise ConfigurationError(f"a node cannot be started as the options say: {checked.stderr.strip()}")


ANY_CPU = range(8192)
"""Numbers of CPUs that a host may have, now or later."""


def start_detached(words: list[str], log: IO[bytes]) -> int:
    """Starts a program that says what it says into the log; whoever takes in orphans is its parent. Returns the number
    of its process. Raises OSError."""
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    shell = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *words],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, start_new_session=True, env=environment,
        check=False,
    )
    if shell.returncode != 0:
        raise OSError(f"/bin/sh ended with {shell.returncode} instead of starting {words[0]}")
    pid = int(shell.stdout)
    with contextlib.suppress(OSError):
        # An engine binds its threads to cores; the node serves the whole host. The kernel takes what there is.
        os.sched_setaffinity(pid, ANY_CPU)
    return pid


class Detached:
    """A process that start_detached has started: by a descriptor as soon as there is one, by its number until then."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._descriptor: int | None = None
        self.runs()

    def runs(self) -> bool:
        """Whether it has not ended."""
        try:
            if self._descriptor is None:
                self._descriptor = os.pidfd_open(self._pid)
        except ProcessLookupError:
            return False
        except OSError:  # this process has no room for one, or may not have one
            return Path(f"/proc/{self._pid}").exists()
        ended = select.poll()
        ended.register(self._descriptor, select.POLLIN)
        return not ended.poll(0)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


LOG_BYTES = 8 << 20
"""Size past which a log begins anew: it lies in memory, and a node runs for months."""
LOG_END_BYTES = 4096
"""What is read of a log whose node has ended."""
LOOK_AT_LOG_S = 60.0


def last_line(log: Path) -> str:
    """The last line of a log, of which no more than its end is read; empty where there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_END_BYTES))
            lines = file.read(LOG_END_BYTES).decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1] if lines else ""


def writes_to(log: Path, pid: int) -> bool:
    """Whether that process says what it says into the log."""
    try:
        return log.samefile(f"/proc/{pid}/fd/2")
    except OSError:  # it has ended, or is another user's
        return False


def begin_log_anew(log: Path, pid: int) -> None:
    """Where the log of a running node is long, moves what it says into NAME.1; the node writes on at its new end. What
    it says in that moment may be lost. Nothing is done to a file that this process does not write to. Raises OSError,
    BlockingIOError where another engine does it."""
    if log.stat().st_size <= LOG_BYTES or not writes_to(log, pid):
        return
    with log.open("rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(file.fileno()).st_size <= LOG_BYTES:  # another engine was sooner
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        with open(os.open(f"{log}.1", flags, 0o600), "wb") as former:
            shutil.copyfileobj(file, former)
        file.truncate(0)


def numbers_in(lock: int) -> list[int]:
    """The processes' numbers that stand in a lock; none where it cannot be read, or is another program's."""
    try:
        return [int(one) for one in os.pread(lock, 4096, 0).split()]
    except (OSError, ValueError):
        return []


START_AGAIN_S = 60.0
"""Time after which a node is started again that has never answered: what it lacks is seldom there sooner."""


class NodeStarter:
    """Starts the node, unless another process of this host does."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._log = Path()  # of the node that this process started
        self._lock: int | None = None
        self._process: Detached | None = None
        self._started = False  # one, by this process
        self._again_at = 0.0
        self._look_at_log_at = 0.0

    def start(self) -> None:
        """Starts a node after a refused connection, unless another process is about to, or the node that this process
        started still runs, or ended within START_AGAIN_S without an answer. Returns at once; the next attempt to
        connect tells. Raises OSError."""
        if self._runs():
            return
        self._release()
        if time.monotonic() < self._again_at:
            return
        socket = socket_path(self._options)
        if socket.parent == (own := own_socket_directory()):
            own.mkdir(0o700, exist_ok=True)
            found = own.stat()
            if own.is_symlink() or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise PermissionError(f"{own} is not this user's alone (mode 0700): remove it, or name another socket")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(socket.with_suffix(".lock"), flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return
        self._lock = lock
        self._log = socket.with_suffix(".log")
        # A node that takes long to start outlives the engine that started it, and takes no second one beside it.
        writers = [pid for pid in numbers_in(lock) if writes_to(self._log, pid)]
        with contextlib.suppress(OSError):
            if not writers and self._log.stat().st_size > LOG_BYTES:
                self._log.replace(f"{self._log}.1")
        with self._log.open("ab") as log:
            pid = start_detached(command(self._options, socket), log)
        self._process = Detached(pid)
        self._started = True
        self._again_at = time.monotonic() + START_AGAIN_S
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
            os.pwrite(lock, "".join(f"{one}\n" for one in [*writers, pid]).encode(), 0)

    def meet(self) -> Store | None:
        """A client of the node, which is started where none answers: None then, and as long as it does not. Raises
        OSError, and Error where it refuses."""
        options = self._options
        try:
            store = Store.connect(socket_path(options), tenant=options.tenant, node_user=options.node_user)
        except Gone:
            self.start()
            return None
        self.connected()
        return store

    def failed(self) -> str:
        """Why the node that this process started has ended; empty while it runs, or where none was started."""
        if not self._started or self._runs():
            return ""
        return f"the node ended: {last_line(self._log)} (log: {self._log})"

    def keep_log_short(self) -> None:
        """Looks once a minute whether the log of the node that stands is too long, whichever engine has started it: to
        be called by who is connected."""
        now = time.monotonic()
        if now < self._look_at_log_at:
            return
        self._look_at_log_at = now + LOOK_AT_LOG_S
        socket = socket_path(self._options)
        with contextlib.suppress(OSError), socket.with_suffix(".lock").open("rb") as lock:  # or no engine started it
            for pid in numbers_in(lock.fileno()):
                begin_log_anew(socket.with_suffix(".log"), pid)

    def connected(self) -> None:
        """Lets go of the lock once a node answers; one that ends now is started again at once."""
        self._release()
        self._again_at = 0.0

    def _runs(self) -> bool:
        """Whether the node that this process started does."""
        if self._process is not None and not self._process.runs():
            self._process.close()
            self._process = None
        return self._process is not None

    def _release(self) -> None:
        if self._lock is not None:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a child that was forked meanwhile has the descriptor too
            os.close(self._lock)
            self._lock = None


LOOK_AGAIN_S = 0.05


def require_node(options: Options, starter: NodeStarter | None) -> None:
    """Waits until a node answers, and starts one where that is wished. Raises ConfigurationError that says why there is
    none: an engine that requires one ends at its start, and never later."""
    until = time.monotonic() + options.start_timeout_s
    while True:
        socket, gone = socket_path(options), False
        try:
            Store.connect(socket, tenant=options.tenant, node_user=options.node_user).close()
        except Gone:
            why, gone = f"no node answers at {socket}", True
        except (Denied, Invalid, Mismatch) as error:
            raise ConfigurationError(f"\"required\" is set, and the node at {socket} answered: {error}") from error
        except Error as error:  # for now: of sessions, staging or descriptors there may be some again soon
            why = f"the node at {socket} answered: {error}"
        else:
            if starter is not None:
                starter.connected()
            return
        if gone and starter is not None:
            failed = starter.failed()
            if failed:
                raise ConfigurationError(f"\"required\" is set, and {failed}")
            try:
                starter.start()
            except OSError as error:
                raise ConfigurationError(f"\"required\" is set, {why} and none can be started: {error}") from error
        if (gone and starter is None) or time.monotonic() > until:
            way_out = ": start cisternd, or let the engine (\"start_node\": true)" if gone else ""
            raise ConfigurationError(f"\"required\" is set, and {why}{way_out}")
        time.sleep(LOOK_AGAIN_S)
