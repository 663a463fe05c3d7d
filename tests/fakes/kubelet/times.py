"""Times as Kubernetes writes them."""

from datetime import UTC, datetime


def now() -> str:
    """Seconds, as in most fields."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now_micro() -> str:
    """Microseconds, as leases want them."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
