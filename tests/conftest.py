"""Fixtures shared by all tests, one module a server, and how the tests are spread over processes."""

pytest_plugins = [
    "tests.fixtures.forking",
    "tests.fixtures.kubernetes",
    "tests.fixtures.postgres",
    "tests.fixtures.prefect",
    "tests.fixtures.process_nodes",
    "tests.fixtures.s3",
    "tests.fixtures.slow_api",
    "tests.fixtures.turns",
]
