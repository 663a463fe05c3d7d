"""Where a mount path is on this machine: without a mount namespace, paths in what a container is given are replaced."""

import re
from collections.abc import Mapping

_BEFORE, _AFTER = r"(?<![\w./-])", r"(?=$|[^\w.-])"


def replace_paths(text: str, mounts: Mapping[str, str]) -> str:
    """`text` with every mount path in it, alone or as the head of a longer path, replaced by the local one."""
    if not mounts:
        return text
    longest_first = sorted(mounts, key=len, reverse=True)
    paths = "|".join(re.escape(path.rstrip("/")) for path in longest_first if path.rstrip("/"))
    places = {path.rstrip("/"): place for path, place in mounts.items()}
    return re.sub(f"{_BEFORE}({paths}){_AFTER}", lambda found: places[found[1]], text)
