"""Sizes and durations read as people write them."""

import pytest

from dsec_blocks.model.units import format_duration, format_memory, parse_duration, parse_memory


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("80GiB", 80 << 30),
        (" 24 GB ", 24 * 10**9),
        ("1.5Ti", 3 << 39),
        ("512mib", 512 << 20),
        ("4096 B", 4096),
        ("16ki", 16384),
    ],
)
def test_a_size_is_read_with_its_unit(text: str, size_bytes: int) -> None:
    assert parse_memory(text, field="f") == size_bytes


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(30, 30.0), (0.5, 0.5), ("30", 30.0), ("30s", 30.0), ("250 ms", 0.25), ("15min", 900.0), ("15m", 900.0)]
    + [("2H", 7200.0), ("1.5d", 129600.0), (0, 0.0)],
)
def test_a_duration_is_read_with_or_without_its_unit(value: str | float, seconds: float) -> None:
    assert parse_duration(value, field="f") == seconds


@pytest.mark.parametrize(
    ("size_bytes", "text"), [(0, "0 B"), (1536, "1.5 KiB"), (80 << 30, "80 GiB"), (3 << 39, "1.5 TiB")]
)
def test_a_size_is_printed_with_a_binary_unit(size_bytes: int, text: str) -> None:
    assert format_memory(size_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-3, "0 s"), (40, "40 s"), (720, "12 min"), (9000, "2.5 h"), (3 * 86400, "3.0 d")],
)
def test_a_duration_is_printed_as_a_person_would_say_it(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
