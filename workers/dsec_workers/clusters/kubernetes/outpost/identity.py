"""Who this outpost is, from its pod's environment; read once, and what is secret in it is forgotten.

Most of the environment comes within the order. Pods of a worker of before have each variable by itself.
"""

import hashlib
import hmac
import json
import os
from collections.abc import MutableMapping
from dataclasses import dataclass, replace
from pathlib import Path

from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.names import ENV_ATTEMPT, ENV_HOME, ENV_MEMBER, ENV_RUN_ID
from dsec_workers.clusters.kubernetes.manifest import (
    ENV_ADDRESS,
    ENV_KEY,
    ENV_ORDER,
    ENV_PORT,
    ENV_SCRATCH,
    ENV_TERMINATION_LOG,
    VARIABLES,
)
from dsec_workers.clusters.local.layout import order_from_json
from dsec_workers.clusters.protocol import GangKey, LaunchOrder

_NEEDED = (ENV_RUN_ID, ENV_ATTEMPT, ENV_MEMBER, ENV_ADDRESS, ENV_PORT, ENV_KEY, ENV_ORDER, ENV_SCRATCH)


def gang_token(key: str, gang: GangKey) -> str:
    """What opens the doors of one attempt's outposts; it follows from the namespace's key and needs no object."""
    return hmac.new(key.encode(), f"{gang.run_id}/{gang.attempt}".encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One member's outpost. `order.env` is complete: what the container has, then what the order says."""

    key: GangKey
    member: int
    address: str
    port: int
    token: str
    home: Path
    termination_log: Path | None
    order: LaunchOrder

    @classmethod
    def from_environment(cls, environment: MutableMapping[str, str] = os.environ) -> "Identity":
        """The outpost that the pod's environment describes: completed with the order's part of it, and without the
        gang's key.

        Raises `ClusterError` naming what is missing, `GangTooNew` for an order that this DSec cannot read.
        """
        record = json.loads(environment.get(ENV_ORDER) or "{}")
        environment.update(record.get(VARIABLES) or {})
        missing = [name for name in _NEEDED if not environment.get(name)]
        if missing:
            raise ClusterError(f"an outpost runs in a pod that DSec made; {', '.join(missing)} is not set")
        key = GangKey(environment[ENV_RUN_ID], int(environment[ENV_ATTEMPT]))
        token = gang_token(environment.pop(ENV_KEY), key)
        order = order_from_json(record)
        del environment[ENV_ORDER]
        home = Path(environment[ENV_SCRATCH])
        for made in (home, Path(environment.get("TMPDIR") or home / "tmp"), Path(environment.get("HOME") or home)):
            if made.is_relative_to(home):  # what is elsewhere is the image's, and may be read-only
                made.mkdir(parents=True, exist_ok=True)
        log = environment.get(ENV_TERMINATION_LOG)
        env = {**environment, ENV_HOME: str(home), **order.env}
        return cls(
            key=key,
            member=int(environment[ENV_MEMBER]),
            address=environment[ENV_ADDRESS],
            port=int(environment[ENV_PORT]),
            token=token,
            home=home,
            termination_log=Path(log) if log else None,
            order=replace(order, env=env, hold_start=False),  # the pod was made when the devices were free
        )
