"""Ranks of a gang in threads of a test: real stores and spools, a rendezvous instead of a supervisor."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from dsec_blocks.checkpoints import Checkpoints, StoreAddress
from dsec_blocks.checkpoints.session import Seat
from dsec_blocks.checkpoints.uploads import Uploader
from dsec_blocks.gateways.clock import SystemClock


class Ranks:
    """One attempt of a run with `world_size` ranks, and its uploader (which works when told to)."""

    def __init__(
        self,
        address: StoreAddress,
        directory: Path,
        *,
        attempt: int = 1,
        world_size: int = 1,
        run: str = "run-1",
        replicated: bool = False,
    ) -> None:
        self.spool = directory / f"spool-{attempt}"
        self.said: list[dict[str, Any]] = []
        self._barrier = threading.Barrier(world_size)
        self._values: dict[int, Any] = {}
        self.ranks = [
            Checkpoints(
                address,
                Seat(
                    run=run,
                    attempt=attempt,
                    rank=rank,
                    world_size=world_size,
                    spool=self.spool,
                    clock=SystemClock(),
                    agree=lambda name, value, rank=rank: self._agree(rank, value),
                    tell=lambda op, **fields: self.said.append({"op": op, **fields}),
                ),
                replicated=replicated,
            )
            for rank in range(world_size)
        ]
        self.uploader = Uploader(
            spool=self.spool, tell=lambda op, **fields: self.said.append({"op": op, **fields}), clock=SystemClock()
        )

    def all(self, do: Callable[[Checkpoints, int], Any]) -> list[Any]:
        """Do something in every rank at once."""
        with ThreadPoolExecutor(len(self.ranks)) as pool:
            futures = [pool.submit(do, rank, number) for number, rank in enumerate(self.ranks)]
            return [future.result(30) for future in futures]

    def restore(self, default: Any = None) -> list[Any]:
        return self.all(lambda rank, _: rank.restore(default))

    def save(self, step: int, state: Callable[[int], Any] | Any = None, *, upload: bool = True) -> None:
        self.all(lambda rank, number: rank.save(step, state(number) if callable(state) else {"step": step}))
        if upload:
            self.upload()

    def upload(self) -> None:
        while self.uploader.step():
            pass

    def _agree(self, rank: int, value: Any) -> Any:
        self._values[rank] = value
        self._barrier.wait(20)
        values = list(self._values.values())
        self._barrier.wait(20)
        return any(values) if isinstance(values[0], bool) else max(values)
