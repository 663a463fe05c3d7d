"""`python -m dsec_workers.clusters.kubernetes.outpost`: what a member's container runs."""

import sys

from dsec_workers.clusters.kubernetes.outpost.identity import Identity


def main() -> int:
    """Be the outpost that the environment describes; the exit code of the container."""
    identity = Identity.from_environment()
    if identity.member == 0:
        from dsec_workers.clusters.kubernetes.outpost.leader import lead

        return lead(identity)
    from dsec_workers.clusters.kubernetes.outpost.follower import follow

    return follow(identity)


if __name__ == "__main__":
    sys.exit(main())
