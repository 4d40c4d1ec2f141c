# SPDX-License-Identifier: Apache-2.0
"""NumPy over leased memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .errors import Invalid

if TYPE_CHECKING:
    import numpy.typing as npt

    from . import _native


class Lease(Protocol):
    """The lease of an array's memory."""

    def check(self) -> None:
        """Raises LeaseLapsed once it has ended."""


class LeasedArray(np.ndarray[Any, np.dtype[Any]]):
    """A read-only array over a view. Indexing it and computing with it raise LeaseLapsed once its lease ended,
    before and after the computation; what is computed is a plain array."""

    _lease: Lease | None

    def __array_finalize__(self, made_from: object, /) -> None:
        self._lease = getattr(made_from, "_lease", None)

    def _check(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def __getitem__(self, at: Any, /) -> Any:
        self._check()
        return super().__getitem__(at)

    def __array_ufunc__(self, ufunc: np.ufunc, method: Any, *inputs: Any, **options: Any) -> Any:
        self._check()
        result = getattr(ufunc, method)(*(_plain(i) for i in inputs), **options)
        self._check()
        return result

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        self._check()
        result = function(*(_plain(a) for a in args), **{name: _plain(a) for name, a in kwargs.items()})
        self._check()
        return result

    def copy(self, order: Any = "C") -> Any:
        """A plain array of its own; raises LeaseLapsed where the lease ended before the copy was complete."""
        copied = np.array(_plain(self), order=order, copy=True)
        self._check()
        return copied

    def tobytes(self, order: Any = "C") -> bytes:
        copied = super().tobytes(order)
        self._check()
        return copied

    def tolist(self) -> Any:
        copied = super().tolist()
        self._check()
        return copied


def _plain(value: Any) -> Any:
    if isinstance(value, LeasedArray):
        return value.view(np.ndarray)
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(one) for one in value)
    return value


def leased(view: _native.View, lease: Lease, dtype: npt.DTypeLike, shape: tuple[int, ...] | None) -> LeasedArray:
    """As View.numpy()."""
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise Invalid(f"a view as {kind}: a block has bytes, and no Python objects")
    if kind.itemsize == 0 or view.nbytes % kind.itemsize != 0:
        raise _shape_error(view.nbytes, kind, shape)
    flat = np.frombuffer(memoryview(view), dtype=kind)
    if shape is not None:
        try:
            flat = flat.reshape(shape)
        except ValueError:
            raise _shape_error(view.nbytes, kind, shape) from None
    array = flat.view(LeasedArray)
    array._lease = lease
    return array


def _shape_error(nbytes: int, dtype: np.dtype[Any], shape: tuple[int, ...] | None) -> Invalid:
    asked = "" if shape is None else f" in shape {shape}"
    return Invalid(f"a view of {nbytes} bytes as {dtype}{asked}: the sizes differ")
