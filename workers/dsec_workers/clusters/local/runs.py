"""One `gang.run` in the supervisor: which ranks are out, where they meet, and what each of them came back with."""

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsec_workers.clusters.local.layout import read_json
from dsec_workers.clusters.local.rank import EXIT_EVICTED, error_file, result_file
from dsec_workers.clusters.local.ranks import Rank, launched_argv
from dsec_workers.clusters.local.rendezvous import Rendezvous

FAILED_RUN_GRACE_SECONDS = 5.0
"""How long the other ranks have, after one has failed, between SIGTERM and SIGKILL."""


@dataclass(kw_only=True)
class GangRun:
    """The ranks of one call, from start to the last exit. `tell` sends one line to whoever called."""

    number: int
    ranks: tuple[Rank, ...]
    results: Path
    tell: Callable[[dict[str, Any]], None]
    rendezvous: Rendezvous
    pids: dict[int, int] = field(default_factory=dict)
    """rank → pid, of those that run."""
    exits: dict[int, int] = field(default_factory=dict)
    errors: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        """Whether every rank has ended."""
        return len(self.exits) == len(self.ranks)

    @property
    def has_failed(self) -> bool:
        """Whether a rank ended badly (leaving because of a notice is not bad)."""
        return any(code not in (0, EXIT_EVICTED) for code in self.exits.values())

    def orders(self, call: Mapping[str, Any], *, launcher: str, nodes: int) -> dict[int, dict[str, Any]]:
        """What each member is told to start."""
        argv = call.get("argv") or []
        by_member: dict[int, list[dict[str, Any]]] = {}
        for rank in self.ranks:
            spec = {"rank": rank.rank, "env": dict(rank.env)}
            if argv:
                spec["argv"] = launched_argv(argv, launcher=launcher, env=rank.env, nodes=nodes)
            by_member.setdefault(rank.member, []).append(spec)
        return {
            member: {"op": "run", "run": self.number, "call": dict(call), "results": str(self.results), "ranks": specs}
            for member, specs in by_member.items()
        }

    def ended(self, rank: int, code: int) -> None:
        """Take down one rank's exit, tell the caller, and whoever waits for it."""
        self.pids.pop(rank, None)
        self.exits[rank] = code
        error = read_json(error_file(self.results, rank))
        if error is None and code < 0:
            error = {"type": "Killed", "message": f"rank {rank} was killed by signal {-code}", "traceback": ""}
        if error is not None:
            self.errors[rank] = error
        result = result_file(self.results, rank)
        self.tell(
            {
                "rank": rank,
                "member": self.ranks[rank].member,
                "exit": code,
                "result": str(result) if code == 0 and result.exists() else None,
                "error": error,
            }
        )
        self.rendezvous.leave(rank, "has left" if code in (0, EXIT_EVICTED) else f"failed (exit {code})")


def free_port(address: str) -> int:
    """A port of `address` that was free a moment ago, for the ranks' own rendezvous."""
    with socket.socket() as probe:
        probe.bind((address, 0))
        return int(probe.getsockname()[1])
