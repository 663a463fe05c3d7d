"""What the end of a process tells a person, where its number alone would not."""

import signal

_UNREADABLE = (
    "weights unreadable: a page of a mapped file could not be read, as happens on network and FUSE file systems; "
    "dsec_blocks.cache.load_weights reads files instead of mapping them, and names the one that is broken"
)


def meaning(code: int) -> str:
    """What an exit code (negative: a signal; above 128: a signal, as shells and containers tell it) stands for.

    Empty where it says no more than the number does.
    """
    number = -code if code < 0 else code - 128
    return _UNREADABLE if number == signal.SIGBUS else ""
