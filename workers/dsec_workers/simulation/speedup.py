"""How fast an elastic gang works with fewer members than it asks for: Amdahl's law over its members.

With a part `s` of the work that does not get faster, `m` members work m ÷ (1 + s·(m − 1)) times as fast as one. The
part is 0 unless a trace states it: then work is device-seconds, which is what the ledger counts too when it expects how
long a run will last. Source: Amdahl, "Validity of the single processor approach to achieving large scale computing
capabilities" (AFIPS 1967).
"""


def relative_speed(members: int, full: int, serial_fraction: float = 0.0) -> float:
    """Work a second with so many members, 1 being that of all `full` of them; exactly 1 for those."""
    return 1.0 if members == full else _speed(members, serial_fraction) / _speed(full, serial_fraction)


def _speed(members: int, serial_fraction: float) -> float:
    return members / (1.0 + serial_fraction * (members - 1))
