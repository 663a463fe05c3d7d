"""The root of the command: where a word after a command may be a command itself."""

from typing import Any

from typer.core import TyperGroup

DEPLOY_KUBERNETES = "deploy kubernetes"
_DRY_RUN = "--dry-run"


class CommandTree(TyperGroup):
    """`dsec deploy kubernetes` is a command of its own; any other word after `deploy` names a flow."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take two words for the command where they are one."""
        if args[:2] == DEPLOY_KUBERNETES.split():
            args = [DEPLOY_KUBERNETES, *_with_a_value(args[2:])]
        return super().resolve_command(ctx, args)


def _with_a_value(args: list[str]) -> list[str]:
    """`--dry-run` alone is the server's."""
    following = [*args[1:], ""]
    return [
        f"{_DRY_RUN}=server" if arg == _DRY_RUN and after not in ("none", "client", "server") else arg
        for arg, after in zip(args, following, strict=True)
    ]
