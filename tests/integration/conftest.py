"""A fresh site per test on the session's server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.forking import Zygote
from tests.fixtures.prefect import PrefectServer
from tests.integration.site import Site


@pytest.fixture
def site(prefect_server: PrefectServer, zygote: Zygote | None, tmp_path: Path) -> Iterator[Site]:
    site = Site(server=prefect_server, home=tmp_path, zygote=zygote)
    yield site
    site.close()
