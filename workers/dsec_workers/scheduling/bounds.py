"""A lower bound on what room in a domain must still cost: the fractional knapsack over what is missing of one kind.

Where processors and memory count beside devices, the dearest of the three bounds holds.
"""

from dsec_workers.scheduling.domains import Domain
from dsec_workers.scheduling.menu import Menu


def cost_bound(domain: Domain, menu: Menu, start: int, missing: dict[int, int], members: int) -> float | None:
    """At least this much more must be paid with options from `start` on; None: they cannot do it at all.

    Several options of one gang count side by side, which only makes the bound lower.
    """
    if members <= 0:
        return 0.0
    if domain.kinds > 1:
        return _bound_beside(domain, menu, start, missing, members)
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
    return _knapsack(rated, sum(sorted(least.values())[:members]))


def _knapsack(rated: list[tuple[float, int]], need: int) -> float:
    """The least cost of `need`, in parts, of what is rated (price of one, how many)."""
    paid = 0.0
    for price, useful in sorted(rated):
        take = min(useful, need)
        paid += price * take
        need -= take
        if not need:
            break
    return paid


def _bound_beside(domain: Domain, menu: Menu, start: int, missing: dict[int, int], members: int) -> float | None:
    kinds = domain.kinds
    rated: list[list[tuple[float, int]]] = [[] for _ in range(kinds)]
    reachable = dict.fromkeys(missing, 0)
    for number in domain.order[start:]:
        useful = [0] * kinds
        for key, count in domain.gains[number].items():
            lacking = missing.get(key)
            if lacking is not None:
                reachable[key] += count
                useful[key % kinds] += min(count, lacking)
        for kind, amount in enumerate(useful):
            if amount:
                rated[kind].append((menu[number].cost / amount, amount))
    hopeless = {key // kinds for key, lacking in missing.items() if reachable[key] < lacking}
    least: dict[int, list[int]] = {}
    for unit in {key // kinds: None for key in missing}:
        if unit in hopeless:
            continue
        keys = range(unit * kinds, (unit + 1) * kinds)
        lacks = [missing.get(key, 0) for key in keys]
        seat = next(domain.seat_of[key] for key in keys if key in missing)
        least[seat] = [min(pair) for pair in zip(least.get(seat, lacks), lacks, strict=True)]
    if len(least) < members:
        return None
    return max(
        _knapsack(rated[kind], sum(sorted(lacks[kind] for lacks in least.values())[:members])) for kind in range(kinds)
    )
