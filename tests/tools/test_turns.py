"""How the tests are spread over processes."""

from pathlib import Path

from tests.fixtures.turns import TURNS, suite_of, turn_of

ROOT = Path(__file__).resolve().parent.parent.parent


def test_every_suite_names_tests_that_exist() -> None:
    assert [path for suite in TURNS for path in suite if not list(ROOT.glob(path.rstrip("/") + "*"))] == []


def test_the_crash_matrix_stays_in_one_process_and_begins() -> None:
    matrix, stories = "tests/crash/test_matrix.py", "tests/crash/test_reached.py"
    assert suite_of(matrix) == suite_of(stories) != suite_of("tests/crash/test_by_name.py")
    assert turn_of(matrix) == 0


def test_a_file_of_no_suite_is_one_of_its_own_and_comes_last() -> None:
    alone = "tests/tools/test_turns.py"
    assert suite_of(alone) == alone
    assert turn_of(alone) > max(turn_of(path) for suite in TURNS for path in suite)
