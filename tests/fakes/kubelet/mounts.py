"""Where a mount path is on this machine: without a mount namespace, paths in what a container is given are replaced.

The image is this machine's Python and this repository: those stay where they are, even below a path that is mounted
(a repository in /tmp, and a pod with a /tmp of its own).
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path

IMAGE = (sys.prefix, str(Path(__file__).parents[3]))

_BEFORE, _AFTER = r"(?<![\w./-])", r"(?=$|[^\w.-])"


def replace_paths(text: str, mounts: Mapping[str, str]) -> str:
    """`text` with every mount path in it, alone or as the head of a longer path, replaced by the local one."""
    if not mounts:
        return text
    longest_first = sorted(mounts, key=len, reverse=True)
    paths = "|".join(re.escape(path.rstrip("/")) for path in longest_first if path.rstrip("/"))
    places = {path.rstrip("/"): place for path, place in mounts.items()}
    of_image = re.compile("|".join(f"{re.escape(path)}{_AFTER}" for path in IMAGE))

    def place(found: re.Match[str]) -> str:
        return found[0] if of_image.match(text, found.start()) else places[found[1]]

    return re.sub(f"{_BEFORE}({paths}){_AFTER}", place, text)
