# SPDX-License-Identifier: Apache-2.0
"""A machine of the lab: Debian's kernel in qemu, under software emulation, with an initial file system that holds what
it runs. What it says of time is the emulator's."""

from __future__ import annotations

import lzma
import pathlib
import re
import stat
import subprocess
import sys
import threading
import time

LIMIT_S = 600


class Archive:
    """An initial file system: cpio, format newc."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[int, bytes]] = {}

    def add(self, path: str, content: bytes, mode: int = 0o755) -> None:
        self.entries[path] = (stat.S_IFREG | mode, content)

    def add_file(self, source: str | pathlib.Path, path: str = "") -> None:
        self.add(path or str(source), pathlib.Path(source).read_bytes())

    def add_program(self, source: str | pathlib.Path, path: str = "") -> None:
        """With the libraries that it is linked with, where this system has them."""
        self.add_file(source, path)
        listed = subprocess.run(["ldd", source], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(/\S+)", listed):
            if library not in self.entries and pathlib.Path(library).exists():
                self.add_file(library)

    def write(self, path: pathlib.Path) -> None:
        folders = {str(parent) for file in self.entries for parent in pathlib.PurePosixPath(file).parents}
        folders |= {"/proc", "/sys", "/dev", "/tmp", "/sbin"}
        entries = [(folder, stat.S_IFDIR | 0o755, b"") for folder in sorted(folders - {"/"})]
        entries += [(file, mode, content) for file, (mode, content) in self.entries.items()]
        entries.append(("/TRAILER!!!", 0, b""))
        with path.open("wb") as out:
            for number, (name, mode, content) in enumerate(entries, 1):
                encoded = name[1:].encode() + b"\0"
                fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0)
                head = b"070701" + b"".join(b"%08X" % value for value in fields) + encoded
                out.write(head + b"\0" * (-len(head) % 4) + content + b"\0" * (-len(content) % 4))


def modules(root: pathlib.Path, wanted: list[str]) -> list[tuple[str, pathlib.Path]]:
    """These and what they stand on, in the order of loading."""
    paths = {file.stem.replace("-", "_"): file for file in root.glob("lib/modules/*/kernel/**/*.ko")}
    order: list[str] = []

    def need(name: str) -> None:
        if name in order:
            return
        if name not in paths:
            sys.exit(f"lab: the kernel in {root} has no module {name}")
        needs = re.search(rb"\0depends=([^\0]*)\0", paths[name].read_bytes())
        for other in needs[1].decode().split(",") if needs else []:
            if other:
                need(other.replace("-", "_"))
        order.append(name)

    for name in wanted:
        need(name)
    return [(name, paths[name]) for name in order]


def unpacked_kernel(root: pathlib.Path, into: pathlib.Path) -> None:
    """Not as it is shipped: the emulator would take seconds to unpack it."""
    image = next(root.glob("boot/vmlinuz-*")).read_bytes()
    packed = image.find(b"\xfd7zXZ\0")
    if packed < 0:
        sys.exit("lab: the kernel is not packed by xz")
    into.write_bytes(lzma.LZMADecompressor().decompress(image[packed:]))


def boot(work: pathlib.Path, hardware: list[str], shown: list[str]) -> None:
    """Runs the machine of `work` (vmlinux, initrd) until it is off. Ends this program where one of `shown` did not say
    RESULT name 0, or anything else a code that is not 0."""
    words = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", *hardware]
    words += ["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]
    words += ["-kernel", str(work / "vmlinux"), "-initrd", str(work / "initrd")]
    words += ["-append", "console=ttyS0 quiet panic=-1 mitigations=off"]
    begun = time.monotonic()
    results: dict[str, int] = {}
    with (work / "log").open("w") as log:
        machine = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
        assert machine.stdout is not None
        limit = threading.Timer(LIMIT_S, machine.kill)
        limit.start()
        for line in machine.stdout:
            log.write(line)
            print(line, end="", flush=True)
            if found := re.match(r"RESULT (\S+) (\d+)", line):
                results[found[1]] = int(found[2])
        machine.wait()
        limit.cancel()
    failed = [name for name in shown if results.get(name) != 0]
    failed += [name for name, code in results.items() if code != 0 and name not in failed]
    if failed:
        sys.exit(f"lab: FAILED: {', '.join(failed)}; all that the machine said is in {work / 'log'}")
    print(f"lab: {len(shown)} of {len(shown)} were shown in {time.monotonic() - begun:.0f} s of emulation")
