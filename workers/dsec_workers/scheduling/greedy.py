"""A good choice of victims fast: fill one unit after the other, always the one that costs least beyond what is paid."""

from collections.abc import Callable, Collection, Iterator
from typing import Protocol

from dsec_workers.scheduling.domains import Domain
from dsec_workers.scheduling.menu import Menu, Name
from dsec_workers.scheduling.options import How


class Spends(Protocol):
    """A budget of steps."""

    def spend(self) -> bool:
        """Whether one more may be made."""
        ...


Check = Callable[[Collection[int]], bool]


class Greedy:
    """One domain's greedy choices."""

    def __init__(self, domain: Domain, menu: Menu, budget: Spends, admissible: Check, tolerable: Check) -> None:
        self.domain, self.menu, self.budget = domain, menu, budget
        self.admissible, self.tolerable = admissible, tolerable

    def choices(self) -> Iterator[tuple[int, ...]]:
        """At most two: with every option on offer, then with only the one of each gang that leaves the most."""
        order = self.domain.order
        yield from self._choice(order)
        evictions = [number for number in order if self.menu[number].how is How.EVICT]
        if len(evictions) < len(order):
            yield from self._choice(evictions)

    def _choice(self, order: list[int]) -> Iterator[tuple[int, ...]]:
        domain = self.domain
        chosen: tuple[int, ...] = ()
        missing, members = dict(domain.missing), domain.members
        at_unit: dict[int, list[int]] = {}
        for number in order:
            for unit in domain.gains[number]:
                at_unit.setdefault(unit, []).append(number)
        fills = {unit: self._fill(unit, at_unit.get(unit, []), chosen, missing) for unit in missing}
        while members > 0:
            best = min(((fill[0], unit) for unit, fill in fills.items() if fill is not None), default=None)
            if best is None or not self.budget.spend():
                return
            unit, fill = best[1], fills[best[1]]
            assert fill is not None
            if not self.tolerable((*chosen, *fill[1])):
                # Dearer since others were chosen, or no longer allowed: never cheaper, so this ends.
                fills[unit] = self._fill(unit, at_unit[unit], chosen, missing)
                continue
            stale: set[int] = set()
            for number in fill[1]:
                missing, members = domain.without(missing, members, number)
                stale.update(domain.gains[number])
            chosen = (*chosen, *fill[1])
            fills = {unit: fill for unit, fill in fills.items() if unit in missing}
            for unit in stale & fills.keys():
                fills[unit] = self._fill(unit, at_unit[unit], chosen, missing)
        for number in order:
            if self.admissible(chosen):
                break
            if number in domain.relief and number not in chosen and self.tolerable((*chosen, number)):
                chosen = (*chosen, number)
        if self.admissible(chosen):
            yield chosen

    def _fill(
        self, unit: int, numbers: list[int], chosen: tuple[int, ...], missing: dict[int, int]
    ) -> tuple[int, tuple[int, ...]] | None:
        """Cost and options that give `unit` what a member misses there, cheapest per device first; None: no way."""
        domain, menu, lacking, cost = self.domain, self.menu, missing[unit], 0
        fill: list[int] = []
        gone = set(chosen)

        def price(number: int) -> tuple[float, Name]:
            return menu[number].cost / min(domain.gains[number][unit], missing[unit]), menu.name(number)

        for number in sorted((n for n in numbers if n not in gone), key=price):
            if lacking <= 0:
                break
            if self.tolerable((*chosen, *fill, number)):
                fill.append(number)
                cost += menu[number].cost
                lacking -= domain.gains[number][unit]
        return (cost, tuple(fill)) if lacking <= 0 else None
