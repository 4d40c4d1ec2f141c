# SPDX-License-Identifier: Apache-2.0
"""Devices that an engine's pages may lie on, and the mover for each."""

from __future__ import annotations

from collections.abc import Sequence

from .. import Store
from .layout import Layout
from .mover import HostMover, Mover, UnknownDevice
from .staging import StagedMover, Staging, TorchStreams

HOST = "cpu"
THROUGH_TORCH = ("cuda", "xpu")


def check_device(name: str) -> None:
    """Raises UnknownDevice where there is no way to a device of this type."""
    if name != HOST and name not in THROUGH_TORCH:
        raise UnknownDevice(
            f"KV lies on a {name} device; this connector knows {HOST}, {', '.join(THROUGH_TORCH)}"
        )


def take_staging(device: str, layouts: Sequence[Layout]) -> Staging | None:
    """What pages on a device pass through; None on the host, where nothing is. Raises UnknownDevice, NoStaging."""
    check_device(device)
    return None if device == HOST else Staging(layouts, TorchStreams(device))


def make_mover(store: Store, layouts: Sequence[Layout], staging: Staging | None, max_bytes_per_s: int) -> Mover:
    if staging is None:
        return HostMover(store, layouts, max_bytes_per_s)
    return StagedMover(store, staging, max_bytes_per_s)


def isa_of(device: str) -> str:
    """Instruction set of this process's device of a type: kernels are chosen by it, some of which pack a page
    otherwise, have other numbers of eight bits, or quantize what others multiply whole."""
    if device == HOST:
        return _cpu_isa()
    import torch

    if device == "xpu":
        about = torch.xpu.get_device_properties()
        return str(getattr(about, "architecture", None) or about.name)
    if torch.version.hip is not None:
        return str(torch.cuda.get_device_properties(torch.cuda.current_device()).gcnArchName.partition(":")[0])
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def _cpu_isa() -> str:
    import torch

    asked = (("amx", "_is_amx_tile_supported"), ("avx512_bf16", "_is_avx512_bf16_supported"))
    found = [name for name, ask in asked if getattr(torch.cpu, ask, lambda: False)()]
    return " ".join([torch.backends.cpu.get_cpu_capability(), *found])
