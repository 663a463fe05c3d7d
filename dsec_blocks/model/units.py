"""Sizes and durations as people write them, refused when the unit is missing."""

import re

from dsec_blocks.model.errors import InvalidRequest

_MEMORY_UNITS = {
    "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip
_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def parse_memory(text: str, *, field: str) -> int:
    """Bytes in `text`, for example `"80GiB"` or `"24 GB"`.

    Raises `InvalidRequest` without a unit: "80" has been read as bytes, MiB and GiB by different tools.
    """
    match = _NUMBER_AND_UNIT.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"{field}: {text!r} is not a size; write for example '80GiB'")
    number, unit = match.groups()
    if not unit:
        raise InvalidRequest(f"{field}: {text!r} has no unit; write for example '{number}GiB'")
    factor = _MEMORY_UNITS.get(unit.upper())
    if factor is None:
        raise InvalidRequest(f"{field}: unknown unit {unit!r} in {text!r}; use KiB, MiB, GiB, TiB or KB, MB, GB, TB")
    return int(float(number) * factor)


def parse_duration(value: str | float, *, field: str) -> float:
    """Seconds in `value`: a number of seconds, or text such as `"30s"`, `"15min"`, `"2h"`."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        seconds = float(value)
    else:
        match = _NUMBER_AND_UNIT.fullmatch(str(value))
        unit = match.group(2) if match else None
        if match is None or (unit and unit.lower() not in _DURATION_UNITS):
            raise InvalidRequest(f"{field}: {value!r} is not a duration; write for example '30s', '15min' or '2h'")
        seconds = float(match.group(1)) * _DURATION_UNITS[unit.lower() if unit else "s"]
    if not seconds >= 0 or seconds == float("inf"):
        raise InvalidRequest(f"{field}: a duration cannot be {value!r}")
    return seconds


def format_memory(size_bytes: int) -> str:
    """`size_bytes` with a binary unit: 80 GiB, 1.5 TiB."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"


def format_duration(seconds: float) -> str:
    """`seconds` as a person would say them: 40 s, 12 min, 2.5 h."""
    if seconds < 90:
        return f"{max(0.0, seconds):.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.1f} d"
