"""`python -m dsec_workers.clusters.kubernetes.outpost`: what a member's container runs."""

import os
import sys
from pathlib import Path

from dsec_blocks.model.errors import ClusterError
from dsec_blocks.model.names import ENV_MEMBER
from dsec_workers.clusters.kubernetes.manifest import ENV_TERMINATION_LOG
from dsec_workers.clusters.kubernetes.outpost.identity import Identity
from dsec_workers.clusters.kubernetes.outpost.refusing import could_not_start


def main() -> int:
    """Be the outpost that the environment describes; the exit code of the container."""
    try:
        identity = Identity.from_environment()
    except ClusterError as error:
        log = os.environ.get(ENV_TERMINATION_LOG)
        return could_not_start(int(os.environ.get(ENV_MEMBER) or 0), str(error), log=Path(log) if log else None)
    if identity.member == 0:
        from dsec_workers.clusters.kubernetes.outpost.leader import lead

        return lead(identity)
    from dsec_workers.clusters.kubernetes.outpost.follower import follow

    return follow(identity)


if __name__ == "__main__":
    sys.exit(main())
