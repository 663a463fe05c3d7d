"""A policy as people write it: YAML with the fields of `Policy`, checked field by field.

The dataclass is the only list of what a policy has: a field that is added there can be written here, is described in
the shipped file by its docstring, and is checked by its type. What a file does not name keeps its shipped value, so a
file says only what a site has decided.
"""

import ast
import dataclasses
import difflib
import inspect
import math
import textwrap
from collections.abc import Mapping
from functools import cache
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from dsec_blocks.model.errors import InvalidRequest
from dsec_workers.scheduling.policy import Policy

_GIVEN_BY_THE_LEDGER = frozenset({"version"})


def policy_from_yaml(text: str, *, file: str, version: str = "unset") -> Policy:
    """The policy that the YAML `text` of `file` says.

    Raises `InvalidRequest`; every message names the file, the key, the value, and what to write instead.
    """
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise InvalidRequest(f"{file}{line}: this is not YAML: {problem}; write `key: value` lines") from None
    if document is None:
        document = {}
    if not isinstance(document, Mapping):
        raise InvalidRequest(f"{file}: a policy is a mapping of `key: value` lines, not {_short(document)}")
    return policy_from_mapping(document, file=file, version=version)


def policy_from_mapping(values: Mapping[Any, Any], *, file: str, version: str) -> Policy:
    """The same from a mapping, as the ledger keeps it; fields that it does not name keep their shipped values."""
    known = {f.name for f in dataclasses.fields(Policy)} - _GIVEN_BY_THE_LEDGER
    fields: dict[str, Any] = {}
    for key, value in values.items():
        if key in _GIVEN_BY_THE_LEDGER:
            raise InvalidRequest(f"{file}: {key}: {_short(value)}: the ledger numbers policies itself; leave it out")
        if key not in known:
            near = difflib.get_close_matches(str(key), sorted(known), n=1)
            hint = f"did you mean {near[0]}?" if near else "`dsec policy show` lists the keys"
            raise InvalidRequest(f"{file}: {key}: {_short(value)}: a policy has no such key; {hint}")
        fields[key] = _checked(key, value, file)
    if "w_age" in fields and "w_small" not in fields:
        fields["w_small"] = _room_for_small(fields)
    try:
        return Policy(version=version, **fields)
    except InvalidRequest as error:
        raise InvalidRequest(f"{file}: {str(error).removeprefix(f'policy {version}: ')}") from None


def _room_for_small(fields: Mapping[str, Any]) -> float:
    """The `w_small` of a policy that says what a wait weighs and was written before there was such a factor.

    Waiting has to outweigh the other factors together: it gets no more than the policy's own w_age leaves.
    """
    shipped = Policy()
    others = sum(float(fields.get(name, getattr(shipped, name))) for name in ("w_share", "w_gap", "w_depth"))
    room: float = math.floor((fields["w_age"] - others) * 1e6) / 1e6
    return max(0.0, min(shipped.w_small, room))


def values_of(policy: Policy) -> dict[str, Any]:
    """Every field but the version, JSON-ready."""
    dumped: dict[str, Any] = TypeAdapter(Policy).dump_python(policy, mode="json")
    return {name: value for name, value in dumped.items() if name not in _GIVEN_BY_THE_LEDGER}


def differences(policy: Policy, other: Policy | None = None) -> dict[str, Any]:
    """The fields in which `policy` differs from `other` (the shipped one, when None)."""
    shipped = values_of(other or Policy())
    return {name: value for name, value in values_of(policy).items() if value != shipped[name]}


def policy_to_yaml(policy: Policy) -> str:
    """The whole policy as a documented file, which `policy_from_yaml` reads back."""
    told = field_descriptions()
    parts = []
    for name, value in values_of(policy).items():
        said = textwrap.indent("\n".join(textwrap.wrap(told.get(name, ""), 116)), "# ")
        parts.append((said + "\n" if said else "") + yaml.safe_dump({name: value}, sort_keys=False).strip())
    return "\n\n".join(parts) + "\n"


@cache
def field_descriptions() -> dict[str, str]:
    """What the dataclass says of each field, in the string below it."""
    [declared] = ast.parse(textwrap.dedent(inspect.getsource(Policy))).body
    assert isinstance(declared, ast.ClassDef)
    found: dict[str, str] = {}
    name = None
    for line in declared.body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            name = line.target.id
        elif isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant) and name is not None:
            found[name] = " ".join(str(line.value.value).split())
    return found


def _checked(key: str, value: Any, file: str) -> Any:
    kind = get_type_hints(Policy)[key]
    if isinstance(value, bool) != (kind is bool):
        raise InvalidRequest(f"{file}: {key}: {_short(value)}: write {_wanted(kind)}")
    if isinstance(value, str) and kind is not str:
        # YAML has numbers of its own; text that only looks like one is a slip (1e3 is text in YAML, "30s" a duration).
        raise InvalidRequest(f"{file}: {key}: {_short(value)}: this is text; write {_wanted(kind)}")
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        inside = ".".join(str(part) for part in first["loc"])
        where = f" ({inside})" if inside else ""
        raise InvalidRequest(f"{file}: {key}: {_short(value)}{where}: {first['msg']}; write {_wanted(kind)}") from None


def _wanted(kind: Any) -> str:
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    return words.get(kind) or f"a value of type {str(kind).replace('collections.abc.', '').replace('dsec_blocks.', '')}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
