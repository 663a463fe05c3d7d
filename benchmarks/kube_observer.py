"""The one who takes the times: watches pods in a process of its own and says when each batch's pods were seen Running.

    python -m benchmarks.kube_observer KUBECONFIG

Prints a JSON line when it watches, then one for each batch that moved, at most ten a second, and whenever a batch has
grown to a new size that somebody waits for: {"batch": {"running": N, "first", "at": seconds since the epoch when the
first and the newest of them was seen Running, "mean": of all, "ended": M that succeeded, "ended_at": the newest}}.
It knows nothing of who created the pods; only the label `dsec-bench/batch` counts.
"""

import asyncio
import json
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from dsec_workers.clusters.kubernetes.api import Api
from dsec_workers.clusters.kubernetes.credentials import ClusterAccess
from dsec_workers.clusters.kubernetes.errors import Expired, Unreachable

LABEL = "dsec-bench/batch"
RUNNING, SUCCEEDED = "Running", "Succeeded"
PAUSE_SECONDS = 0.1


@dataclass
class Tally:
    """Pods that were ever seen Running, and those that succeeded, by batch, with the times."""

    seen: dict[tuple[str, str], set[str]] = field(default_factory=dict)
    times: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """(batch, phase) → when each pod was first seen in it."""

    def note(self, pod: dict[str, Any], at: float) -> None:
        """A pod as the API server shows it at that time. One that has succeeded ran before, whether seen or not."""
        batch = (pod["metadata"].get("labels") or {}).get(LABEL)
        phase = (pod.get("status") or {}).get("phase")
        if batch is None or phase not in (RUNNING, SUCCEEDED):
            return
        for reached in (RUNNING, SUCCEEDED) if phase == SUCCEEDED else (RUNNING,):
            known = self.seen.setdefault((batch, reached), set())
            uid = pod["metadata"]["uid"]
            if uid not in known:
                known.add(uid)
                self.times.setdefault((batch, reached), []).append(at)

    def told(self) -> dict[str, Any]:
        """For whoever waits: per batch how many, and at which times."""
        found: dict[str, Any] = {}
        for (batch, phase), times in self.times.items():
            if phase == RUNNING:
                mean = sum(times) / len(times)
                found[batch] = {"running": len(times), "first": times[0], "at": times[-1], "mean": mean, "ended": 0}
        for (batch, phase), times in self.times.items():
            if phase == SUCCEEDED:
                found[batch] |= {"ended": len(times), "ended_at": times[-1]}
        return found


async def observe(kubeconfig: str, tally: Tally) -> None:
    """Watch for ever; a watch that the API server ends is taken up again from a new list."""
    async with await Api.connect(ClusterAccess(kubeconfig=kubeconfig)) as api:
        telling: asyncio.Task[None] | None = None
        try:
            while True:
                pods, since = await api.list("/api/v1/pods", labels=LABEL)
                _note_all(tally, pods)
                if telling is None:
                    print(json.dumps({"watching": True}), flush=True)
                    telling = asyncio.create_task(_tell(tally))
                with suppress(Expired, Unreachable):
                    async for kind, pod in api.watch("/api/v1/pods", since=since, labels=LABEL):
                        if kind != "BOOKMARK":
                            tally.note(pod, time.time())
        finally:
            if telling is not None:
                telling.cancel()


def _note_all(tally: Tally, pods: Iterable[dict[str, Any]]) -> None:
    for pod in pods:
        tally.note(pod, time.time())


async def _tell(tally: Tally) -> None:
    last: dict[str, Any] = {}
    while True:
        await asyncio.sleep(PAUSE_SECONDS)
        now = tally.told()
        if now != last:
            last = now
            print(json.dumps(now), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(observe(sys.argv[1], Tally()))
