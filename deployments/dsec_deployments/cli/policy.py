"""`dsec policy`: the rules a pool plans by, as a file; every version with who and why; and one to watch in shadow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec_deployments.cli.options import Json, Pool, Why

if TYPE_CHECKING:
    from dsec_workers.scheduling.policy import Policy

app = typer.Typer(no_args_is_help=True, help="The rules that the pool plans by.")

File = Annotated[Path, typer.Argument(help="A YAML file; what it does not name keeps the shipped value.")]


@app.command(epilog="Example: [bold]dsec policy show > policy.yaml[/]")
def show(
    shipped: Annotated[bool, typer.Option("--shipped", help="The policy that DSec ships with.")] = False,
    changes: Annotated[bool, typer.Option("--changes", help="Only what differs from the shipped policy.")] = False,
    pool: Pool = None,
    json: Json = False,
) -> None:
    """Print the policy in force as a documented file that `dsec policy set` takes."""
    import sys

    from dsec_deployments.cli.output import print_json
    from dsec_deployments.cli.session import session
    from dsec_workers.lifecycle.policy_text import differences, policy_to_yaml, values_of
    from dsec_workers.lifecycle.rules import SHIPPED, active_policy

    policy = SHIPPED
    if not shipped:
        with session(pool) as s:
            policy = active_policy(s.ledger, s.pool)
    if json:
        print_json({"version": policy.version, "values": differences(policy) if changes else values_of(policy)})
        return
    sys.stdout.write(f"# policy {policy.version}\n\n")
    if changes:
        import yaml

        found = differences(policy)
        sys.stdout.write(yaml.safe_dump(found, sort_keys=False) if found else "# nothing differs\n")
    else:
        sys.stdout.write(policy_to_yaml(policy))


@app.command(epilog="Example: [bold]dsec policy check policy.yaml[/]")
def check(file: File) -> None:
    """Say whether a file is a policy, and in what it differs from the shipped one."""
    from dsec_deployments.cli.output import console
    from dsec_workers.lifecycle.policy_text import differences

    changed = differences(_read(file))
    console.print(f"{file} is a policy; " + (f"it changes {_listed(changed)}" if changed else "it changes nothing"))


@app.command("set", epilog='Example: [bold]dsec policy set policy.yaml --why "shorter waits"[/]')
def set_(file: File, why: Why, pool: Pool = None) -> None:
    """Plan by this file from the next cycle on; no restart is needed."""
    from dsec_deployments.cli.output import console
    from dsec_deployments.cli.session import session
    from dsec_workers.lifecycle.policy_text import differences

    policy = _read(file)
    with session(pool) as s:
        changed = differences(policy)
        version = s.ledger.put_policy(s.pool, changed, by=s.user, why=why)
        console.print(f"policy {version} is in force: " + (_listed(changed) if changed else "the shipped policy"))


@app.command(epilog='Example: [bold]dsec policy shadow trial.yaml --why "more age"[/]')
def shadow(
    file: Annotated[str, typer.Argument(help="A YAML file, or 'off'.")], why: Why = "", pool: Pool = None
) -> None:
    """Ask a second policy in every cycle and obey it never; `dsec policy diff` shows where it differs."""
    from dsec_blocks.ledger import SHADOW
    from dsec_deployments.cli.output import console
    from dsec_deployments.cli.session import session
    from dsec_workers.lifecycle.policy_text import differences

    body = None if file == "off" else differences(_read(Path(file)))
    with session(pool) as s:
        version = s.ledger.put_policy(s.pool, body, role=SHADOW, by=s.user, why=why)
    if body is None:
        console.print("no policy runs in shadow")
    else:
        console.print(f"policy {version} runs in shadow: its decisions are logged, none is carried out")


@app.command(epilog="Example: [bold]dsec policy diff[/]")
def diff(
    last: Annotated[int, typer.Option("--last", min=1, help="Look at so many of the last decisions.")] = 5000,
    pool: Pool = None,
    json: Json = False,
) -> None:
    """Show what the shadow policy would have decided otherwise, newest last."""
    from dsec_deployments.cli.ordering import clock_time
    from dsec_deployments.cli.output import print_json, print_table
    from dsec_deployments.cli.session import session
    from dsec_workers.lifecycle.shadow_policy import STAGE

    with session(pool) as s:
        names = {gang.run_id: gang.name for gang in s.ledger.gangs(s.pool)}
        found = [entry for entry in s.ledger.decisions(s.pool, limit=last) if entry.stage == STAGE]
    rows: list[dict[str, Any]] = [
        {
            "at": entry.at,
            "run_id": entry.run_id,
            "run": names.get(entry.run_id or "", entry.run_id),
            "policy_version": entry.policy_version,
            "outcome": entry.outcome,
            "why": entry.why,
        }
        for entry in found
    ]
    if json:
        print_json(rows)
        return
    print_table(
        f"Where the shadow policy differs, pool {s.pool}",
        ["at", "run", "policy>", "it", "why"],
        [[clock_time(r["at"]), r["run"], r["policy_version"], r["outcome"], r["why"]] for r in rows],
        empty="no difference was logged; `dsec policy history` tells whether a policy runs in shadow",
    )


@app.command(epilog="Example: [bold]dsec policy history[/]")
def history(pool: Pool = None, json: Json = False) -> None:
    """List every version: who set it, when, why, and what it changes."""
    from dsec_blocks.ledger import SHIPPED_VERSION
    from dsec_deployments.cli.ordering import clock_time
    from dsec_deployments.cli.output import print_json, print_table
    from dsec_deployments.cli.session import session

    with session(pool) as s:
        found = s.ledger.policies(s.pool)
    if json:
        print_json(found)
        return
    rows = [
        [p.version, p.role, clock_time(p.at), p.by, p.why, "ends" if p.body is None else _listed(p.body) or "nothing"]
        for p in found
    ]
    print_table(
        f"Policies of pool {s.pool}",
        ["version>", "role", "at", "by", "why", "changes"],
        [*rows, [SHIPPED_VERSION, "active", "", "DSec", "shipped", "nothing"]],
        empty="",
    )


def _read(file: Path) -> Policy:
    from dsec_blocks.model.errors import InvalidRequest
    from dsec_workers.lifecycle.policy_text import policy_from_yaml

    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidRequest(f"{file}: {reason}; `dsec policy show > {file}` writes a policy to begin with") from None
    return policy_from_yaml(text, file=str(file))


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in values.items())
