"""What a process of a gang knows of its notice, whatever else it hears at the same time."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsec_blocks.gang.channel import Channel

NOTICE = {"kind": "evict", "reason": "a test needs the devices", "deadline": 4e9, "attempt": 1}
HELLO = {"id": 1, "ok": True, "run_id": "run", "notice": None}


class Scripted:
    """A supervisor that says these lines, all at once, to the first thing it is asked."""

    def __init__(self, path: Path, lines: list[dict[str, Any]]) -> None:
        self.path = str(path)
        self._lines = lines
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(self.path)
        self._listener.listen()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"".join(json.dumps(line).encode() + b"\n" for line in self._lines))
            self._over.wait(60)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._listener.close()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Callable[..., Scripted]]:
    made: list[Scripted] = []

    def scripted(*lines: dict[str, Any]) -> Scripted:
        made.append(Scripted(tmp_path / "channel", list(lines)))
        return made[-1]

    yield scripted
    for each in made:
        each.close()


def test_rank_0_ran_on_through_its_grace_when_the_notice_came_while_it_introduced_itself(
    supervisor: Callable[..., Scripted],
) -> None:
    """It heard the notice, and then took up the answer from before it. It is told of a notice only once."""
    scripted = supervisor({"id": 1, "ok": True}, HELLO, {"push": "notice", "notice": NOTICE})
    channel = Channel.connect(scripted.path)
    answers = channel.stream("hello")
    next(answers)
    while channel.notice is None:  # the process has no processor for a moment, and all of it is heard meanwhile
        time.sleep(0.01)
    assert next(answers)["run_id"] == "run"
    assert channel.notice == NOTICE
    channel.close()


def test_an_answer_tells_of_a_notice_from_before_the_connection(supervisor: Callable[..., Scripted]) -> None:
    channel = Channel.connect(supervisor({**HELLO, "notice": NOTICE}).path)
    channel.call("hello")
    assert channel.notice == NOTICE
    channel.close()


def test_a_notice_that_was_taken_back_is_forgotten(supervisor: Callable[..., Scripted]) -> None:
    lines = ({"push": "notice", "notice": NOTICE}, {"push": "withdrawn"}, {"id": 1, "ok": True})
    channel = Channel.connect(supervisor(*lines).path)
    channel.call("step")
    assert channel.notice is None
    channel.close()
