"""Which cards a container gets: chosen by the node, as a device plugin does, never by whoever made the pod."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


class OutOfDevices(Exception):
    """Fewer devices are free than a pod asks for."""

    def __init__(self, resource: str, *, requested: int, used: int, capacity: int) -> None:
        super().__init__(f"{resource}: requested {requested}, used {used} of {capacity}")
        self.resource, self.requested, self.used, self.capacity = resource, requested, used, capacity


@dataclass(slots=True)
class Devices:
    """The devices of one node, and who holds them: pod uid → container → resource → UUIDs."""

    by_resource: Mapping[str, Sequence[str]]
    held: dict[str, dict[str, dict[str, tuple[str, ...]]]] = field(default_factory=dict)

    def allocate(self, pod: Mapping[str, Any]) -> None:
        """Devices for all of a pod's containers, or for none.

        Init containers that end before the others begin use what the others will use. Raises `OutOfDevices`.
        """
        spec, uid = pod["spec"], pod["metadata"]["uid"]
        inits = spec.get("initContainers") or []
        together = [*spec["containers"], *(c for c in inits if c.get("restartPolicy") == "Always")]
        before = [c for c in inits if c.get("restartPolicy") != "Always"]
        given: dict[str, dict[str, tuple[str, ...]]] = {c["name"]: {} for c in [*together, *before]}
        for resource, uuids in self.by_resource.items():
            wanted = max(
                sum(_asked(c, resource) for c in together), max((_asked(c, resource) for c in before), default=0)
            )
            if not wanted:
                continue
            used = self.in_use(resource)
            # From the last one down: no caller may count on an order.
            free = [uuid for uuid in reversed(uuids) if uuid not in used]
            if wanted > len(free):
                raise OutOfDevices(resource, requested=wanted, used=len(used), capacity=len(uuids))
            mine = free[:wanted]
            for container in before:
                given[container["name"]][resource] = tuple(mine[: _asked(container, resource)])
            for container in together:
                count = _asked(container, resource)
                given[container["name"]][resource], mine = tuple(mine[:count]), mine[count:]
        self.held[uid] = given

    def free(self, uid: str) -> None:
        """A pod's containers have ended."""
        self.held.pop(uid, None)

    def of(self, uid: str, container: str) -> tuple[str, ...]:
        """What one container holds, of all resources."""
        return _flat((self.held.get(uid) or {}).get(container, {}).values())

    def in_use(self, resource: str) -> set[str]:
        """What is held of one resource."""
        return {
            uuid
            for containers in self.held.values()
            for resources in containers.values()
            for uuid in resources.get(resource, ())
        }


def _asked(container: Mapping[str, Any], resource: str) -> int:
    return int(((container.get("resources") or {}).get("limits") or {}).get(resource, 0))


def _flat(groups: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return tuple(uuid for group in groups for uuid in group)
