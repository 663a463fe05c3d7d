"""Fair shares: what each of several siblings is due, given what all of them want.

Quota first, then the surplus by weight (progressive filling), capped at what each one can use; what the modest leave
goes round again to the others until nothing moves. A team's own standing is measured against what it would get if it
wanted everything: one that asks for little must not look as if it already had all it is due (Armada draws the same
distinction, "uncapped" adjusted fair share).
"""

import numpy as np

from dsec_workers.scheduling.fleet import Bools, Floats, Ints


def fill(capacity: float, quota: Floats, demand: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Shares of `capacity` among siblings: capped at `demand`, and what each would get if its own demand had no cap.

    Quotas are promises: where they exceed the capacity, so do the shares. A sibling without demand gets nothing and
    leaves all it owns to the others; its uncapped share says what it would be due if it came. Weights are more than 0.
    """
    if not len(quota):
        return np.zeros(0), np.zeros(0)
    sure = np.minimum(quota, demand)
    further = demand - sure
    surplus = max(0.0, capacity - float(sure.sum()))
    capped = sure + np.minimum(further, _level(surplus, further, weight) * weight)
    # A sibling that wanted everything would first take the rest of its quota, and no cap would stop it afterwards.
    left = np.maximum(0.0, surplus - (quota - sure))
    uncapped = quota + _levels_without_cap(left, further, weight) * weight
    return capped, uncapped


def _level(surplus: float, caps: Floats, weight: Floats) -> float:
    """The level λ at which Σ min(cap, λ·weight) reaches `surplus`; where all are content below it, the last cap's."""
    ends, order = _ends(caps, weight)
    before, weights_before = _before(caps, order), _before(weight, order)
    total = float(weights_before[-1])
    used = before[:-1] + ends * (total - weights_before[:-1])
    step = int(np.searchsorted(used, surplus))
    if step == len(ends):
        return float(ends[-1])
    return (surplus - float(before[step])) / (total - float(weights_before[step]))


def _levels_without_cap(surplus: Floats, caps: Floats, weight: Floats) -> Floats:
    """Per sibling, the level at which `surplus` of its own is used up if that one sibling has no cap."""
    ends, order = _ends(caps, weight)
    before, weights_before = _before(caps, order), _before(weight, order)
    total = float(weights_before[-1])
    used = before[:-1] + ends * (total - weights_before[:-1])
    beyond = np.maximum(0.0, weight[:, None] * ends[None, :] - caps[:, None])
    enough: Bools = used[None, :] + beyond >= surplus[:, None]
    step: Ints = np.where(enough.any(axis=1), enough.argmax(axis=1), len(ends)).astype(np.int64)
    place = np.empty(len(caps), np.int64)
    place[order] = np.arange(len(caps))
    content = place < step
    mine, my_weight = np.where(content, caps, 0.0), np.where(content, weight, 0.0)
    level: Floats = (surplus - (before[step] - mine)) / (total - weights_before[step] + my_weight)
    return level


def _ends(caps: Floats, weight: Floats) -> tuple[Floats, Ints]:
    ends = caps / weight
    order: Ints = np.argsort(ends, kind="stable").astype(np.int64)
    return ends[order], order


def _before(values: Floats, order: Ints) -> Floats:
    return np.concatenate(([0.0], np.cumsum(values[order])))
