"""Property tests take their time: `make test` runs them, `make test-fast` does not."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them are slow."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)
