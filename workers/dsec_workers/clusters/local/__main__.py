"""`python -m dsec_workers.clusters.local HOME`: the fork-server of that home."""

import sys
from pathlib import Path

from dsec_workers.clusters.local.forkserver import serve

if __name__ == "__main__":
    serve(Path(sys.argv[1]))
