"""When an operator's order begins and ends, as it is typed."""

import datetime

import pytest
import typer

from dsec_deployments.cli.ordering import clock_time, moment

NOON = datetime.datetime(2026, 11, 30, 12, 0).astimezone().timestamp()
HOUR = 3600.0


@pytest.mark.parametrize(
    ("text", "hours"),
    [
        ("now", 0),
        ("2h", 2),
        ("30min", 0.5),
        ("18:00", 6),
        ("08:00", 20),
        ("12:00", 24),
        ("2026-11-30T15:00", 3),
        ("2026-12-01", 12),
    ],
)
def test_a_moment_is_a_span_from_now_the_next_such_time_or_a_date(text: str, hours: float) -> None:
    assert moment(text, now=NOON, option="--by") == pytest.approx(NOON + hours * HOUR)


def test_an_offset_that_is_given_counts() -> None:
    assert moment("2026-11-30T12:00+00:00", now=NOON, option="--by") == 1796040000.0


@pytest.mark.parametrize("text", ["soon", "25:00", "2h30", "-1h", ""])
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="neither a span from now"):
        moment(text, now=NOON, option="--by")


def test_a_moment_is_printed_in_local_time() -> None:
    assert clock_time(NOON) == "2026-11-30 12:00"
