"""The `dsec` command: one module per noun.

Modules import what is heavy (Prefect, SQLAlchemy, plotly) inside their functions, so that `dsec --help` and shell
completion answer at once.
"""

import os
import sys

from dsec_deployments.cli.app import app

INTERRUPTED = 130
"""The exit code of a command that Ctrl-C ended."""


def main() -> None:
    """Run the command; an error that DSec raised on purpose is one line on standard error."""
    import typer

    from dsec_blocks.model.errors import DsecError

    try:
        code = app(standalone_mode=False)
    except DsecError as error:
        if os.environ.get("DSEC_DEBUG"):
            raise
        print(f"dsec: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except typer.TyperException as error:
        from typer.rich_utils import rich_format_error

        rich_format_error(error)  # type: ignore[arg-type]
        sys.exit(error.exit_code)
    except (typer.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_RDONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)
