"""All that running gangs could do for one claim: the options of a search, numbered.

The option to evict the gang in slot s has the number s; milder ones (moving it, shrinking it) come after, made when a
domain asks for them. Shrinking gives up the members that help the domain most; member 0, which runs the flow, stays.
"""

from collections.abc import Iterable

import numpy as np

from dsec_workers.scheduling.domains import Domain
from dsec_workers.scheduling.fleet import Bools, Ints
from dsec_workers.scheduling.hosts import host_needs
from dsec_workers.scheduling.options import How, Option
from dsec_workers.scheduling.rights import Rights

Name = tuple[str, str, int]

MOST_SHRINKINGS = 4
"""Sizes that one gang is offered to shrink to."""


class Menu:
    """See the module. `allowed` are the slots of `rights.candidates()`."""

    def __init__(self, rights: Rights, allowed: Bools, unit_of: Ints) -> None:
        self.rights, self.roster, self.allowed = rights, rights.roster, allowed
        self.fleet, self.unit_of = rights.roster.snapshot.fleet, unit_of
        self._width = len(self.roster.team)
        self.partial = False
        """Whether a gang could also give up members in ways that are not on offer (needless ones, other sizes)."""
        self._milder: list[Option] = []
        self._numbers: dict[Option, int] = {}
        self._evictions: dict[int, Option] = {}
        self._member_devices: dict[int, list[Ints]] = {}

    def __getitem__(self, number: int) -> Option:
        if number >= self._width:
            return self._milder[number - self._width]
        found = self._evictions.get(number)
        if found is None:
            found = self._evictions[number] = Option(
                number, How.EVICT, self.roster.cost(number), int(self.roster.devices[number])
            )
        return found

    @property
    def has_milder(self) -> bool:
        """Whether there is anything but evictions."""
        return bool(self._milder)

    def all(self, numbers: Iterable[int]) -> list[Option]:
        """Several at once."""
        return [self[number] for number in numbers]

    def name(self, number: int) -> Name:
        """What orders options that are alike, in whatever order the records came."""
        option = self[number]
        return self.roster.gang(option.slot).run_id, str(option.how), option.released

    def cheapest(self, slot: int) -> int:
        """No option of the slot costs less."""
        roster = self.roster
        least = [roster.cost(slot)] if self.allowed[slot] else []
        if self.rights.may_move[slot]:
            least.append(roster.cost_of_move(slot))
        if self.allowed[slot] and roster.spare[slot]:
            gang = roster.gang(slot)
            smallest = (len(gang.placement.members) - int(roster.spare[slot])) * gang.request.devices_per_node
            least.append(roster.cost_of_shrinking(slot, smallest))
        return min(least)

    def offer(self, domain: Domain, relieving: Bools) -> None:
        """Write into `domain` what every gang that holds devices there could leave to it."""
        relief = set()
        for slot, units in domain.held.items():
            if self.allowed[slot]:
                domain.gains[slot] = units
                for number, gains in self._shrinkings(slot, domain):
                    domain.gains[number] = gains
                    if relieving[slot]:
                        relief.add(number)
            if self.rights.may_move[slot]:
                move = Option(slot, How.MOVE, self.roster.cost_of_move(slot), 0)
                domain.gains[self._number(move)] = units
        for slot in np.flatnonzero(relieving).tolist():
            domain.gains.setdefault(slot, {})
            relief.add(slot)
        domain.relief = frozenset(relief)

    def devices_of(self, option: Option) -> Ints:
        """The numbers of the devices that a gang gives up when it shrinks so."""
        devices = self._devices_by_member(option.slot)
        return np.concatenate([devices[index] for index in sorted(option.gone)])

    def twins(self, domain: Domain) -> list[int | None]:
        """Per option in order, the one before it that would do as well in its stead: it is not taken without that.

        Such options leave the same devices at the same cost by the same right, so the earlier, newer one is better.
        """
        last: dict[object, int] = {}
        found: list[int | None] = []
        for number in domain.order:
            option, rights = self[number], self.rights
            slot = option.slot
            key = (
                tuple(sorted(domain.gains[number].items())), option.cost, option.how, option.released,
                self.roster.stranded_of(option), int(self.roster.team[slot]), bool(rights.lower[slot]),
                bool(rights.conditional[slot]),
            )  # fmt: skip
            found.append(None if option.how is How.MOVE else last.get(key))
            last[key] = number
        return found

    def _shrinkings(self, slot: int, domain: Domain) -> list[tuple[int, dict[int, int]]]:
        spare = int(self.roster.spare[slot])
        if not spare:
            return []
        useful: list[tuple[float, int, dict[int, int]]] = []
        for index, devices in enumerate(self._devices_by_member(slot)):
            names, counts = np.unique(self.unit_of[devices] * domain.kinds, return_counts=True)
            gains = {u: c for u, c in zip(names.tolist(), counts.tolist(), strict=True) if u in domain.missing}
            if domain.at_node:
                gains |= self._beside(slot, index, domain)
            if index and gains:
                useful.append((domain.useful(gains, domain.missing), index, gains))
        useful.sort(key=lambda entry: (-entry[0], -entry[1]))
        useful = useful[:spare]
        gang, found = self.roster.gang(slot), []
        self.partial |= bool(useful)
        sizes = range(1, len(useful) + 1)
        step = max(1, -(-len(sizes) // MOST_SHRINKINGS))
        for count in sorted({*sizes[::step], *sizes[-1:]}):
            gains = {}
            for _, _, more in useful[:count]:
                for unit, devices_there in more.items():
                    gains[unit] = gains.get(unit, 0) + devices_there
            each = gang.request.devices_per_node
            left = (len(gang.placement.members) - count) * each
            option = Option(
                slot, How.SHRINK, self.roster.cost_of_shrinking(slot, left), count * each,
                frozenset(index for _, index, _ in useful[:count]),
            )  # fmt: skip
            found.append((self._number(option), gains))
        return found

    def _beside(self, slot: int, index: int, domain: Domain) -> dict[int, int]:
        """What one member would leave beside its devices."""
        gang = self.roster.gang(slot)
        node = self.fleet.node_number.get(gang.placement.members[index].node, -1)
        amounts = (0, *host_needs(gang.request))
        return {key: amount for key in domain.at_node.get(node, ()) if (amount := amounts[key % domain.kinds])}

    def _devices_by_member(self, slot: int) -> list[Ints]:
        found = self._member_devices.get(slot)
        if found is None:
            known = self.fleet.device_number
            found = self._member_devices[slot] = [
                np.array([known[uuid] for uuid in member.devices if uuid in known], np.int64)
                for member in self.roster.gang(slot).placement.members
            ]
        return found

    def _number(self, option: Option) -> int:
        number = self._numbers.get(option)
        if number is None:
            number = self._numbers[option] = self._width + len(self._milder)
            self._milder.append(option)
        return number
