"""`dsec cache`: the node's cache, looked at and put in order. Needs no server: everything is read from the disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dsec_blocks.model.errors import DsecError
from dsec_deployments.cli.options import Json

if TYPE_CHECKING:
    from dsec_blocks.cache.acquiring import Cache
    from dsec_blocks.cache.store import Mark

app = typer.Typer(no_args_is_help=True, help="The node's cache of models and data sets.")

Directory = Annotated[
    Path | None,
    typer.Option("--directory", "-d", envvar="DSEC_CACHE_DIR", help="The cache; `cache` below DSEC_HOME by default."),
]
Bundle = Annotated[
    str, typer.Argument(help="A bundle: its address, or the beginning of its digest (see `dsec cache ls`).")
]
_WIDTH = 12


@app.command(epilog="Example: [bold]dsec cache ls --json[/]")
def ls(directory: Directory = None, json: Json = False) -> None:
    """Every resident bundle: size, last check against its origin, and who holds it."""
    from dsec_blocks.cache.inventory import inventory
    from dsec_blocks.cache.store.wording import holders_text
    from dsec_blocks.model.units import format_duration, format_memory
    from dsec_deployments.cli.output import print_explained, print_json

    cache = _cache(directory)
    found = inventory(cache.store)
    if json:
        print_json(
            [
                {
                    "bundle": r.bundle,
                    "addresses": list(r.addresses),
                    "size_bytes": r.size_bytes,
                    "own_bytes": r.own_bytes,
                    "files": r.files,
                    "whole": r.is_whole,
                    "pinned": r.is_pinned,
                    "checked_at": r.checked_at,
                    "holders": [_holder(mark) for mark in r.holders],
                }
                for r in found
            ]
        )
        return
    now = cache.store.clock.now()
    print_explained(
        f"Bundles in {cache.store.layout.root}",
        ["bundle", "size>", "only here>", "files>", "checked"],
        [
            [
                r.bundle[:_WIDTH],
                format_memory(r.size_bytes),
                format_memory(r.own_bytes),
                r.files,
                f"{format_duration(now - r.checked_at)} ago" if r.checked_at else "-",
                ("" if r.is_whole else "NOT WHOLE: ")
                + (", ".join(r.addresses) or "no address any more")
                + (f"; held by {holders_text(r.holders)}" if r.holders else ""),
            ]
            for r in found
        ],
        empty=f"nothing is in the cache {cache.store.layout.root}; fill it with: dsec prefetch URI",
        last="address, and who holds it",
    )


@app.command(epilog="Example: [bold]dsec cache du[/]")
def du(directory: Directory = None, json: Json = False) -> None:
    """How the space is used: resident, reserved, in flight, trash, and what the limits leave."""
    from dsec_blocks.cache.store import usage
    from dsec_blocks.model.units import format_memory
    from dsec_deployments.cli.output import print_json, print_table

    store = _cache(directory).store
    used = usage(store.layout, store.sight)
    disk = store.disk(store.layout.root)
    rows: dict[str, int | None] = {
        "resident": used.resident_bytes,
        "reserved": used.reserved_bytes,
        "in flight": used.in_flight_bytes,
        "trash": used.trash_bytes,
        "used": used.used_bytes,
        "limit": store.limits.limit_bytes,
        "free on the disk": disk.free_bytes,
        "floor of free space": store.limits.free_bytes,
    }
    if json:
        print_json({f"{name.replace(' ', '_')}_bytes": value for name, value in rows.items()} | {"files": used.files})
        return
    print_table(
        f"Cache {store.layout.root} ({store.policy})",
        ["", "bytes>"],
        [[name, "none" if value is None else format_memory(value)] for name, value in rows.items()],
        empty="",
    )


@app.command(epilog="Example: [bold]dsec cache pin s3://models/llama-70b --why 'the demo on Friday'[/]")
def pin(
    bundle: Bundle,
    why: Annotated[str, typer.Option("--why", help="The reason; shown to whoever finds the cache full.")] = "pinned",
    directory: Directory = None,
) -> None:
    """Keep a resident bundle until it is unpinned, whatever the policy thinks."""
    import getpass

    from dsec_blocks.cache.store import pin as put_pin
    from dsec_blocks.cache.store.refusals import told
    from dsec_deployments.cli.output import console

    store = _cache(directory).store
    digest = _resident(store, bundle)
    with told(store.layout.root, f"{bundle} cannot be pinned"):
        held = put_pin(store, digest, who=f"{why} (pin of {getpass.getuser()})")
    if held is None:
        raise DsecError(f"{bundle} is being evicted just now; fetch it again with: dsec prefetch {bundle}")
    console.print(f"{bundle} is pinned; dsec cache unpin {digest[:_WIDTH]} lets go of it")


@app.command(epilog="Example: [bold]dsec cache unpin s3://models/llama-70b[/]")
def unpin(bundle: Bundle, directory: Directory = None) -> None:
    """Let the policy decide over a bundle again."""
    from dsec_blocks.cache.store import unpin as take_pin
    from dsec_blocks.cache.store.refusals import told
    from dsec_deployments.cli.output import console

    store = _cache(directory).store
    with told(store.layout.root, f"{bundle} cannot be unpinned"):
        count = take_pin(store, _resident(store, bundle))
    if not count:
        raise DsecError(f"{bundle} is not pinned; dsec cache ls shows what is")
    console.print(f"{bundle} is no longer pinned")


@app.command(epilog="Example: [bold]dsec cache rm s3://datasets/old[/]")
def rm(bundle: Bundle, directory: Directory = None) -> None:
    """Take a bundle off the disk now; refused while somebody holds it."""
    from dsec_blocks.cache.store import evict, holders
    from dsec_blocks.cache.store.refusals import told
    from dsec_blocks.cache.store.wording import holders_text
    from dsec_deployments.cli.output import console

    store = _cache(directory).store
    digest = _resident(store, bundle)
    with told(store.layout.root, f"{bundle} cannot be removed"):
        is_gone = evict(store, digest, why="dsec cache rm")
    if not is_gone:
        raise DsecError(
            f"{bundle} is held by {holders_text(holders(store, digest))}; release it (or dsec cache unpin) first"
        )
    console.print(f"{bundle} is off the disk")


@app.command(epilog="Example: [bold]dsec cache verify[/] (exit code 1 when something is damaged)")
def verify(
    bundle: Annotated[str | None, typer.Argument(help="One bundle; all of them by default.")] = None,
    directory: Directory = None,
    json: Json = False,
) -> None:
    """Hash every file against its manifest; what is damaged is taken away, so that the next use fetches it again."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    from dsec_blocks.cache.store.check import discard_damaged
    from dsec_blocks.cache.store.check import verify as hash_all
    from dsec_blocks.cache.store.refusals import told
    from dsec_blocks.cache.store.views import resident_bundles
    from dsec_deployments.cli.output import console, messages, print_json

    store = _cache(directory).store
    digest = _resident(store, bundle) if bundle else None
    total = sum(len(m.files) for name, m in resident_bundles(store.layout).items() if digest in (None, name))
    damaged: dict[str, list[str]] = {}
    checked = 0
    columns = (TextColumn("hashing"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=messages, transient=True) as progress:
        task = progress.add_task("hashing", total=total)
        for view, path, is_right in hash_all(store.layout, digest):
            checked += 1
            progress.advance(task)
            if not is_right:
                damaged.setdefault(view, []).append(path)
    with told(store.layout.root, "what is damaged cannot be taken away"):
        gone = {view: discard_damaged(store, view, paths) for view, paths in damaged.items()}
    if json:
        print_json({"files": checked, "damaged": damaged})
    else:
        for view, paths in damaged.items():
            what = "taken away; the next use fetches it again" if gone[view] else "in use; restart who reads it"
            console.print(f"{view[:_WIDTH]}: {', '.join(paths)} damaged: {what}")
        if not damaged:
            console.print(f"{checked} files are what their manifests say")
    if damaged:
        raise typer.Exit(1)


@app.command(epilog="Example: [bold]dsec cache gc[/]")
def gc(
    everything: Annotated[
        bool, typer.Option("--staging", help="Give up unfinished fetches as well, though they could be resumed.")
    ] = False,
    directory: Directory = None,
    json: Json = False,
) -> None:
    """Repair what dead processes left behind: leases, tombstones, unfinished fetches, blobs without a bundle."""
    from dsec_blocks.cache.store import sweep
    from dsec_blocks.cache.store.refusals import told
    from dsec_deployments.cli.output import console, print_json

    store = _cache(directory).store
    with told(store.layout.root, "nothing can be repaired"):
        swept = sweep(store, staging_seconds=0.0) if everything else sweep(store)
    if json:
        print_json(swept.counts)
    else:
        console.print(str(swept))


@app.command(epilog="Example: [bold]dsec cache check[/] (exit code 1 when a rule is broken)")
def check(directory: Directory = None, json: Json = False) -> None:
    """Prove the invariants: within the limit, views whole and read-only, nothing left by the dead. Writes nothing."""
    from dsec_blocks.cache.store import check as violations_of
    from dsec_deployments.cli.output import console, print_json, print_table

    violations = violations_of(_cache(directory).store)
    if json:
        print_json([{"rule": v.rule, "object": v.object, "text": v.text} for v in violations])
    elif violations:
        rows = [[v.rule, v.object, v.text] for v in violations]
        print_table("Broken rules", ["rule", "object", "what"], rows, empty="")
    else:
        console.print("the cache keeps every rule")
    if violations:
        raise typer.Exit(1)


def _cache(directory: Path | None) -> Cache:
    from dsec_blocks.cache.opening import open_cache
    from dsec_blocks.cache.settings import from_environment

    return open_cache(from_environment(directory=directory))


def _resident(store: Any, name: str) -> str:
    """The digest of the resident bundle that `name` stands for."""
    from dsec_blocks.cache.inventory import find

    return find(store, name)


def _holder(mark: Mark) -> dict[str, Any]:
    pid = mark.owner.process.pid if mark.owner else None
    return {"who": mark.who, "pid": pid, "since": mark.since}
