"""Teams: who may use how much, and with what weight."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """A Prefect work queue that the ledger knows.

    A team may always use `nominal_devices`; up to `borrow_devices` more when others leave them idle (None: as many
    as are idle). `highest_priority` bounds what its runs may ask for.
    """

    name: str
    nominal_devices: int
    borrow_devices: int | None = None
    weight: float = 1.0
    highest_priority: int = 100

    @property
    def limit_devices(self) -> int | None:
        """The most devices the team can ever hold at once; None is no limit."""
        return None if self.borrow_devices is None else self.nominal_devices + self.borrow_devices


DEFAULT_TEAM = "default"
