"""Pictures of a running demo for the documentation: the real Prefect UI and the real report, into docs/images/.

Plays the demo, keeps it up, photographs it with Debian's chromium, and takes it down.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".dsec" / "demo"
IMAGES = ROOT / "docs" / "images"
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


def main() -> int:
    """Take all pictures; 1 with one line when that is not possible here."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        print("screenshots need a browser; install it with: apt install chromium", file=sys.stderr)
        return 1
    dsec = Path(sys.executable).parent / "dsec"
    subprocess.run([dsec, "demo", "--keep"], cwd=ROOT, check=False)
    try:
        IMAGES.mkdir(parents=True, exist_ok=True)
        for name, url, size in pages():
            photograph(browser, url, IMAGES / f"{name}.png", size=size)
            print(f"{name}: {url}")
    finally:
        subprocess.run([dsec, "down"], cwd=ROOT, env={**os.environ, "DSEC_HOME": str(HOME)}, check=False)
    return 0


def pages() -> Iterator[tuple[str, str, str]]:
    """Name, address and window size of every picture."""
    up = json.loads((HOME / "up.json").read_text())
    cast = json.loads((HOME / "cast.json").read_text())
    ui = up["prefect_api_url"].removesuffix("/api")
    if not httpx.get(up["prefect_api_url"] + "/health", timeout=5).is_success:
        raise SystemExit("the demo's Prefect server does not answer")
    yield "pool-form", f"{ui}/work-pools/work-pool/{up['pool']}/edit", "1400,2200"
    yield "waiting-run", f"{ui}/runs/flow-run/{cast['never-fits']}", "1400,900"
    yield "preempted-run", f"{ui}/runs/flow-run/{cast['finetune']}?tab=Artifacts", "1400,1100"
    yield "preempted-run-logs", f"{ui}/runs/flow-run/{cast['finetune']}", "1400,1100"
    yield "demo-report", (HOME / "report.html").as_uri(), "1240,2600"


def photograph(browser: str, url: str, picture: Path, *, size: str) -> None:
    """Open `url` in a fresh browser and save what it shows."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, *FLAGS, f"--user-data-dir={profile}", f"--window-size={size}"]
        command += [f"--virtual-time-budget={PAGE_MILLISECONDS}", f"--screenshot={picture}", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if not picture.exists():
        raise SystemExit(f"no picture of {url}: {done.stderr[-500:]}")


if __name__ == "__main__":
    sys.exit(main())
