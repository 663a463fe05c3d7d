"""Incident files: one pool at one instant, whole, so that it can be planned again somewhere else.

`capture` writes what a plan depends on and the last decisions as one JSON document; `load` makes it a snapshot and a
queue again, for `dsec simulate` and `dsec what-if`. Whoever reads the file learns no secret from it: environments keep
their names and lose their values, addresses of inputs and of what nodes hold lose credentials and query strings (two
that then look alike are numbered), and what runs said or where they keep files is left out.

The format: `{"format": "dsec-incident", "version": 4, "captured_at", "captured_by", "why", "pool", "policy":
{"version", "values"}, "nodes", "teams", "usage", "gangs", "holdings", "evictions", "shadows", "orders", "decisions",
"inventories", "arrivals", "made_way", "checks", "failures"}`. Version 1 had none of the last five, version 2 not the
last three, version 3 not the last.
Times are seconds since the epoch; records have the fields of the dataclasses they are named after. A reader refuses a
version that is newer than its own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

from pydantic import TypeAdapter, ValidationError

from dsec_blocks.ledger import Arrivals, Decision, Eviction, Holding, Inventory, Ledger, Wish
from dsec_blocks.model.devices import Node
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.gangs import HOLDING_STATES, Gang, GangState
from dsec_blocks.model.teams import Team
from dsec_workers.lifecycle.admission_checks import AdmissionChecks, checks_as_told
from dsec_workers.lifecycle.data_distance import DataDistance, spelling_of
from dsec_workers.lifecycle.mirror import reading_of, view_of
from dsec_workers.lifecycle.orders import standing
from dsec_workers.lifecycle.plan_input import Facts, Line, remembered_seconds, snapshot_of
from dsec_workers.lifecycle.policy_text import policy_from_mapping, values_of
from dsec_workers.lifecycle.rules import active_policy
from dsec_workers.scheduling.policy import Policy
from dsec_workers.scheduling.snapshot import QueuedGang, Snapshot

FORMAT, VERSION = "dsec-incident", 4
LAST_DECISIONS = 1000
HIDDEN = "***"
_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Incident:
    """What an incident file holds, ready to be planned."""

    pool: str
    now: float
    snapshot: Snapshot
    queue: tuple[QueuedGang, ...]
    policy: Policy
    nodes: tuple[Node, ...]
    teams: Mapping[str, Team]
    gangs: tuple[Gang, ...]
    decisions: tuple[Decision, ...]
    data: DataDistance
    arrivals: Arrivals
    checks: AdmissionChecks | None
    """What Prefect's pauses and limits let through; None where whoever captured it did not ask."""


