"""The form of a `dsec-gang` pool in the Prefect UI, and how a newer form reaches a pool that somebody has edited.

The form's fields are the gang request's (`REQUEST_VARIABLES`, in that order), then what a process worker offers. The
job configuration takes them as they come: `parse_request` is the only judge of a value, so that a mistake becomes a
reason on the run's page instead of an exception in the worker.
"""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

from prefect.settings import Settings, get_current_settings
from prefect.workers.base import BaseJobConfiguration, BaseVariables
from pydantic import Field, PrivateAttr

from dsec_blocks.model.requests import (
    MAX_CPUS,
    MAX_DEVICES_PER_NODE,
    MAX_NODES,
    MAX_PRIORITY,
    REQUEST_VARIABLES,
    Kind,
    Sharing,
    Topology,
)
from dsec_workers.clusters.kubernetes.counted import asked_in


class GangVariables(BaseVariables):
    """What a user may set on the pool, a deployment or a run; the order is the form's."""

    nodes: int = Field(
        default=1,
        ge=1,
        le=MAX_NODES,
        title="Nodes",
        description="How many machines the run needs at once. All of them start together or none does.",
    )
    min_nodes: int | None = Field(
        default=None,
        ge=1,
        le=MAX_NODES,
        title="Fewest nodes",
        description="The smallest number of nodes the run can work with. Leave empty unless it adapts to fewer.",
    )
    devices_per_node: int = Field(
        default=0,
        ge=0,
        le=MAX_DEVICES_PER_NODE,
        title="GPUs per node",
        description="GPUs on each node. 0 makes a run that needs no GPU.",
    )
    gpu_model: str | None = Field(
        default=None,
        title="GPU model",
        description="For example H100, or several that will do: H100|H200. Leave empty to take any model.",
    )
    gpu_memory: str | None = Field(
        default=None,
        title="GPU memory",
        description="The least memory of each GPU, with its unit, for example 80GiB.",
    )
    sharing: Sharing = Field(
        default=Sharing.AUTO,
        title="Sharing",
        description=(
            "auto gives whole cards, or what Part of a GPU names; to one GPU of less than a quarter of a card's "
            "memory also a slice, where no card is free. whole insists on whole cards, slice on a MIG profile, "
            "time-slice on a part of a card's time."
        ),
    )
    share: str | None = Field(
        default=None,
        title="Part of a GPU",
        description=(
            "A MIG profile such as 1g.10gb, or a part such as 1/4 (any slice that is at least so large will do), on "
            "clusters whose GPUs are cut. Leave empty for whole GPUs."
        ),
    )
    cpus: float | None = Field(
        default=None,
        gt=0,
        le=MAX_CPUS,
        title="CPUs per node",
        description="Processors for each member. Leave empty to take whatever is there.",
    )
    memory: str | None = Field(
        default=None,
        title="Memory per node",
        description="Main memory for each member, with its unit, for example 64GiB. Leave empty for no bound.",
    )
    topology: Topology = Field(
        default=Topology.PREFERRED,
        title="Topology",
        description=(
            "How close the GPUs must be: preferred takes the closest that are free, node-domain wants one NVLink "
            "domain on each node, domain wants one NVLink domain for the whole run; rack, block and zone want all "
            "nodes in one, spread wants every node in another rack."
        ),
    )
    priority: int = Field(
        default=0,
        ge=0,
        le=MAX_PRIORITY,
        title="Priority",
        description="Higher goes first and may make lower ones give way. Bounded by the team's highest priority.",
    )
    kind: Kind = Field(
        default=Kind.TRAINING,
        title="Kind",
        description="What the run does. An inference run is never evicted.",
    )
    preemptible: bool = Field(
        default=True,
        title="May give way",
        description="Whether a more urgent run may make this one checkpoint, leave and resume later.",
    )
    grace: str | float = Field(
        default=30.0,
        title="Grace",
        description="How long an eviction waits for the checkpoint, in seconds or as 30s, 5min.",
    )
    max_runtime: str | float | None = Field(
        default=None,
        title="Longest run time",
        description=(
            "The run is stopped after this long, in seconds or as 30min, 2h. Runs with a limit may start ahead of "
            "a big run that is still waiting for room."
        ),
    )
    inputs: list[str] = Field(
        default_factory=list,
        title="Inputs",
        description=(
            "URIs of data and models that the nodes should have in their cache before the run starts. A part of one: "
            "s3://models/llama (include config.json,model.safetensors; exclude optimizer.bin). Names may be shell "
            "patterns, and either half may be left out."
        ),
    )
    image: str | None = Field(
        default=None, title="Image", description="Container image, on clusters that use containers."
    )
    env: dict[str, str | None] = Field(
        default_factory=dict,
        title="Environment variables",
        description="Set in the flow's process and in every rank.",
    )
    working_dir: str | None = Field(
        default=None,
        title="Working directory",
        description="Where the flow runs. Leave empty for a fresh directory.",
    )
    command: str | None = Field(
        default=None,
        title="Command",
        description="Leave empty: the flow then starts in a prepared process, which is much faster.",
    )
    name: str | None = Field(default=None, title="Name", description="Name of the run's processes in logs.")
    labels: dict[str, str] = Field(
        default_factory=dict, title="Labels", description="Labels on whatever is created for the run."
    )

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Prefect's schema, with the fields in the order in which this class declares them."""
        schema = super().model_json_schema(*args, **kwargs)
        definitions = schema.pop("definitions", {})
        fields = {}
        for position, name in enumerate(cls.__annotations__):
            field = dict(schema["properties"][name])
            if reference := field.pop("$ref", None):
                # An enum behind a reference loses its title in the UI.
                choices = definitions[reference.rsplit("/", 1)[-1]]
                field = {"type": choices["type"], "enum": choices["enum"], **field}
            fields[name] = {"title": cls.model_fields[name].title, **field, "position": position}
        schema["properties"] = fields
        return schema


