# SPDX-License-Identifier: Apache-2.0
"""Devices that an engine's pages may lie on, and the mover for each."""

from __future__ import annotations

from collections.abc import Sequence

from .. import Store
from .layout import Layout
from .mover import HostMover, Mover, UnknownDevice
from .staging import StagedMover, TorchStreams

HOST = "cpu"
THROUGH_TORCH = ("cuda", "xpu")


def check_device(name: str) -> None:
    """Raises UnknownDevice where there is no way to a device of this type."""
    if name != HOST and name not in THROUGH_TORCH:
        raise UnknownDevice(
            f"KV lies on a {name} device; this connector knows {HOST}, {', '.join(THROUGH_TORCH)}"
        )


def make_mover(store: Store, device: str, layouts: Sequence[Layout], max_bytes_per_s: int) -> Mover:
    check_device(device)
    if device == HOST:
        return HostMover(store, layouts, max_bytes_per_s)
    return StagedMover(store, layouts, TorchStreams(device), max_bytes_per_s)


def cpu_isa() -> str:
    """Properties of the CPU by which torch's kernels choose a page's packing."""
    import torch

    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return f"{torch.backends.cpu.get_cpu_capability()}{' amx' if amx else ''}"
