"""Which policy a pool plans by now: the newest that somebody set, else the one that DSec ships with."""

from dsec_blocks.ledger import ACTIVE, SHADOW, SHIPPED_VERSION, Ledger, PolicyRecord
from dsec_workers.lifecycle.policy_text import policy_from_mapping
from dsec_workers.scheduling.policy import Policy

SHIPPED = Policy(version=str(SHIPPED_VERSION))


def policy_of(record: PolicyRecord | None) -> Policy:
    """The policy that a row of the ledger stands for; None is the shipped one.

    Raises `InvalidRequest` for a row that this version of DSec does not understand.
    """
    if record is None or record.body is None:
        return SHIPPED
    return policy_from_mapping(record.body, file=f"policy {record.version} in the ledger", version=str(record.version))


def active_policy(ledger: Ledger, pool: str) -> Policy:
    """What the pool plans by."""
    return policy_of(ledger.policy(pool, role=ACTIVE))


def shadow_policy(ledger: Ledger, pool: str) -> Policy | None:
    """What is asked beside it and never obeyed, if anything."""
    record = ledger.policy(pool, role=SHADOW)
    return None if record is None else policy_of(record)
