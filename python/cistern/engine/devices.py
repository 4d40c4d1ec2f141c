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


def cpu_isa() -> str:
    """Properties of the CPU by which torch's kernels choose a page's packing."""
    import torch

    amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)()
    return f"{torch.backends.cpu.get_cpu_capability()}{' amx' if amx else ''}"
