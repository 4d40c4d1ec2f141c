# SPDX-License-Identifier: Apache-2.0
"""RDMA without a device for it: boots Debian's kernel in qemu, under software emulation, with Soft-RoCE (rdma_rxe) on a
network device of its own and an NVMe namespace, and runs there what reads over verbs and what drives the namespace by
passthrough. `./dev lab rdma` builds what it takes along.

What it says of time is the emulator's: nothing of it is a figure of RDMA.

Usage: rdma.py KERNEL_ROOT BIN_DIR WORK_DIR
"""

from __future__ import annotations

import pathlib
import sys

from machine import Archive, boot, modules, unpacked_kernel

MODULES = ["nvme", "dummy", "rdma_rxe", "rdma_ucm", "ib_uverbs", "crc32_generic", "crct10dif_generic"]
PROGRAMS = ["net_test", "cisternd", "cistern", "nvme_passthrough"]
# What must say RESULT name 0.
SHOWN = ["device", "two_processes", "reads", "node_on_nvme", "passthrough", "end"]
NAMESPACE_BYTES = 128 << 20
MEMORY_MIB = 1024


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
    ordered = modules(root, MODULES)
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
    hardware = ["-smp", "2", "-m", str(MEMORY_MIB)]
    hardware += ["-drive", f"file={work / 'nvme'},if=none,id=namespace,format=raw,cache=unsafe"]
    hardware += ["-device", "nvme,serial=lab,drive=namespace"]
    boot(work, hardware, SHOWN)


if __name__ == "__main__":
    main()
