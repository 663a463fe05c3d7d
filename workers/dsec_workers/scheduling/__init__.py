"""Pure scheduling: `plan(snapshot, queue, policy, now) -> Plan`. No clock, no I/O, no Prefect."""
