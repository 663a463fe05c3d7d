"""A lower bound on what room in a domain must still cost: the fractional knapsack over the devices that are missing."""

from dsec_workers.scheduling.domains import Domain
from dsec_workers.scheduling.menu import Menu


def cost_bound(domain: Domain, menu: Menu, start: int, missing: dict[int, int], members: int) -> float | None:
    """At least this much more must be paid with options from `start` on; None: they cannot do it at all.

    Several options of one gang count side by side, which only makes the bound lower.
    """
    if members <= 0:
        return 0.0
    rated: list[tuple[float, int]] = []
    reachable = dict.fromkeys(missing, 0)
    for number in domain.order[start:]:
        useful = 0
        for unit, count in domain.gains[number].items():
            lacking = missing.get(unit)
            if lacking is not None:
                reachable[unit] += count
                useful += count if count < lacking else lacking
        if useful:
            rated.append((menu[number].cost / useful, useful))
    least: dict[int, int] = {}
    for unit, lacking in missing.items():
        seat = domain.seat_of[unit]
        if reachable[unit] >= lacking and lacking < least.get(seat, lacking + 1):
            least[seat] = lacking
    if len(least) < members:
        return None
    need = sum(sorted(least.values())[:members])
    rated.sort()
    paid = 0.0
    for price, useful in rated:
        take = min(useful, need)
        paid += price * take
        need -= take
        if not need:
            break
    return paid
