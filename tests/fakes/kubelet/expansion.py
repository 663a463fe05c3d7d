"""`$(VAR)` in commands, arguments and values: replaced where VAR is known, left alone where not; `$$` is a dollar."""

import re
from collections.abc import Mapping

_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`text` with its references replaced, as the API documents it for `Container.command`."""
    return _REFERENCE.sub(lambda found: _meaning(found, variables), text)


def _meaning(found: re.Match[str], variables: Mapping[str, str]) -> str:
    if found[0] == "$$":
        return "$"
    return variables.get(found[1], found[0])
