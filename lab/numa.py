# SPDX-License-Identifier: Apache-2.0
"""Memory nodes without such a host: boots Debian's kernel in qemu, under software emulation, with two memory nodes that
have a processor each and one that is memory alone, and runs there a node and clients on either processor: blocks lie
where their client runs, cold ones on the node without processors, used ones back, and all bytes are compared.
`./dev lab numa` builds what it takes along.

Usage: numa.py KERNEL_ROOT BIN_DIR WORK_DIR
"""

from __future__ import annotations

import pathlib
import sys

from machine import Archive, boot, unpacked_kernel

PROGRAMS = ["cisternd", "cistern", "numa_blocks"]
# What must say RESULT name 0.
SHOWN = ["topology", "node", "on_0", "on_1", "restart", "again_0", "again_1", "fill", "cold", "used", "restart_far"]
SHOWN += ["cold_again", "used_again", "shares", "end"]
MEMORY_MIB = [1024, 1024, 512]
DISTANCES = {(0, 1): 21, (0, 2): 30, (1, 2): 30}


def main() -> None:
    root, binaries, work = (pathlib.Path(word).resolve() for word in sys.argv[1:4])
    work.mkdir(parents=True, exist_ok=True)
    archive = Archive()
    archive.add_program("/bin/busybox")
    for program in PROGRAMS:
        archive.add_program(binaries / program, f"/bin/{program}")
    archive.add_file(pathlib.Path(__file__).with_name("numa_init"), "/init")
    archive.write(work / "initrd")
    unpacked_kernel(root, work / "vmlinux")
    hardware = ["-smp", "2,sockets=2,cores=1", "-m", str(sum(MEMORY_MIB))]
    for node, mib in enumerate(MEMORY_MIB):
        processors = f",cpus={node}" if node < 2 else ""
        hardware += ["-object", f"memory-backend-ram,id=memory{node},size={mib}M"]
        hardware += ["-numa", f"node,nodeid={node},memdev=memory{node}{processors}"]
    for (one, other), value in DISTANCES.items():
        hardware += ["-numa", f"dist,src={one},dst={other},val={value}"]
    boot(work, hardware, SHOWN)


if __name__ == "__main__":
    main()
