"""Which cards the kubelet chose for this pod: observed, never set.

A gang reserves by count; a device plugin names the cards it gave in the container's environment. Pure.
"""

from collections.abc import Mapping, Sequence

from dsec_blocks.model.errors import ClusterError

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
_NO_NAMES = ("", "all", "none", "void")


def are_named(environment: Mapping[str, str]) -> bool:
    """Whether a device plugin says which cards it gave."""
    return environment.get(VISIBLE, "") not in _NO_NAMES


def observed_devices(places: Sequence[str], environment: Mapping[str, str]) -> tuple[str, ...]:
    """The cards behind `places`, in the order in which the runtime shows them.

    Where nobody names them (no device plugin of that kind) they are numbered, as the container sees them.
    Raises `ClusterError` when other cards were given than were reserved.
    """
    if not are_named(environment) or not places:
        return tuple(str(number) for number in range(len(places)))
    text = environment[VISIBLE]
    found = tuple(filter(None, (name.strip() for name in text.split(","))))
    if len(found) != len(places):
        raise ClusterError(f"{len(places)} devices were reserved and the node gave {len(found)} ({text})")
    return found
