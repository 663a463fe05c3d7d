"""The lines of a run's first second: none is lost, whatever becomes of the run."""

import os
import threading
from typing import Any

import pytest

from dsec_workers.clusters.local import first_logs
from dsec_workers.clusters.local.first_logs import FirstLogs, kept_back


class Server:
    """Where lines arrive: at once, on the run's own connection, or by way of Prefect's own sending."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, fails: BaseException | None = None) -> None:
        self.at_once: list[str] = []
        self.by_prefect: list[str] = []
        self.came = threading.Event()
        self._client, self._fails = self, fails
        monkeypatch.setattr(first_logs, "_to_prefect", self._take)

    def _take(self, line: dict[str, Any]) -> None:
        self.by_prefect.append(line["message"])
        self.came.set()

    def post(self, path: str, *, json: list[dict[str, Any]]) -> None:
        if self._fails is not None:
            raise self._fails
        assert path == "/logs/"
        assert all("__payload_size__" not in line for line in json)
        self.at_once += [line["message"] for line in json]


def line(message: str, size: int = 100) -> dict[str, Any]:
    return {"message": message, "__payload_size__": size}


def test_a_run_that_is_over_at_once_sends_all_its_lines_in_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    server, logs = Server(monkeypatch), FirstLogs()
    for message in ("a", "b"):
        logs.take(line(message))
    logs.send(server)
    logs.take(line("after the end"))
    assert (server.at_once, server.by_prefect) == (["a", "b"], ["after the end"])


def test_a_run_that_lasts_gives_its_lines_to_prefect_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    server, logs = Server(monkeypatch), FirstLogs()
    logs.take(line("a"))
    logs.give_away()
    logs.take(line("b"))
    logs.send(server)
    assert (server.at_once, server.by_prefect) == ([], ["a", "b"])


def test_a_run_that_logs_much_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    server, logs = Server(monkeypatch), FirstLogs()
    for message in ("a", "b", "c"):
        logs.take(line(message, size=first_logs.MOST_KEPT_BYTES))
    logs.send(server)
    assert sorted(server.at_once + server.by_prefect) == ["a", "b", "c"]
    assert server.by_prefect == ["a", "b", "c"]


def test_lines_that_cannot_be_sent_are_told_and_end_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    server, logs = Server(monkeypatch, fails=OSError("away")), FirstLogs()
    logs.take(line("a"))
    logs.send(server)
    assert "--- Error logging to API ---\naway" in capsys.readouterr().err


def test_lines_whose_sending_is_interrupted_are_left_to_prefect(monkeypatch: pytest.MonkeyPatch) -> None:
    server, logs = Server(monkeypatch, fails=KeyboardInterrupt()), FirstLogs()
    logs.take(line("a"))
    with pytest.raises(KeyboardInterrupt):
        logs.send(server)
    assert server.by_prefect == ["a"]


def test_after_a_while_prefect_has_them_though_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.logging.handlers import emit_api_log

    monkeypatch.setattr(first_logs, "KEPT_SECONDS", 0.05)
    server = Server(monkeypatch)
    with kept_back(server):
        emit_api_log(line("a"))
        assert server.came.wait(10)
    assert (server.at_once, server.by_prefect) == ([], ["a"])


def test_a_child_that_user_code_forks_does_not_send_its_parents_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.logging.handlers import emit_api_log

    server = Server(monkeypatch)
    with kept_back(server):
        emit_api_log(line("a"))
        pid = os.fork()
        if pid == 0:
            emit_api_log(line("by the child"))
            os._exit(0 if server.by_prefect == ["by the child"] else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert server.at_once == ["a"]
