"""Every name that crosses a process, file or API boundary, in one place."""

WORKER_TYPE = "dsec-gang"

# The member's environment (DESIGN: "The rank environment").
ENV_RUN_ID = "DSEC_RUN_ID"
ENV_ATTEMPT = "DSEC_ATTEMPT"
ENV_CHANNEL = "DSEC_CHANNEL"
"""Path of the gang's unix socket to its supervisor."""
ENV_REQUEST = "DSEC_REQUEST"
"""The admitted gang request as JSON."""
ENV_MEMBER = "DSEC_MEMBER"
"""Index of the member (= node of the gang) that a process belongs to."""
ENV_DEVICES = "DSEC_DEVICES"
"""Comma-separated UUIDs of the devices this process may use."""
ENV_PLACEMENT = "DSEC_PLACEMENT"
ENV_SPOOL = "DSEC_SPOOL"
"""Directory on the node where snapshots wait for their upload."""
ENV_FAULT = "DSEC_FAULT"
"""`point:mode[:nth]`, several separated by `,`: see dsec_blocks.gateways.faults."""
ENV_HOME = "DSEC_HOME"
"""Where DSec keeps its files; `.dsec` in the working directory by default."""
ENV_LEDGER_URL = "DSEC_LEDGER_URL"
ENV_FRESH_START = "DSEC_FRESH_START"
"""Any non-empty value starts a run over once (each value once), and allows a start without a checkpoint."""
ENV_LAST_COMMIT = "DSEC_LAST_COMMIT"
"""Step of the newest commit that the ledger knows of; empty when it knows of none. A resume that finds none fails."""
ENV_LOCAL_RANK_OF = "DSEC_LOCAL_RANK_OF"
"""Set in the one rank of a `gang.run` outside a gang: the pid of the flow's process."""
ENV_GANG_DIGEST = "DSEC_GANG_DIGEST"
"""Digest of the `@gang(...)` that a deployment was made from: what differs from it was overridden on purpose."""

LABEL_RUN_ID = "dsec.io/run-id"
LABEL_ATTEMPT = "dsec.io/attempt"

# State names in Prefect. The reason is the message, never the name (research: the UI hides a run's graph and
# artifacts for any other custom SCHEDULED name than AwaitingRetry).
STATE_WAITING_FIRST_TIME = "AwaitingGPUs"
STATE_WAITING_AGAIN = "AwaitingRetry"
