"""As whom a gang's container runs, and what it may do: what Pod Security "restricted" accepts, or what a template says.

Pure. What a template says of the pod or of the container stays, value by value. One that asks for root or privileges
knows what it wants: nothing is added to it. Other containers of a template are the user's, and are left alone.
"""

from collections.abc import Mapping
from typing import Any

Object = dict[str, Any]
MEMBER_USER = 10001
"""The user of DSec's own image."""


def secure(spec: Object, container: Object, *, user: int) -> None:
    """Say in the pod's spec and in its gang's container what neither says yet; nothing where `user` is 0."""
    of_pod, own = _said(spec), _said(container)
    said = {**of_pod, **own}
    if not user or _asks_for_more(said):
        return
    if "runAsUser" not in said:
        own.update(runAsUser=user, runAsGroup=said.get("runAsGroup", user))
        # Volumes that were made for root are the group's, too; files that are right already are not touched again.
        spec["securityContext"] = {"fsGroup": user, "fsGroupChangePolicy": "OnRootMismatch", **of_pod}
    own["runAsNonRoot"] = True
    if "seccompProfile" not in said:
        own["seccompProfile"] = {"type": "RuntimeDefault"}
    own["capabilities"] = {"drop": ["ALL"], **(own.get("capabilities") or {})}
    own.setdefault("allowPrivilegeEscalation", False)
    container["securityContext"] = own


def _said(holder: Mapping[str, Any]) -> Object:
    """A template's empty placeholders say nothing."""
    return {name: value for name, value in (holder.get("securityContext") or {}).items() if value is not None}


def _asks_for_more(said: Mapping[str, Any]) -> bool:
    added = (said.get("capabilities") or {}).get("add") or ()
    is_root = said.get("runAsUser") == 0 or said.get("runAsNonRoot") is False
    return is_root or bool(said.get("privileged")) or bool({"SYS_ADMIN", "CAP_SYS_ADMIN"} & set(added))
