"""A good choice of victims fast: fill one unit after the other, always the one that costs least beyond what is paid."""

from collections.abc import Callable, Collection, Iterable, Iterator
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
        missing, members, kinds = dict(domain.missing), domain.members, domain.kinds
        at_unit: dict[int, list[int]] = {}
        for number in order:
            for unit in {key // kinds for key in domain.gains[number]}:
                at_unit.setdefault(unit, []).append(number)
        fills = {unit: self._fill(unit, at_unit.get(unit, []), chosen, missing) for unit in units_of(missing, kinds)}
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
                stale.update(key // kinds for key in domain.gains[number])
            chosen = (*chosen, *fill[1])
            left = units_of(missing, kinds)
            fills = {unit: fill for unit, fill in fills.items() if unit in left}
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
        domain, menu, cost = self.domain, self.menu, 0
        first = unit * domain.kinds
        lacking = {key: missing[key] for key in range(first, first + domain.kinds) if key in missing}
        here = dict(lacking)
        fill: list[int] = []
        gone = set(chosen)

        def price(number: int) -> tuple[float, Name]:
            return menu[number].cost / domain.useful(domain.gains[number], here), menu.name(number)

        helpful = (n for n in numbers if n not in gone and domain.useful(domain.gains[n], here) > 0)
        for number in sorted(helpful, key=price):
            if not lacking:
                break
            gains = domain.gains[number]
            if lacking.keys() & gains.keys() and self.tolerable((*chosen, *fill, number)):
                fill.append(number)
                cost += menu[number].cost
                lacking = {key: left for key, amount in lacking.items() if (left := amount - gains.get(key, 0)) > 0}
        return (cost, tuple(fill)) if not lacking else None


def units_of(keys: Iterable[int], kinds: int) -> dict[int, None]:
    """The units that these keys are of, each once."""
    return dict.fromkeys(key // kinds for key in keys)
