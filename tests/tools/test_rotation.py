"""What is played in turn is played whole within the days that are stated."""

import pytest

from tests.fixtures.rotation import in_turn


@pytest.mark.parametrize("days", [1, 2, 3, 7])
def test_so_many_days_in_a_row_play_each_case_once(days: int) -> None:
    cases = [(f"point-{number}", "kill_before") for number in range(5)]
    played = [
        param.values
        for day in range(730_000, 730_000 + days)
        for param in in_turn(cases, day=day, days=days)
        if not param.marks
    ]
    assert sorted(played) == cases


def test_the_others_of_a_day_are_long() -> None:
    marks = [[mark.name for mark in param.marks] for param in in_turn("abc", day=2, days=3)]
    assert marks == [["long"], [], ["long"]]
