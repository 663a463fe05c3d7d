"""The gang request on a flow: attaching it, reading it, merging it into a deployment, and comparing it at the start.

The request is job variables, as somebody would type them into the pool's form. `@gang` only attaches them; they count
once they are part of a deployment, and there explicit job variables win. Because `prefect deploy` reads only the YAML,
a run can also start with another request than its code asks for. That is noticed before user code runs, unless the
deployment knew the code's request and overrode it on purpose (it carries the request's digest then).
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

from dsec_blocks.model import names
from dsec_blocks.model.errors import GangMismatch
from dsec_blocks.model.requests import GangRequest, parse_request

ATTRIBUTE = "__dsec_gang__"
_FIELD_OF = {"gpu_memory": "gpu_memory_bytes", "grace": "grace_seconds", "max_runtime": "max_runtime_seconds"}


def gang_request_of(flow: Any) -> dict[str, Any] | None:
    """The job variables that `@gang(...)` attached to a flow; None for a flow without one."""
    for holder in (flow, getattr(flow, "fn", None)):
        found = getattr(holder, ATTRIBUTE, None)
        if found is not None:
            return dict(found)
    return None


def merged_job_variables(flow: Any, explicit: Mapping[str, Any] | None) -> dict[str, Any]:
    """`explicit` over what `@gang` asks for; each difference is printed. Without `@gang`: `explicit` itself."""
    asked = gang_request_of(flow)
    given = dict(explicit or {})
    if asked is None:
        return given
    for name, value in asked.items():
        if name != "env" and given.get(name) is not None and given[name] != value:
            _say(f"{flow.name}: {name}={given[name]!r} from the deployment wins over @gang({name}={value!r})")
    set_explicitly = {name: value for name, value in given.items() if value is not None}
    env = {**asked.get("env", {}), **(given.get("env") or {}), names.ENV_GANG_DIGEST: digest(asked)}
    merged = {**asked, **set_explicitly, "env": env}
    parse_request(merged)
    return merged


def check_admitted(flow: Any, env: Mapping[str, str]) -> None:
    """Compare a loaded flow's `@gang` with what was admitted for its run (`DSEC_REQUEST` in `env`).

    Raises `GangMismatch`, naming each field that differs and what to do. What `@gang` leaves out may be
    anything.
    """
    asked = gang_request_of(flow)
    admitted_text = env.get(names.ENV_REQUEST)
    if asked is None or not admitted_text:
        return
    if env.get(names.ENV_GANG_DIGEST) == digest(asked):
        return
    admitted = GangRequest.from_json(json.loads(admitted_text))
    wanted = parse_request(asked)
    differences = []
    for name in asked:
        field = _FIELD_OF.get(name, name)
        here, there = getattr(wanted, field), getattr(admitted, field)
        if name == "env":
            here, there = dict(here), {key: there.get(key) for key in here}
        if here != there:
            differences.append(f"{name} is {asked[name]!r} in @gang but {there!r} was admitted")
    if differences:
        raise GangMismatch(
            f"flow {flow.name!r}: {'; '.join(differences)}. Deploy it with `dsec deploy` or `flow.deploy()`, which "
            "take over @gang (`prefect deploy` reads only the YAML), or change the deployment's job variables"
        )


def digest(asked: Mapping[str, Any]) -> str:
    """A short name for one `@gang(...)`."""
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _say(text: str) -> None:
    print(f"dsec: {text}", file=sys.stderr, flush=True)
