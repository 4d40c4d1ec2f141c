# SPDX-License-Identifier: Apache-2.0
"""RDMA without a device for it: boots Debian's kernel in qemu, under software emulation, with Soft-RoCE (rdma_rxe) on a
network device of its own and an NVMe namespace, and runs there what reads over verbs and what drives the namespace by
passthrough. `./dev lab rdma` builds what it takes along.

What it says of time is the emulator's: nothing of it is a figure of RDMA.

Usage: rdma.py KERNEL_ROOT BIN_DIR WORK_DIR
"""

from __future__ import annotations

import lzma
import pathlib
import re
import stat
import subprocess
import sys
import threading
import time

MODULES = ["nvme", "dummy", "rdma_rxe", "rdma_ucm", "ib_uverbs", "crc32_generic", "crct10dif_generic"]
PROGRAMS = ["net_test", "cisternd", "cistern", "nvme_passthrough"]
# What must say RESULT name 0.
SHOWN = ["device", "two_processes", "reads", "node_on_nvme", "passthrough", "end"]
NAMESPACE_BYTES = 128 << 20
MEMORY_MIB = 1024
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


def modules(root: pathlib.Path) -> list[tuple[str, pathlib.Path]]:
    """MODULES and what they stand on, in the order of loading."""
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

    for name in MODULES:
        need(name)
    return [(name, paths[name]) for name in order]


def unpacked_kernel(root: pathlib.Path, into: pathlib.Path) -> None:
    """Not as it is shipped: the emulator would take seconds to unpack it."""
    image = next(root.glob("boot/vmlinuz-*")).read_bytes()
    packed = image.find(b"\xfd7zXZ\0")
    if packed < 0:
        sys.exit("lab: the kernel is not packed by xz")
    into.write_bytes(lzma.LZMADecompressor().decompress(image[packed:]))


def make_machine(root: pathlib.Path, binaries: pathlib.Path, work: pathlib.Path) -> None:
    archive = Archive()
    archive.add_program("/bin/busybox")
    archive.add_program("/bin/rdma")
    # Loaded at run time, so no program names them.
    libraries = pathlib.Path("/usr/lib") / "x86_64-linux-gnu"
    archive.add_program(libraries / "libfabric.so.1")
    archive.add_program(libraries / "libibverbs" / "librxe-rdmav34.so")
    archive.add_file("/etc/libibverbs.d/rxe.driver")
    for program in PROGRAMS:
        archive.add_program(binaries / program, f"/bin/{program}")
    ordered = modules(root)
    for name, file in ordered:
        archive.add_file(file, f"/modules/{name}.ko")
    archive.add("/modules/order", "\n".join(name for name, _ in ordered).encode())
    archive.add_file(pathlib.Path(__file__).with_name("rdma_init"), "/init")
    archive.write(work / "initrd")
    unpacked_kernel(root, work / "vmlinux")
    with (work / "nvme").open("wb") as namespace:
        namespace.truncate(NAMESPACE_BYTES)


def main() -> None:
    root, binaries, work = (pathlib.Path(word).resolve() for word in sys.argv[1:4])
    work.mkdir(parents=True, exist_ok=True)
    make_machine(root, binaries, work)
    words = ["qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", str(MEMORY_MIB)]
    words += ["-nodefaults", "-no-user-config", "-display", "none", "-serial", "stdio", "-no-reboot"]
    words += ["-kernel", str(work / "vmlinux"), "-initrd", str(work / "initrd")]
    words += ["-append", "console=ttyS0 quiet panic=-1 mitigations=off"]
    words += ["-drive", f"file={work / 'nvme'},if=none,id=namespace,format=raw,cache=unsafe"]
    words += ["-device", "nvme,serial=lab,drive=namespace"]
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
    failed = [name for name in SHOWN if results.get(name) != 0]
    failed += [name for name, code in results.items() if code != 0 and name not in failed]
    if failed:
        sys.exit(f"lab: FAILED: {', '.join(failed)}; all that the machine said is in {work / 'log'}")
    print(f"lab: {len(SHOWN)} of {len(SHOWN)} were shown in {time.monotonic() - begun:.0f} s of emulation")


if __name__ == "__main__":
    main()