def capture(
    ledger: Ledger,
    pool: str,
    *,
    now: float,
    by: str,
    why: str = "",
    decisions: int = LAST_DECISIONS,
    checks: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The pool as its ledger tells it, as a JSON-ready document without secrets.

    `checks` is what Prefect says of its pauses and limits, as `admission_checks.checks_as_told` takes it.
    """
    policy = active_policy(ledger, pool)
    half_life, weights = policy.usage_half_life_seconds, policy.model_weights
    gangs = ledger.gangs(pool, {*HOLDING_STATES, GangState.LEAVING, GangState.WAITING})
    nodes = ledger.nodes(pool)
    mine = {node.name for node in nodes}
    held = [inventory for name, inventory in ledger.inventories().items() if name in mine]
    names = bare_addresses(
        [uri for gang in gangs for uri in gang.request.inputs]
        + [bundle.address for inventory in held for bundle in inventory.bundles]
    )
    return {
        "format": FORMAT,
        "version": VERSION,
        "captured_at": now,
        "captured_by": by,
        "why": why,
        "pool": pool,
        "policy": {"version": policy.version, "values": values_of(policy)},
        "nodes": _dump(tuple[Node, ...], tuple(nodes)),
        "teams": _dump(list[Team], list(ledger.teams(pool).values())),
        "usage": ledger.decayed_usage(pool, now, half_life_seconds=half_life, model_weights=weights),
        "gangs": _dump(list[Gang], [without_secrets(gang, names) for gang in gangs]),
        "holdings": _dump(list[Holding], ledger.holders(pool)),
        "evictions": _dump(list[Eviction], ledger.evictions(pool, open_only=False)[-decisions:]),
        "shadows": ledger.shadows(pool),
        "orders": _dump(list[Wish], ledger.wishes(pool)),
        "decisions": _dump(list[Decision], ledger.decisions(pool, limit=decisions)),
        "arrivals": _dump(Arrivals, ledger.arrivals(pool)),
        "inventories": _dump(list[Inventory], [_renamed(inventory, names) for inventory in held]),
        "made_way": ledger.evicted_since(pool, now - remembered_seconds(policy)),
        "checks": None if checks is None else dict(checks),
        "failures": ledger.node_failures(pool, now),
    }


def load(document: Mapping[str, Any], *, file: str = "incident") -> Incident:
    """The incident that `capture` wrote. Raises `InvalidRequest`, naming what in the file is wrong."""
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise InvalidRequest(f"{file}: this is no incident file; `dsec incident capture FILE` writes one")
    version = document.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise InvalidRequest(f"{file}: version {version!r}, but this dsec reads up to {VERSION}; upgrade dsec")
    try:
        policy = document["policy"]
        now, pool = float(document["captured_at"]), str(document["pool"])
        nodes = _load(tuple[Node, ...], document, "nodes", file)
        teams = {team.name: team for team in _load(list[Team], document, "teams", file)}
        gangs = _load(list[Gang], document, "gangs", file)
        arrivals = _load(Arrivals, document, "arrivals", file) if version > 1 else Arrivals()
        made_way = _load(list[tuple[str, str, float, str]], document, "made_way", file) if version > 2 else []
        told = document["checks"] if version > 2 else None
        obeyed = policy_from_mapping(policy["values"], file=f"{file}: policy", version=str(policy["version"]))
        view = view_of(
            reading_of(
                gangs,
                _load(list[Holding], document, "holdings", file),
                _load(list[Eviction], document, "evictions", file),
            )
        )
        checks = None if told is None else checks_as_told(pool, told, gangs)
        held = _load(list[Inventory], document, "inventories", file) if version > 1 else []
        data = DataDistance({inventory.node: inventory for inventory in held}, nodes=nodes, now=now)
        facts = Facts(
            pool=pool,
            now=now,
            policy=obeyed,
            nodes=nodes,
            view=view,
            teams=teams,
            usage={str(name): float(value) for name, value in document["usage"].items()},
            shadows=document["shadows"],
            orders=standing(_load(list[Wish], document, "orders", file), nodes, now),
            made_way=made_way,
            arrivals=arrivals,
            failures=_load(dict[str, float], document, "failures", file) if version > 3 else {},
        )
        queue, _ = Line().queue(view, checks or AdmissionChecks(), now=now, data=data)
        return Incident(
            pool=pool,
            now=now,
            snapshot=snapshot_of(facts),
            queue=tuple(queue),
            policy=obeyed,
            nodes=nodes,
            teams=teams,
            gangs=tuple(gangs),
            decisions=tuple(_load(list[Decision], document, "decisions", file)),
            data=data,
            arrivals=arrivals,
            checks=checks,
        )
    except KeyError as error:
        raise InvalidRequest(f"{file}: {error.args[0]!r} is missing; capture the incident again") from None


def without_secrets(gang: Gang, names: Mapping[str, str]) -> Gang:
    """The gang without what its owner may want to keep; `names` are what its inputs are called instead."""
    request = replace(
        gang.request,
        env=dict.fromkeys(gang.request.env, HIDDEN),
        inputs=tuple(names[uri] for uri in gang.request.inputs),
    )
    kept = ("kind", "at", "flow_exit", "exit_codes")
    outcome = {key: value for key, value in gang.outcome.items() if key in kept}
    return replace(gang, request=request, launch={}, outcome=outcome)


def bare_address(uri: str) -> str:
    """A URI without user, password, query and fragment."""
    parts = urlsplit(uri)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


def bare_addresses(uris: Iterable[str]) -> dict[str, str]:
    """What each URI is called in the file: bare, and still another than that of another URI."""
    spelt = {uri: spelling_of(uri) for uri in uris}
    alike: dict[str, list[str]] = {}
    for spelling in sorted(set(spelt.values())):
        alike.setdefault(bare_address(spelling), []).append(spelling)
    called = {
        spelling: bare if number == 0 else f"{bare}?{HIDDEN}{number}"
        for bare, spellings in alike.items()
        for number, spelling in enumerate(spellings)
    }
    return {uri: called[spelling] for uri, spelling in spelt.items()}


def _renamed(inventory: Inventory, names: Mapping[str, str]) -> Inventory:
    bundles = tuple(replace(bundle, address=names[bundle.address]) for bundle in inventory.bundles)
    return replace(inventory, bundles=bundles)


def _dump(kind: type[_T], value: _T) -> Any:
    return TypeAdapter(kind).dump_python(value, mode="json")


def _load(kind: type[_T], document: Mapping[str, Any], key: str, file: str) -> _T:
    try:
        return TypeAdapter(kind).validate_python(document[key])
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InvalidRequest(f"{file}: {key}.{where}: {first['msg']}; capture the incident again") from None
