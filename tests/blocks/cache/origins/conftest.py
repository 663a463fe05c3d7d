"""Servers and disks that go wrong, for the tests here."""

from tests.fixtures.disks import small_disk
from tests.fixtures.misbehaving import origin_server

__all__ = ["origin_server", "small_disk"]
