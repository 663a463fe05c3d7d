"""`current_gang()`: the gang this code runs in, and running something on all of it."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from dsec_blocks.gang import calls
from dsec_blocks.gang.attached import gang_request_of
from dsec_blocks.gang.membership import Membership, flow_context, leaving_with_the_supervisor, membership
from dsec_blocks.gang.results import GangRunError, RankOutcome, Results
from dsec_blocks.gateways import processes
from dsec_blocks.gateways.clock import SystemClock
from dsec_blocks.model import names
from dsec_blocks.model.errors import Evicted, InvalidRequest, NotInGang, SubmitRefused
from dsec_blocks.model.gangs import MemberPlacement, Placement
from dsec_blocks.model.requests import GangRequest, parse_request

LAUNCHERS = ("plain", "torchrun", "jax")


@dataclass(frozen=True, kw_only=True)
class CurrentGang:
    """The gang of the current flow run. In a local call it has one member and no reserved devices."""

    run_id: str
    attempt: int | None
    request: GangRequest
    placement: Placement
    is_local: bool
    _member: Membership

    @property
    def nodes(self) -> int:
        """How many members the gang has."""
        return len(self.placement.members)

    @property
    def notice(self) -> Mapping[str, Any] | None:
        """Why and by when the gang must leave; None if it need not."""
        return self._member.notice

    def run(
        self,
        work: Callable[..., Any] | Sequence[str] | str,
        /,
        *args: Any,
        per: str = "device",
        launcher: str = "plain",
        env: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> Results:
        """Run a function (with its arguments) or a command on every rank and wait; the results are in rank order.

        `per="device"` starts one rank a device, each with one visible GPU; `per="member"` one a node, with all its
        GPUs. A CPU-only gang has one rank a node in both. `launcher` says how ranks find each other: "plain" (RANK,
        WORLD_SIZE, MASTER_ADDR …), "jax" (its own variables as well), "torchrun" (for commands: one agent a node,
        which starts a process for each GPU itself, whatever `per` says).

        Raises `GangRunError` with each failed rank's traceback, and `Evicted` when the gang left on a notice.
        """
        if self._member.is_rank:
            raise SubmitRefused("gang.run was called inside a rank of another gang.run; call it in the flow itself")
        if per not in ("device", "member"):
            raise InvalidRequest(f"gang.run: per={per!r} is neither 'device' nor 'member'")
        if launcher not in LAUNCHERS:
            raise InvalidRequest(f"gang.run: launcher={launcher!r} is not one of {', '.join(LAUNCHERS)}")
        what = _name_of(work)
        if callable(work) and launcher == "torchrun":
            raise InvalidRequest(f"gang.run({what}): torchrun launches commands; use launcher='plain' for a function")
        if launcher == "torchrun":
            per = "member"
        if not callable(work) and (args or kwargs):
            raise InvalidRequest(f"gang.run({what}): a command takes its arguments in the list itself")
        with TemporaryDirectory(prefix="dsec-call-") as directory:
            call = _call(work, args, kwargs, Path(directory))
            extra = {str(key): str(value) for key, value in (env or {}).items()}
            if self.is_local:
                outcomes, evicted = [_run_here(call, self.run_id, extra, launcher, Path(directory))], False
            else:
                outcomes, evicted = self._run_on_members(call, per=per, launcher=launcher, env=extra)
        if evicted or any(outcome.exit == calls.EXIT_EVICTED for outcome in outcomes):
            raise Evicted(f"{what}: {(self.notice or {}).get('reason') or 'the gang was told to leave'}")
        if any(outcome.failed for outcome in outcomes):
            raise GangRunError(outcomes, what=f"gang.run({what})")
        return Results(outcomes)

    def wait_for_checkpoints(self, timeout: float = 60.0) -> bool:
        """Wait until what the ranks have saved is committed to its store; False when time is up."""
        from dsec_blocks.checkpoints.spool import wait_until_uploaded

        return wait_until_uploaded(self._member.spool, clock=SystemClock(), timeout=timeout)

    def _run_on_members(
        self, call: Mapping[str, Any], *, per: str, launcher: str, env: Mapping[str, str]
    ) -> tuple[list[RankOutcome], bool]:
        channel = self._member.channel
        assert channel is not None
        outcomes, evicted = [], False
        with leaving_with_the_supervisor():
            for line in channel.stream("run", call=dict(call), per=per, launcher=launcher, env=dict(env)):
                if "rank" in line:
                    outcomes.append(
                        RankOutcome(
                            rank=line["rank"],
                            member=line.get("member", 0),
                            exit=line["exit"],
                            value=calls.read_result(line.get("result"), kind=call["kind"], exit_code=line["exit"]),
                            error=line.get("error"),
                        )
                    )
                evicted = evicted or bool(line.get("evicted"))
        return outcomes, evicted


def current_gang() -> CurrentGang:
    """The gang of the flow run that this code is in.

    Raises `NotInGang` outside of any flow, `SubmitRefused` in a subflow that has a `@gang` of its own.
    """
    me = membership()
    context = flow_context()
    if me.channel_path is not None:
        _refuse_a_subflow_with_its_own_gang(context)
        return CurrentGang(
            run_id=me.run_id,
            attempt=me.attempt,
            request=GangRequest.from_json(json.loads(me.env[names.ENV_REQUEST])),
            placement=Placement.from_json(json.loads(me.env[names.ENV_PLACEMENT])),
            is_local=False,
            _member=me,
        )
    if context is None and not me.is_rank:
        raise NotInGang(
            "current_gang() was called outside of a gang: call it inside a @flow (called directly, the flow runs here "
            "with one member), or deploy the flow to a dsec-gang pool and run the deployment"
        )
    return CurrentGang(
        run_id=me.run_id,
        attempt=None,
        request=parse_request(gang_request_of(getattr(context, "flow", None)) or {}),
        placement=Placement(members=(MemberPlacement(node="local"),)),
        is_local=True,
        _member=me,
    )


def _refuse_a_subflow_with_its_own_gang(context: Any) -> None:
    flow: Any = getattr(context, "flow", None)
    run: Any = getattr(context, "flow_run", None)
    if getattr(run, "parent_task_run_id", None) is not None and gang_request_of(flow) is not None:
        own = str(run.id) == membership().run_id
        if not own:
            raise SubmitRefused(
                f"flow {flow.name!r} has its own @gang and runs as a subflow inside another gang; start it with "
                f"run_deployment('{flow.name}/DEPLOYMENT'), or take its @gang away to let it run on its parent's"
            )


def _call(work: Any, args: Sequence[Any], kwargs: Mapping[str, Any], directory: Path) -> dict[str, Any]:
    where = {"cwd": str(Path.cwd()), "sys_path": list(sys.path)}
    if callable(work):
        path = directory / "call.pickle"
        calls.write_call(path, work, args, kwargs)
        return {"kind": "function", "path": str(path), **where}
    argv = shlex.split(work) if isinstance(work, str) else [str(word) for word in work]
    if not argv:
        raise InvalidRequest("gang.run: the command is empty; give a function, or at least one word")
    return {"kind": "command", "argv": argv, **where}


def _run_here(
    call: Mapping[str, Any], run_id: str, env: Mapping[str, str], launcher: str, directory: Path
) -> RankOutcome:
    port = str(calls.free_port())
    variables = {
        **os.environ,
        **env,
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
        names.ENV_RUN_ID: run_id,
        names.ENV_LOCAL_RANK_OF: str(os.getpid()),
    }  # fmt: skip
    if launcher == "jax":
        variables |= {
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}", "JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0",
        }  # fmt: skip
    result, error = directory / "result", directory / "error.json"
    if call["kind"] == "function":
        argv = [sys.executable, "-m", "dsec_blocks.gang.local_rank", call["path"], str(result), str(error)]
    else:
        argv = list(call["argv"])
    try:
        code = processes.run(argv, env=variables, at="gang.local_rank.run")
    except OSError as failure:
        text = f"cannot run {argv[0]!r}: {failure.strerror or failure}; is it installed and on the PATH?"
        return RankOutcome(rank=0, member=0, exit=127, error={"type": type(failure).__name__, "message": text})
    found = json.loads(error.read_bytes()) if error.exists() else None
    value = calls.read_result(str(result) if result.exists() else None, kind=call["kind"], exit_code=code)
    return RankOutcome(rank=0, member=0, exit=code, value=value, error=found)


def _name_of(work: Any) -> str:
    if callable(work):
        return str(getattr(work, "__name__", type(work).__name__))
    return work.split()[0] if isinstance(work, str) and work.split() else str(next(iter(work), ""))
