"""What a pipeline author uses.

    from dsec_blocks import current_gang, gang, run

    @gang(nodes=2, devices_per_node=4, gpu_model="H100", grace="30s")
    @flow
    def finetune():
        current_gang().run(train, per="device")

`gang` is this module itself, callable, so that `gang(...)`, `gang.agree(...)` and `import dsec_blocks.gang` are one
thing, however they were imported. Importing it does not import Prefect.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from dsec_blocks.gang import acquires as acquires  # so that whoever is in a gang tells it what he acquires
from dsec_blocks.gang.attached import check_admitted, gang_request_of, merged_job_variables
from dsec_blocks.gang.current import CurrentGang, current_gang
from dsec_blocks.gang.results import GangRunError, RankOutcome, Results
from dsec_blocks.gang.running import Run, agree, run
from dsec_blocks.model.errors import InvalidRequest
from dsec_blocks.model.requests import parse_request

__all__ = [
    "CurrentGang", "GangRunError", "RankOutcome", "Results", "Run", "agree", "check_admitted", "current_gang", "gang",
    "gang_request_of", "merged_job_variables", "run",
]  # fmt: skip

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


def _gang(
    *,
    nodes: int | None = None,
    min_nodes: int | None = None,
    devices_per_node: int | None = None,
    gpu_model: str | Sequence[str] | None = None,
    gpu_memory: str | None = None,
    sharing: str | None = None,
    share: str | None = None,
    cpus: float | None = None,
    memory: str | None = None,
    topology: str | None = None,
    priority: int | None = None,
    kind: str | None = None,
    preemptible: bool | None = None,
    grace: float | str | None = None,
    max_runtime: float | str | None = None,
    inputs: Sequence[str] | None = None,
    image: str | None = None,
    env: Mapping[str, str] | None = None,
) -> Callable[[Decorated], Decorated]:
    """Attach a gang request to a `@flow`; the fields are those of the pool's form.

    It works above or below `@flow` and never submits anything: `flow.deploy()` and `dsec deploy` merge the request
    into the deployment's job variables. Calling the flow runs it here, with one member.

    Raises `InvalidRequest`, naming the field.
    """
    given = {
        "nodes": nodes, "min_nodes": min_nodes, "devices_per_node": devices_per_node,
        "gpu_model": gpu_model if gpu_model is None or isinstance(gpu_model, str) else [*gpu_model],
        "gpu_memory": gpu_memory, "sharing": sharing, "share": share, "cpus": cpus, "memory": memory,
        "topology": topology, "priority": priority, "kind": kind, "preemptible": preemptible, "grace": grace,
        "max_runtime": max_runtime, "inputs": None if inputs is None else [*inputs], "image": image,
        "env": None if env is None else dict(env),
    }  # fmt: skip
    asked = {name: value for name, value in given.items() if value is not None}
    if isinstance(inputs, str):
        asked["inputs"] = inputs  # parse_request says what is wrong with it
    parse_request(asked)

    def attach_request(decorated: Decorated) -> Decorated:
        prefect = sys.modules.get("prefect.flows")
        if prefect is not None and isinstance(decorated, prefect.Flow):
            from dsec_blocks.gang.flows import attach

            attached: Decorated = attach(decorated, asked)
            return attached
        if not callable(decorated):
            raise InvalidRequest(f"@gang: {decorated!r} is neither a flow nor a function")
        from dsec_blocks.gang.flows import attach_to_function

        return attach_to_function(decorated, asked)  # type: ignore[return-value]

    return attach_request


class _CallableModule(ModuleType):
    def __call__(self, *args: Any, **request: Any) -> Any:
        """See `_gang`."""
        if args:
            raise InvalidRequest("@gang needs parentheses and keywords: @gang(nodes=2, devices_per_node=4)")
        return _gang(**request)


if TYPE_CHECKING:
    gang = _gang
else:
    gang = sys.modules[__name__]
    gang.__class__ = _CallableModule