class GangJobConfiguration(BaseJobConfiguration):
    """A run's job variables after pool, deployment and run were merged; `request_variables` is the gang request."""

    nodes: Any = None
    min_nodes: Any = None
    devices_per_node: Any = None
    gpu_model: Any = None
    gpu_memory: Any = None
    sharing: Any = None
    share: Any = None
    cpus: Any = None
    memory: Any = None
    topology: Any = None
    priority: Any = None
    kind: Any = None
    preemptible: Any = None
    grace: Any = None
    max_runtime: Any = None
    inputs: Any = None
    image: Any = None
    working_dir: str | None = None
    job_manifest: Any = None
    """On Kubernetes: a Job as in prefect-kubernetes' template, on which a gang's Jobs are built."""

    _environment: ClassVar[tuple[Settings, dict[str, str]] | None] = None
    _own_command: str | None = PrivateAttr(default=None)
    _request_env: dict[str, str | None] = PrivateAttr(default_factory=dict)

    def model_post_init(self, context: Any, /) -> None:
        """Keep what the user wrote, before Prefect fills in its own command and environment."""
        super().model_post_init(context)
        self._own_command = self.command
        self._request_env = dict(self.env)

    @property
    def own_command(self) -> str | None:
        """The user's command; None means the pre-imported engine."""
        return self._own_command

    @property
    def request_variables(self) -> dict[str, Any]:
        """The gang request's job variables, for `parse_request`.

        What the manifest asks for its gang's container is the run's request where the run itself says nothing. Raises
        `InvalidRequest` for a manifest that asks for what is no quantity.
        """
        said = {name: getattr(self, name) for name in REQUEST_VARIABLES}
        asked = {name: value for name, value in asked_in(self.job_manifest).items() if said.get(name) is None}
        return {**said, **asked, "env": self._request_env}

    @classmethod
    def _base_environment(cls) -> dict[str, str]:
        """As Prefect's, worked out once for the same settings: it costs more than all the rest of a claim."""
        settings = get_current_settings()
        if cls._environment is None or cls._environment[0] is not settings:
            cls._environment = (settings, super()._base_environment())
        return dict(cls._environment[1])


SHIPPED = "dsec"
"""Key of the template under which the pool remembers what DSec shipped, so that an upgrade can tell edits apart."""


def default_template() -> dict[str, Any]:
    """The base job template of a new pool."""
    variables = GangVariables.model_json_schema()
    variables.pop("title", None)
    variables.pop("description", None)
    configuration = GangJobConfiguration.json_template()
    configuration.pop("job_manifest")  # no variable of the form: who wants one writes it into the pool's template
    shipped = {"job_configuration": configuration, "variables": variables}
    return {**shipped, SHIPPED: {"shipped": copy.deepcopy(shipped)}}


def upgraded_template(present: Mapping[str, Any]) -> dict[str, Any]:
    """The template of an existing pool after an upgrade: what we ship now, with what the user had changed kept.

    A three-way merge by key: where the pool still has what was shipped before, it gets what is shipped now; where it
    differs, the user's value stays. Keys that the user added or removed stay added or removed. A pool that does not
    remember what was shipped counts as the user's throughout, and only gains new fields.
    """
    before = (present.get(SHIPPED) or {}).get("shipped") or {}
    edited = {key: value for key, value in present.items() if key != SHIPPED}
    now = default_template()
    merged: dict[str, Any] = _merge(before, edited, {k: v for k, v in now.items() if k != SHIPPED})
    return {**merged, SHIPPED: now[SHIPPED]}


_ABSENT = object()


def _merge(base: Any, edited: Any, shipped: Any) -> Any:
    if isinstance(edited, Mapping) and isinstance(shipped, Mapping):
        base = base if isinstance(base, Mapping) else {}
        merged = {}
        for key in [*shipped, *(k for k in edited if k not in shipped)]:
            value = _merge(base.get(key, _ABSENT), edited.get(key, _ABSENT), shipped.get(key, _ABSENT))
            if value is not _ABSENT:
                merged[key] = value
        return merged
    untouched = edited is base if edited is _ABSENT or base is _ABSENT else edited == base
    kept = shipped if untouched else edited
    return kept if kept is _ABSENT else copy.deepcopy(kept)
