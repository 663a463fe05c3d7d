"""An exit code says what a person can do about it, where one can."""

import pytest

from dsec_blocks.gang.results import GangRunError, RankOutcome
from dsec_blocks.model.exits import meaning


@pytest.mark.parametrize("code", [-7, 135])
def test_exit_135_is_weights_that_could_not_be_read(code: int) -> None:
    """C22: mapped weights on a network file system end in SIGBUS, minutes after whatever went wrong."""
    assert meaning(code).startswith("weights unreadable")
    error = GangRunError([RankOutcome(rank=0, member=0, exit=code)])
    assert "(weights unreadable: a page of a mapped file could not be read" in str(error)
    assert "load_weights" in str(error)


@pytest.mark.parametrize("code", [0, 1, 7, -9, 137, 139, 128])
def test_any_other_end_means_what_its_number_says(code: int) -> None:
    assert meaning(code) == ""
