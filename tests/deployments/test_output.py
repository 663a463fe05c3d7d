"""Listings that end in a sentence are readable in a narrow terminal too."""

import pytest

from dsec_deployments.cli import output

ROWS = [["1", "bronze-otter", "needs 2×4 H100; none free"], ["2", "elegant-angelfish", "[red] is no markup here"]]


@pytest.mark.parametrize(("width", "expected"), [(200, 1), (80, 2)])
def test_the_reason_has_a_line_of_its_own_only_where_there_is_no_room(
    width: int, expected: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(output.console, "_width", width)
    output.print_explained("Queue", ["#>", "run"], ROWS, empty="nothing", last="why")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 + expected * len(ROWS)
    first = next(line for line in lines if "bronze-otter" in line)
    assert ("none free" in first) == (width == 200)
    assert any("[red] is no markup here" in line for line in lines) == (width == 80)


def test_an_empty_listing_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    output.print_explained("Queue", ["#>", "run"], [], empty="nothing waits", last="why")
    assert capsys.readouterr().out == "nothing waits\n"
