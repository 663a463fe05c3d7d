"""Prefect's heartbeats begin late, so that a short run costs none, and go on as Prefect's own do."""

import contextlib
import threading
from collections.abc import Iterator

import pytest

from dsec_workers.clusters.local import engine


class Heart:
    """What Prefect's own context manager would do: beat while it is entered."""

    def __init__(self) -> None:
        self.began, self.ended = threading.Event(), threading.Event()

    @contextlib.contextmanager
    def send(self, _: object, join_on_exit: bool = True) -> Iterator[None]:
        assert not join_on_exit
        self.began.set()
        yield
        self.ended.set()


def test_a_run_that_is_over_at_once_sends_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "FIRST_HEARTBEAT_SECONDS", 0.2)
    heart = Heart()
    with engine._late_heartbeats(heart.send, None):
        pass
    assert not heart.began.wait(0.4)


def test_a_run_that_goes_on_sends_them_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "FIRST_HEARTBEAT_SECONDS", 0.0)
    heart = Heart()
    with engine._late_heartbeats(heart.send, None):
        assert heart.began.wait(5)
        assert not heart.ended.is_set()
    assert heart.ended.wait(5)
