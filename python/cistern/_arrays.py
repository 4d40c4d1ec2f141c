# SPDX-License-Identifier: Apache-2.0
"""NumPy over leased memory."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
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
    before and after the computation; what is computed is a plain array, what lies in the same memory is leased too."""

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
        return _computed(getattr(ufunc, method), inputs, options)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any
    ) -> Any:
        return _computed(function, args, kwargs)

    @property
    def flat(self) -> Any:
        """Of a copy: it reads its items later, and asks nobody."""
        return self.copy().flat

    def copy(self, order: Any = "C") -> Any:
        """A plain array of its own; raises LeaseLapsed where the lease ended before the copy was complete."""
        return _computed(np.ndarray.copy, (self, order), {})


def _method(name: str) -> Callable[..., Any]:
    method = getattr(np.ndarray, name)

    @functools.wraps(method)
    def computed(*args: Any, **options: Any) -> Any:
        return _computed(method, args, options)

    return computed


# NumPy computes these without asking the array's class; of the others each asks one of the calls above, or is a view.
for _name in (
    "__bool__", "__complex__", "__copy__", "__deepcopy__", "__float__", "__index__", "__int__", "__reduce__",
    "__reduce_ex__", "argmax", "argmin", "argpartition", "argsort", "astype",
    "byteswap", "choose", "compress", "conj", "conjugate", "dot", "dump", "dumps", "flatten", "item", "nonzero",
    "ravel", "repeat", "reshape", "round", "searchsorted", "take", "tobytes", "tofile", "tolist",
):  # fmt: skip
    setattr(LeasedArray, _name, _method(_name))


def _computed(function: Callable[..., Any], args: Any, options: Any) -> Any:
    """The function's answer by plain arrays, if the leases of all that it was given stand before and after it."""
    given = list(_leased_in((args, options)))
    for one in given:
        one._check()
    result = function(*_plain(args), **_plain(options))
    for one in given:
        one._check()
    return _leased_again(result, given)


def _leased_in(value: Any) -> Iterator[LeasedArray]:
    if isinstance(value, LeasedArray):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _leased_in(one)


def _leased_again(result: Any, given: list[LeasedArray]) -> Any:
    """The same; of an array that lies in the memory of one that was given, a leased view."""
    if isinstance(result, (list, tuple)):
        return _like(result, [_leased_again(one, given) for one in result])
    if type(result) is np.ndarray:
        for one in given:
            if np.may_share_memory(result, _plain(one)):
                view = result.view(LeasedArray)
                view._lease = one._lease
                return view
    return result


def _plain(value: Any) -> Any:
    if isinstance(value, LeasedArray):
        return value.view(np.ndarray)
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return _like(value, [_plain(one) for one in value])
    return value


def _like(value: list[Any] | tuple[Any, ...], items: list[Any]) -> Any:
    """The items as what they were in: a list, a tuple, or a tuple with names."""
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


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
