"""What counts as a durable effect made past the gateways, read from the syntax tree.

A durable effect that passes no named fault point is one that the crash suite cannot strike at.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

OS_EFFECTS = frozenset(
    {"replace", "rename", "renames", "link", "symlink", "unlink", "remove", "removedirs", "rmdir", "kill", "killpg"}
    | {"fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen", "truncate", "ftruncate"}
    | {f"spawn{suffix}" for suffix in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")}
)
PATH_EFFECTS = frozenset({"unlink", "rename", "hardlink_to", "symlink_to", "write_text", "write_bytes", "rmdir"})
SHUTIL_EFFECTS = frozenset({"rmtree", "move", "copy", "copy2", "copyfile", "copytree"})
OPEN_FLAGS_THAT_WRITE = frozenset({"O_WRONLY", "O_RDWR", "O_APPEND", "O_TRUNC"})
CLOCK_READS = frozenset({"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today"})
PROCESS_EFFECTS = frozenset({"send_signal", "terminate", "kill", "suspend", "resume"})


@dataclass(frozen=True, slots=True, kw_only=True)
class RawEffect:
    """One call that has its effect without a gateway."""

    what: str
    line: int


def raw_effects(source: str) -> Iterator[RawEffect]:
    """The durable effects in one module that pass no gateway."""
    tree = ast.parse(source)
    imported = _origins(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            what = _effect(node, imported)
            if what:
                yield RawEffect(what=what, line=node.lineno)


def clock_reads(source: str) -> Iterator[RawEffect]:
    """The places in one module that read the machine's wall clock themselves."""
    tree = ast.parse(source)
    imported = _origins(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = _dotted(node, imported)
            if ".".join(name.split(".")[-2:]) in CLOCK_READS:
                yield RawEffect(what=name, line=node.lineno)


def _effect(call: ast.Call, imported: dict[str, str]) -> str | None:
    name = _dotted(call.func, imported)
    head, _, tail = name.rpartition(".")
    if head == "os" and tail in OS_EFFECTS:
        return name
    if head == "os" and tail == "open" and _flags_write(call):
        return "os.open for writing"
    if head == "shutil" and tail in SHUTIL_EFFECTS:
        return name
    if name.startswith(("subprocess.", "asyncio.create_subprocess")) or tail == "Popen":
        return name
    if head in ("boto3", "boto3.session") or (tail == "client" and "boto" in head):
        return name
    if name == "open" or (tail == "open" and head not in ("os", "tarfile", "zipfile", "webbrowser")):
        return f"{name} for writing" if _mode_writes(call, is_builtin=name == "open") else None
    if tail == "commit" and not call.args and not call.keywords:
        return name
    if tail in PATH_EFFECTS and head not in ("os", "shutil", "files", "dsec_blocks.gateways.files"):
        return name
    if tail in PROCESS_EFFECTS and head.rpartition(".")[2] in ("process", "child", "proc", "worker", "server", "popen"):
        return name
    return None


def _origins(tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: `from os import kill as k` makes k → os.kill."""
    origins = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                origins[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                origins[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return origins


def _dotted(node: ast.expr, imported: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value, imported)}.{node.attr}"
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id)
    return "()"


def _flags_write(call: ast.Call) -> bool:
    return any(
        isinstance(part, ast.Attribute) and part.attr in OPEN_FLAGS_THAT_WRITE
        for arg in call.args[1:2]
        for part in ast.walk(arg)
    )


def _mode_writes(call: ast.Call, *, is_builtin: bool) -> bool:
    position = 1 if is_builtin else 0
    modes = [kw.value for kw in call.keywords if kw.arg == "mode"] or call.args[position : position + 1]
    return any(
        isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) & set("wax+")
        for mode in modes
    )
