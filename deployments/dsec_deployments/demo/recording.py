"""What happened during the demo, second by second: who held which device, who waited, what the loss was."""

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dsec_blocks.ledger import Ledger
from dsec_blocks.model.clock import Clock
from dsec_blocks.model.errors import LedgerError
from dsec_blocks.model.gangs import GangState

SAMPLE_SECONDS = 0.2


@dataclass(slots=True, kw_only=True)
class Span:
    """One device in the hands of one gang, from `start` to `end` (seconds since the epoch)."""

    device: str
    run: str
    attempt: int
    start: float
    end: float


@dataclass(slots=True, kw_only=True)
class Wait:
    """One gang in the line, from `start` to `end`, with the last reason it was given."""

    run: str
    start: float
    end: float
    reason: str


@dataclass
class Recording:
    """Filled by the recorder and by the scenes; read by the report."""

    began: float
    devices: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    """By device: what a person calls it."""
    spans: list[Span] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    losses: dict[str, dict[int, float]] = field(default_factory=dict)
    """By curve: step → loss."""
    marks: list[tuple[float, str]] = field(default_factory=list)
    """Moments worth a line in the plots."""
    resumes_at: int | None = None
    """The step from which the evicted run goes on."""

    def mark(self, at: float, text: str) -> None:
        """Note a moment."""
        self.marks.append((at, text))


class Recorder:
    """Samples the ledger in a thread of its own."""

    def __init__(self, ledger: Ledger, pool: str, recording: Recording, *, clock: Clock) -> None:
        self._ledger = ledger
        self._pool = pool
        self._recording = recording
        self._clock = clock
        self._held: dict[tuple[str, str, int], Span] = {}
        self._waiting: dict[str, Wait] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_stopped, name="demo-recorder", daemon=True)

    def __enter__(self) -> "Recorder":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)

    def _sample_until_stopped(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            try:
                self.sample()
            except LedgerError:
                continue  # the ledger is busy or being upset on purpose; the next sample will do

    def sample(self) -> None:
        """Look once."""
        now = self._clock.now()
        names: Mapping[str, str] = {}
        gangs = {gang.run_id: gang for gang in self._ledger.gangs(self._pool)}
        names = {run_id: gang.name for run_id, gang in gangs.items()}
        if not self._recording.devices:
            nodes = self._ledger.nodes(self._pool)
            self._recording.devices = [device.uuid for node in nodes for device in node.devices]
            self._recording.labels = {
                device.uuid: f"{node.name} · GPU {device.index}" for node in nodes for device in node.devices
            }
        held = {
            (holding.device, names.get(holding.run_id, holding.run_id), holding.attempt)
            for holding in self._ledger.holders(self._pool)
            if holding.turn == 0
        }
        for key in held:
            span = self._held.get(key)
            if span is None:
                span = Span(device=key[0], run=key[1], attempt=key[2], start=now, end=now)
                self._held[key] = span
                self._recording.spans.append(span)
            span.end = now
        self._forget(self._held, held)
        waiting = {run_id: gang for run_id, gang in gangs.items() if gang.state is GangState.WAITING}
        for run_id, gang in waiting.items():
            wait = self._waiting.get(run_id)
            if wait is None:
                wait = Wait(run=gang.name, start=now, end=now, reason="")
                self._waiting[run_id] = wait
                self._recording.waits.append(wait)
            wait.end = now
            wait.reason = gang.reason or wait.reason
        self._forget(self._waiting, waiting)

    @staticmethod
    def _forget(open_ones: dict, present: Iterable) -> None:  # type: ignore[type-arg]
        for key in [key for key in open_ones if key not in present]:
            del open_ones[key]
