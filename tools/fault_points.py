"""The fault points in the source: every `at="…"` given to a gateway, and every literal `fault_point("…")`.

The crash suite is generated from these names, so the list is read from the source and never written by hand:

    python tools/fault_points.py           # print them
    python tools/fault_points.py --write   # write tests/crash/points.json
"""

import ast
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = (
    "dsec_blocks",
    "workers/dsec_workers",
    "flows/dsec_flows",
    "deployments/dsec_deployments",
)
POINTS_FILE = ROOT / "tests" / "crash" / "points.json"
RUN = "run"
"""The scope of the crash matrix: every point on the path of a run, of a worker or of a recovery."""
SCOPES: dict[str, tuple[str, ...]] = {
    "command": (
        "up.", "down.", "demo.", "deploy.", "simulate.", "team.", "cancel.", "worker.execute", "ledger.backup",
        "ledger.restore", "ledger.migrate", "ledger.put_team", "ledger.remove_team", "ledger.put_policy", "ledger.wish",
        "incident.",
        "checkpoint.selftest.", "checkpoint.export.", "checkpoint.remove.", "cluster.supervisor.kill",
        "cluster.sweep.kill", "kube.build.", "kube.plane.",
    ),
    "cluster level": ("cache.transfer.", "cache.cluster.", "ledger.fill."),
    "node cache": ("cache.",),
    "kubernetes": ("kube.job.", "kube.pod.", "kube.secret.", "outpost.", "cluster.kubernetes."),
    "node agent": ("agent.", "ledger.inventory.", "ledger.prefetch.", "ledger.observed"),
    "janitor": ("checkpoint.janitor.",),
    "local call": ("gang.local_rank.", "gang.error.", "gang.result."),
    "real GPU": ("pool.nvml.",),
    "object store": ("checkpoint.head.put",),
    "upgrade": ("prefect.template.",),
    "race": ("supervisor.late_rank.term", "supervisor.exit.forgotten"),
}  # fmt: skip
"""Points outside the matrix, by the beginning of their names.

`command`: a person at a prompt sees the failure and types the command again; those that matter have tests of their
own. `cluster level`, `node cache`: each has a matrix of its own. `node agent`: what a node says of itself, again and
again. `janitor`: removes what is a day old, which no story
waits for. `kubernetes`: needs a control plane; struck in the adapter's tests. `local
call`: a flow called without a pool, nothing durable to recover. `object
store`: struck in its own test, since the stories use a directory. `race`: no story can reach it for certain.
`upgrade`: written once, by the first worker of a new version; struck in its own test. What no test strikes is excused,
each with its reason, in `tests/crash/test_scopes.py` and `tests/crash/test_commands_reached.py`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPoint:
    """One place in the source that names a fault point; `name` is None where the name is not a literal."""

    name: str | None
    path: str
    line: int


def sources(root: Path = ROOT) -> list[Path]:
    """Every module of the shipped packages."""
    return sorted(path for package in SHIPPED for path in (root / package).rglob("*.py"))


def points_in(source: str, *, path: str) -> Iterator[FaultPoint]:
    """The fault points named in one module. A gateway that hands its own parameter `at` on names none."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        for keyword in node.keywords:
            if keyword.arg == "at" and not _passes_on(keyword.value) and _takes_a_point(node, keyword.value):
                yield FaultPoint(name=_literal(keyword.value), path=path, line=node.lineno)
        if _called(node) == "fault_point" and node.args and not _passes_on(node.args[0]):
            yield FaultPoint(name=_literal(node.args[0]), path=path, line=node.lineno)


def fault_points(root: Path = ROOT) -> list[FaultPoint]:
    """All fault points of the shipped packages, by name."""
    found = [point for path in sources(root) for point in points_in(path.read_text(), path=str(path.relative_to(root)))]
    return sorted(found, key=lambda point: (point.name or "", point.path, point.line))


def points_json(points: list[FaultPoint]) -> str:
    """What `tests/crash/points.json` must hold: each name with the module that owns it, and its scope."""
    told = {point.name: {"module": point.path, "scope": scope_of(point.name)} for point in points if point.name}
    return json.dumps(told, indent=1, sort_keys=True) + "\n"


def scope_of(name: str) -> str:
    """Who strikes at this point: `run` is the crash matrix, for the others see `SCOPES`."""
    return next((scope for scope, prefixes in SCOPES.items() if name.startswith(prefixes)), RUN)


def _called(node: ast.Call) -> str:
    function = node.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _literal(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _passes_on(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("at", "name")


def _takes_a_point(node: ast.Call, value: ast.expr) -> bool:
    """Events and decisions also have a field `at`, a time; a class is not a gateway."""
    return _literal(value) is not None or not (_called(node)[:1].isupper() or _is_a_time(value))


def _is_a_time(value: ast.expr) -> bool:
    if isinstance(value, ast.Constant):
        return not isinstance(value.value, str)
    text = ast.unparse(value)
    return any(word in text for word in ("now", "time", ".at", '"at"', "'at'", "stamp", "_at"))


def main() -> None:
    """Print the names, or write the file."""
    points = fault_points()
    text = points_json(points)
    if "--write" in sys.argv[1:]:
        POINTS_FILE.parent.mkdir(parents=True, exist_ok=True)
        POINTS_FILE.write_text(text)
        print(f"{len(points)} fault points written to {POINTS_FILE.relative_to(ROOT)}")
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
