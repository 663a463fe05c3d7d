"""A policy that is asked beside the one in force and never obeyed, so that a change can be watched before it counts.

Both plan from the same snapshot in every cycle, so a difference is a difference between the policies and nothing
else. Only differences are logged, and each once for as long as it lasts: stage `shadow-policy`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsec_blocks.model.gangs import Gang
from dsec_workers.lifecycle.term import Term
from dsec_workers.scheduling.decisions import Plan
from dsec_workers.scheduling.policy import Policy

STAGE = "shadow-policy"
ADMIT, HOLD, OTHER_PLACE, OTHER_VICTIMS = "would admit", "would hold", "would place elsewhere", "would evict others"
RECALL, LET_STAY = "would call back", "would let stay"


@dataclass
class ShadowPolicy:
    """What is asked, and which differences have been told."""

    policy: Policy | None = None
    told: dict[str, str] = field(default_factory=dict)

    def log(self, term: Term, plan: Plan, shadow: Plan, gangs: Mapping[str, Gang]) -> None:
        """Put the differences that are new into the decision log."""
        found = differences(plan, shadow)
        for run_id, (outcome, why) in found.items():
            if self.told.get(run_id) != outcome:
                term.decide(STAGE, outcome, run_id=run_id, why=why, policy_version=shadow.policy_version)
        self.told = {run_id: outcome for run_id, (outcome, _) in found.items() if run_id in gangs}


def differences(plan: Plan, shadow: Plan) -> dict[str, tuple[str, str]]:
    """By run id: how the shadow policy's plan differs, and why it says so. Pure."""
    real = {admit.run_id: admit for admit in plan.admits}
    held = {hold.run_id: hold.reason.text for hold in shadow.holds}
    found: dict[str, tuple[str, str]] = {}
    for admit in shadow.admits:
        other = real.pop(admit.run_id, None)
        victims = sorted(victim.run_id for victim in admit.victims)
        evicts = f"; evicts {', '.join(victims)}" if victims else ""
        if other is None:
            found[admit.run_id] = (ADMIT, f"{admit.why}{evicts}")
        elif victims != sorted(victim.run_id for victim in other.victims):
            found[admit.run_id] = (OTHER_VICTIMS, f"{admit.why}{evicts or '; evicts nobody'}")
        elif admit.placement != other.placement:
            nodes = ", ".join(member.node for member in admit.placement.members)
            found[admit.run_id] = (OTHER_PLACE, f"on {nodes}")
    for run_id in real:
        found[run_id] = (HOLD, held.get(run_id, "not decided within this cycle"))
    recalled = {recall.run_id: recall for recall in plan.recalls}
    for recall in shadow.recalls:
        if recalled.pop(recall.run_id, None) is None:
            how = ", which it passed in line" if recall.passed else ", by priority"
            found[recall.run_id] = (RECALL, f"for {recall.for_run}{how}")
    for run_id, recall in recalled.items():
        how = ", which it passed in line" if recall.passed else ""
        found[run_id] = (LET_STAY, f"does not call it back for {recall.for_run}{how}")
    return found
