"""A Prefect flow that carries a gang request: deploying it merges the request, submitting it is refused.

`@gang` above `@flow` turns the flow itself into a `GangFlow`. Below it there is no flow yet; the function then carries
the methods that matter as attributes, which Prefect copies onto the flow it makes, and which turn that flow into a
`GangFlow` when one of them is first used. Prefect itself is not patched.
"""

import copy
import sys
from collections.abc import Callable, Mapping
from typing import Any

from prefect import Flow
from prefect.flows import InfrastructureBoundFlow

from dsec_blocks.gang.attached import ATTRIBUTE, gang_request_of, merged_job_variables
from dsec_blocks.gang.membership import flow_context, membership
from dsec_blocks.model.errors import InvalidRequest, SubmitRefused

_LATE = ("to_deployment", "ato_deployment", "deploy", "adeploy", "serve", "with_options", "submit", "map", "delay")


class GangFlow(Flow[Any, Any]):
    """A flow whose runs need a gang. Called directly it runs here, with one member."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run here. Inside a gang that is an error: this flow needs devices of its own."""
        refuse_nested(self)
        return super().__call__(*args, **kwargs)

    def to_deployment(self, *args: Any, **kwargs: Any) -> Any:
        """As Prefect's, with the gang request among the job variables."""
        return super().to_deployment(*args, **self._merged(kwargs))

    async def ato_deployment(self, *args: Any, **kwargs: Any) -> Any:
        """As Prefect's, with the gang request among the job variables."""
        return await super().ato_deployment(*args, **self._merged(kwargs))

    def serve(self, *args: Any, **kwargs: Any) -> None:
        """As Prefect's: without a worker there are no gangs, so each run has one member, here."""
        print(f"dsec: {self.name}: serve() starts runs in this process, with one member and no reserved devices")
        plain = copy.copy(self)
        plain.__class__ = Flow  # type: ignore[assignment]
        plain.serve(*args, **kwargs)

    def with_options(self, *args: Any, **kwargs: Any) -> "GangFlow":
        """As Prefect's; the gang request stays."""
        asked = gang_request_of(self)
        changed: GangFlow = attach(super().with_options(*args, **kwargs), asked or {})
        return changed

    def submit(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: a task runner reserves no devices."""
        raise _refused(self.name)

    map = delay = submit_to_work_pool = submit

    def _merged(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {**kwargs, "job_variables": merged_job_variables(self, kwargs.get("job_variables"))}


def attach(flow: Any, asked: Mapping[str, Any]) -> Any:
    """Turn a flow into one that needs a gang; the same object.

    Raises `InvalidRequest` for a flow that already belongs to other infrastructure.
    """
    if isinstance(flow, InfrastructureBoundFlow):
        raise InvalidRequest(
            f"@gang on {flow.name!r}: the flow is bound to other infrastructure by its own decorator; use one of both"
        )
    for name in _LATE:
        flow.__dict__.pop(name, None)
    flow.__class__ = GangFlow
    setattr(flow, ATTRIBUTE, dict(asked))
    return flow


def refuse_nested(flow: Any) -> None:
    """A gang flow called inside a gang would have to run on devices that are not its own.

    Raises `SubmitRefused`.
    """
    if membership().channel_path is None:
        return
    context = flow_context()
    if membership().is_rank or context is not None:
        parent = getattr(getattr(context, "flow", None), "name", "its parent")
        raise SubmitRefused(
            f"flow {flow.name!r} has its own @gang and was called inside the gang of {parent!r}, whose devices it does "
            f"not fit; start it with run_deployment('{flow.name}/DEPLOYMENT'), or take its @gang away to let it "
            "run on its parent's"
        )


class Late:
    """One method of a flow that does not exist yet: `@gang` below `@flow`."""

    def __init__(self, function: Callable[..., Any], method: str) -> None:
        self.function = function
        self.method = method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Find the flow, make it a `GangFlow`, and call the method on that."""
        if self.method in ("submit", "map", "delay"):
            raise _refused(self.function.__name__)
        module = sys.modules.get(self.function.__module__)
        flow = getattr(module, self.function.__name__, None)
        if not isinstance(flow, Flow) or flow.fn is not self.function:
            raise InvalidRequest(
                f"@gang below @flow on {self.function.__qualname__!r}: put @gang above @flow, then "
                f"{self.method}() takes over its request"
            )
        attach(flow, gang_request_of(flow) or {})
        return getattr(flow, self.method)(*args, **kwargs)


def attach_to_function(function: Callable[..., Any], asked: Mapping[str, Any]) -> Callable[..., Any]:
    """`@gang` below `@flow`: let the function carry the request, and the methods that must know of it."""
    setattr(function, ATTRIBUTE, dict(asked))
    for name in _LATE:
        function.__dict__[name] = Late(function, name)
    return function


def _refused(name: str) -> SubmitRefused:
    return SubmitRefused(
        f"flow {name!r} needs a gang and a task runner's submit() cannot reserve devices; deploy it (`dsec deploy`, "
        f"flow.deploy()) and start it with run_deployment('{name}/DEPLOYMENT')"
    )
