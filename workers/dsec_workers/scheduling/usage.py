"""Past usage as the planner sees it: the devices a team has had on average lately, and an entry charged ahead.

Usage that halves every half-life h adds up to devices × h ÷ ln 2 for a team that always holds so many; divided by
that it is a number of devices again, which can be mixed with what the team holds now. What was used while nobody
else wanted it is therefore cheap: it is measured against the cluster, not against the others.

Between two accruals a burst of submissions would all see the same usage. So each running gang counts as if it had
run for at least `charge_ahead_seconds` (the entry penalty of Kueue's admission fair sharing, KEP-4136); whatever it
really runs is then part of that, and nothing has to be given back when it leaves early.
"""

from collections.abc import Mapping

import numpy as np

from dsec_workers.scheduling.fleet import Floats
from dsec_workers.scheduling.holders import Slots
from dsec_workers.scheduling.policy import Policy


def past_devices(usage: Mapping[str, float], number: Mapping[str, int], policy: Policy) -> Floats:
    """Average devices by team number, from decayed device-seconds by team."""
    past: Floats = np.zeros(len(number))
    for name, value in usage.items():
        if name in number:
            past[number[name]] = value / policy.usage_window_seconds
    return past


def charged_ahead(slots: Slots, policy: Policy, now: float) -> Floats:
    """What each gang that has just started counts for beyond what it has used so far, in average devices."""
    left = policy.charge_ahead_seconds - np.maximum(0.0, now - slots.started_at)
    return np.asarray(np.maximum(0.0, left) * slots.devices / policy.usage_window_seconds, float)
