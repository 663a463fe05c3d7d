"""Fixtures shared by all tests, one module a server."""

pytest_plugins = ["tests.fixtures.postgres", "tests.fixtures.prefect", "tests.fixtures.s3"]
