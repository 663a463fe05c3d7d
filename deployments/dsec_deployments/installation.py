"""What `dsec up` set up, and where: the home directory and `up.json` in it.

Every command needs the same few facts (which ledger, which Prefect server, which pool). They are looked up in one
order: an option on the command line, the environment, what `dsec up` recorded here, a default.
"""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from dsec_blocks.gateways import files
from dsec_blocks.gateways.home import home_of, ledger_url_of
from dsec_blocks.model.names import ENV_HOME, ENV_LEDGER_URL
from dsec_deployments.control_plane import pool

SIMULATED, OFF = "simulated", "off"
"""What `dsec up --kubernetes` takes."""
DEFAULT_POOL = "dsec"
DEFAULT_PORT = 4200
DEFAULT_NODES = 2
DEFAULT_GPUS = 4
DEFAULT_MODEL = "declared"
DEFAULT_MEMORY = "80GiB"


def home() -> Path:
    """The directory that holds everything DSec keeps on this machine, absolute."""
    return home_of()


@dataclass(frozen=True, slots=True, kw_only=True)
class Installation:
    """The settings that `dsec up` was given; `None` means nobody said."""

    pool: str = DEFAULT_POOL
    port: int = DEFAULT_PORT
    nodes: int | None = None
    gpus: int | None = None
    gpu_model: str | None = None
    gpu_memory: str | None = None
    ledger_url: str | None = None
    prefect_api_url: str | None = None
    owns_server: bool = False
    """Whether `dsec up` started the Prefect server, so that `dsec down` may stop it."""
    cluster_cache: bool = False
    """Whether `dsec up` starts a store that the nodes' caches share."""
    cluster_cache_limit: str | None = None
    """What that store may take, with a unit."""
    kubernetes: str | None = None
    """`simulated`: members are pods on a control plane that `dsec up` starts here; else they are processes."""

    @property
    def is_on_kubernetes(self) -> bool:
        """Whether `dsec up` starts a Kubernetes cluster for the pool."""
        return self.kubernetes == SIMULATED

    def changed(self, **given: object) -> "Installation":
        """With every option that was given (not None) put in."""
        return dataclasses.replace(self, **{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    def resolved_ledger_url(self) -> str:
        """The ledger's URL: the environment's, the recorded one, or SQLite in the home."""
        return ledger_url_of(recorded=self.ledger_url)

    def worker_environment(self) -> dict[str, str]:
        """What a worker of this installation finds in its environment, on top of the machine's own."""
        declared = {
            "DSEC_NODES": self.nodes,
            "DSEC_GPUS_PER_NODE": self.gpus,
            "DSEC_GPU_MODEL": self.gpu_model,
            "DSEC_GPU_MEMORY": self.gpu_memory,
            "PREFECT_API_URL": self.prefect_api_url,
        }
        environment = {name: str(value) for name, value in declared.items() if value is not None}
        if self.is_on_kubernetes:
            environment |= pool.environment(home())
        return {**environment, ENV_HOME: str(home()), ENV_LEDGER_URL: self.resolved_ledger_url()}


def load() -> Installation:
    """What the last `dsec up` recorded in this home; the defaults when there was none."""
    try:
        recorded = json.loads((home() / "up.json").read_text())
    except FileNotFoundError:
        return Installation()
    known = {field.name for field in dataclasses.fields(Installation)}
    return Installation(**{name: value for name, value in recorded.items() if name in known})


def save(installation: Installation) -> None:
    """Record it for the commands that follow."""
    home().mkdir(parents=True, exist_ok=True)
    text = json.dumps(dataclasses.asdict(installation), indent=1) + "\n"
    files.write(home() / "up.json", text.encode(), at="up.installation.write")
