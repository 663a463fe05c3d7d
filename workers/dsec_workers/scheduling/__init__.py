"""Pure scheduling: `plan(snapshot, queue, policy, now) -> Plan`. No clock, no I/O, no Prefect."""

from dsec_workers.scheduling.cycle import plan
from dsec_workers.scheduling.decisions import Admit, Hold, Plan, Recall, Shadow, Victim
from dsec_workers.scheduling.memory import Memory
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.reasons import sentence
from dsec_workers.scheduling.snapshot import Frozen, QueuedGang, RunningGang, Snapshot, build_snapshot

__all__ = [
    "Admit", "Frozen", "Hold", "Memory", "Plan", "Policy", "QueuedGang", "Recall", "RunningGang", "Shadow", "Snapshot",
    "Victim", "build_snapshot", "plan", "sentence",
]  # fmt: skip
