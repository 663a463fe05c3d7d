"""Pictures for the documentation: the real Prefect UI and the real report, into docs/images/.

Plays the demo, keeps it up, brings one gang into the line and another out of its GPUs, photographs what a user sees of
that with Debian's chromium, and takes everything down. With `--report-only` it photographs the last demo's report.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsec_deployments.prefect_api import PrefectApi

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".dsec" / "demo"
IMAGES = ROOT / "docs" / "images"
DSEC = Path(sys.executable).parent / "dsec"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)
PAGE_MILLISECONDS = 15_000
"""How long a page may load; Prefect's draws itself after several requests."""
PATIENCE_SECONDS = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """One picture: where it looks, and through how large a window."""

    name: str
    url: str
    size: str


def main() -> int:
    """Take all pictures; 1 with one line when that is not possible here."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("screenshots need a browser; install it with: apt install chromium", file=sys.stderr)
        return 1
    IMAGES.mkdir(parents=True, exist_ok=True)
    report = Picture(name="demo-report", url=(HOME / "report.html").as_uri(), size="1120,2580")
    if "--report-only" in sys.argv[1:]:
        photograph(browser, report)
        return 0
    subprocess.run([DSEC, "demo", "--keep"], cwd=ROOT, check=False)
    if not (HOME / "up.json").exists():
        print("the demo did not come up; its messages are above", file=sys.stderr)
        return 1
    try:
        for picture in [report, *pages()]:
            photograph(browser, picture)
            print(f"{picture.name}: {picture.url}")
    finally:
        subprocess.run([DSEC, "down"], cwd=ROOT, env=environment(), check=False)
    return 0


def pages() -> list[Picture]:
    """What a user looks at in the UI, once there is something to see."""
    up = json.loads((HOME / "up.json").read_text())
    api = PrefectApi(up["prefect_api_url"])
    ui = up["prefect_api_url"].removesuffix("/api") + "/v2"  # the pages that a new browser is sent to
    pool = up["pool"]
    finetune = submit(api, "background", "llm-finetune", nodes=2, devices_per_node=4, priority=10, max_runtime="20min")
    until("the fine-tune's first checkpoints", lambda: (gang(finetune).get("last_step") or 0) >= 20)
    submit(api, "background", "reranker", nodes=1, devices_per_node=4, priority=30, max_runtime="20min")
    submit(api, "urgent", "incident-replay", nodes=2, devices_per_node=4, priority=90, max_runtime="12min", team="ops")
    until("the fine-tune to be evicted", lambda: gang(finetune).get("state") == "waiting")
    waiting = submit(api, "background", "nightly-embeddings", nodes=1, devices_per_node=4, priority=5)
    until("the reason why the next one waits", lambda: "in line" in message(api, waiting))
    until("the fine-tune's page to say why it waits", lambda: "in line" in message(api, finetune))
    cast = json.loads((HOME / "cast.json").read_text())
    artifact = api.post("artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [cast["finetune"]]}}})[0]["id"]
    return [
        Picture(name="pool-form", url=f"{ui}/work-pools/work-pool/{pool}/edit", size="1200,1700"),
        Picture(name="waiting-run", url=f"{ui}/runs/flow-run/{waiting}?tab=Details", size="1200,860"),
        Picture(name="preempted-run", url=f"{ui}/runs/flow-run/{finetune}?tab=Details", size="1200,980"),
        Picture(name="run-artifacts", url=f"{ui}/runs/flow-run/{cast['finetune']}?tab=Artifacts", size="1200,640"),
        Picture(name="run-report", url=f"{ui}/artifacts/artifact/{artifact}", size="1200,760"),
    ]


def submit(api: PrefectApi, deployment: str, name: str, *, team: str = "research", **job_variables: Any) -> str:
    """Make a run of one of the demo's deployments, due now, as the UI's button does; its id."""
    found = api.post("deployments/filter", {"deployments": {"name": {"any_": [deployment]}}})[0]["id"]
    parameters: dict[str, Any] = {"seconds": 600}
    if deployment == "background":
        parameters |= {"checkpoint_every": 10, "snapshot_on_notice": True}
    body = {"name": name, "parameters": parameters, "job_variables": job_variables, "work_queue_name": team}
    made = api.post(f"deployments/{found}/create_flow_run", {**body, "state": {"type": "SCHEDULED"}})
    return str(made["id"])


def gang(run: str) -> dict[str, Any]:
    """What `dsec explain` says of the run's gang; nothing if it is not known yet."""
    command = [str(DSEC), "explain", run, "--json"]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    return (json.loads(done.stdout)["gang"] or {}) if done.returncode == 0 else {}


def message(api: PrefectApi, run: str) -> str:
    """The message of the run's present state."""
    return str((api.get(f"flow_runs/{run}")["state"] or {}).get("message") or "")


def until(what: str, reached: Callable[[], bool]) -> None:
    """Wait for it."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reached():
        if time.monotonic() > deadline:
            raise SystemExit(f"no pictures: waited {PATIENCE_SECONDS:.0f} s for {what}")
        time.sleep(0.5)


def environment() -> dict[str, str]:
    """The environment, pointed at the demo."""
    others = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "DSEC_"))}
    return {**others, "DSEC_HOME": str(HOME)}


def photograph(browser: str, picture: Picture) -> None:
    """Open the page in a fresh browser and save what it shows."""
    path = IMAGES / f"{picture.name}.png"
    path.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", f"--window-size={picture.size}"]
        command += [f"--virtual-time-budget={PAGE_MILLISECONDS}", f"--screenshot={path}", picture.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if not path.exists():
        raise SystemExit(f"no picture of {picture.url}: {done.stderr[-500:]}")


if __name__ == "__main__":
    sys.exit(main())
