# SPDX-License-Identifier: Apache-2.0
"""Loads under way at a reset: nobody may run on what they bring."""

from __future__ import annotations

from collections.abc import Iterable

from .orders import LoadOrder, LoadReport


class OutdatedLoads:
    def __init__(self) -> None:
        self._loads: dict[int, tuple[LoadOrder, bool]] = {}
        """Loads that are not over, and whether a rank ended one well."""
        self._failed: list[LoadOrder] = []

    def reset(self, under_way: Iterable[LoadOrder]) -> None:
        """The engine was reset while these were under way."""
        self._loads.update({order.id: (order, False) for order in under_way})

    def ends_well(self, loaded: LoadReport) -> bool:
        """Whether a rank has ended such a load well: its report does not count."""
        order, _ = self._loads.get(loaded.id, (None, False))
        if order is None or loaded.blocks == 0:
            return False
        self._loads[loaded.id] = (order, True)
        return True

    def withhold(self, finished: set[str]) -> set[str]:
        """Of the requests whose load has ended on every rank, those that must not run on what it brought: the ranks
        report them once more, as failed."""
        withheld = set()
        for number, (order, good) in list(self._loads.items()):
            if order.request in finished:
                del self._loads[number]
                if good:
                    self._failed.append(order)
                    withheld.add(order.request)
        return withheld

    def take_failed(self) -> list[LoadOrder]:
        """Loads for the ranks to report once more, as failed."""
        failed, self._failed = self._failed, []
        return failed
