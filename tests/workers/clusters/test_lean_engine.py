"""A short run asks the server for little; one that lasts misses nothing of what Prefect's own engine does."""

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dsec_workers.clusters.local import lean_engine


class Work:
    """What Prefect's own context manager would do: go on while it is entered."""

    def __init__(self) -> None:
        self.began, self.ended = threading.Event(), threading.Event()
        self.asked: tuple[Any, ...] = ()

    @contextlib.contextmanager
    def send(self, _: object, join_on_exit: bool = True) -> Iterator[None]:
        assert not join_on_exit
        yield from self._go_on()

    @contextlib.contextmanager
    def observe(self, *args: object) -> Iterator[None]:
        self.asked = args
        yield from self._go_on()

    def _go_on(self) -> Iterator[None]:
        self.began.set()
        yield
        self.ended.set()


def test_a_run_that_is_over_at_once_sends_no_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean_engine, "FIRST_HEARTBEAT_SECONDS", 0.2)
    heart = Work()
    with lean_engine.late_heartbeats(heart.send, None):
        pass
    assert not heart.began.wait(0.4)


def test_a_run_that_goes_on_sends_heartbeats_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean_engine, "FIRST_HEARTBEAT_SECONDS", 0.0)
    heart = Work()
    with lean_engine.late_heartbeats(heart.send, None):
        assert heart.began.wait(5)
        assert not heart.ended.is_set()
    assert heart.ended.wait(5)


def test_a_run_that_is_over_at_once_does_not_look_for_its_suspension(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean_engine, "SUSPENSION_SECONDS", 0.2)
    watch = Work()
    with lean_engine.late_watch(watch.observe, "run", "request"):
        pass
    assert not watch.began.wait(0.4)


def test_a_run_that_goes_on_looks_for_its_suspension_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean_engine, "SUSPENSION_SECONDS", 0.0)
    watch = Work()
    with lean_engine.late_watch(watch.observe, "run", "request"):
        assert watch.began.wait(5)
        assert watch.asked == ("run", "request")
    assert watch.ended.wait(5)
