"""Fixtures shared by all tests, one module a server, and how the tests are spread over processes.

These modules import what is heavy (Prefect, SQLAlchemy, boto3) inside their functions: every run of pytest loads them,
and the process that only spreads the tests would be kept two seconds from starting those that run them.
"""

import gc
import signal

import pytest

pytest_plugins = [
    "tests.fixtures.forking",
    "tests.fixtures.kubernetes",
    "tests.fixtures.postgres",
    "tests.fixtures.prefect",
    "tests.fixtures.process_nodes",
    "tests.fixtures.s3",
    "tests.fixtures.second_try",
    "tests.fixtures.slow_api",
    "tests.fixtures.turns",
]


def pytest_configure() -> None:
    """Programs that the tests start hear Ctrl-C, also where this one was started in the background of a script."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave alone what is there before the first test: without this the collector walks all of it again and again."""
    gc.collect()
    gc.freeze()
