"""Rules, boards and the page about them speak of metrics that the code exports; promtool accepts them."""

import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.core import Metric

from dsec_blocks.cache import CacheSettings, open_cache
from dsec_blocks.ledger import Figures
from dsec_workers.clusters.kubernetes.metrics import KubernetesMetrics
from dsec_workers.lifecycle.pool_metrics import pool_metrics
from dsec_workers.metrics import WorkerMetrics
from dsec_workers.node_agent.measuring import Measuring
from dsec_workers.node_agent.prefetching import Prefetches
from tests.fixtures.prometheus import program

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deployments/prometheus/rules.yaml"
RULES_TEST = ROOT / "deployments/prometheus/rules_test.yaml"
BOARDS = sorted((ROOT / "deployments/grafana").glob("*.json"))
PAGE = ROOT / "docs/metrics.md"

_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Every metric of worker and agent by name → type, from the code that exports them."""
    folder = tmp_path_factory.mktemp("cache")
    cache = open_cache(CacheSettings(directory=folder / "cache"))
    cache.store.prepare()
    agent = Measuring(cache, Prefetches(cache, folder / "prefetches", at_once=1))
    agent.tally.bandwidth_bytes_per_s = 1.0
    nothing = Figures(devices=[], held_by_team={}, device_seconds={}, leaked=0, reported_at={})
    worker = WorkerMetrics("gpus")
    KubernetesMetrics("gpus", worker.registry)
    families: list[Metric] = [
        *worker.registry.collect(),
        *pool_metrics("gpus", nothing, [], {}, model_weights={}, now=0.0),
        *agent.registry.collect(),
    ]
    return {family.name: family.type for family in families if family.name.startswith("dsec_")}


@pytest.fixture(scope="module")
def samples(exported: dict[str, str]) -> set[str]:
    """Every name that a query can ask for."""
    return {f"{name}{suffix}" for name, kind in exported.items() for suffix in _SUFFIXES[kind]}


def groups() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
    return found


def rules(kind: str) -> list[dict[str, Any]]:
    return [rule for group in groups() for rule in group["rules"] if kind in rule]


def panels(board: Path) -> list[dict[str, Any]]:
    return [panel for panel in json.loads(board.read_text())["panels"] if panel["type"] != "row"]


def expressions(board: Path) -> Iterator[str]:
    for panel in panels(board):
        for target in panel["targets"]:
            yield target["expr"]
    for variable in json.loads(board.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def questions(board: Path, *, pool: str = "gpus", team: str = ".*") -> list[str]:
    """What the panels ask, with Grafana's variables filled in."""
    found = []
    for panel in panels(board):
        for target in panel["targets"]:
            text = target["expr"].replace("$__range", "1h").replace("$price", "2.5")
            found.append(text.replace("$pool", pool).replace("$team", team))
    return found


def names(texts: Iterable[str]) -> set[str]:
    """Metrics that the texts speak of, recorded ones included."""
    found = {name for text in texts for name in _NAME.findall(text)}
    return {name for name in found if name.startswith("dsec_") or ":" in name.strip(":")}


def test_metric_names_are_as_prometheus_wants_them(exported: dict[str, str]) -> None:
    for name, kind in exported.items():
        assert not name.endswith(("_total", "_ms", "_mb")), f"{name}: base units, and the client adds _total"
        assert kind != "histogram" or name.endswith("_seconds"), f"{name}: a time is told in seconds"


def test_rules_and_boards_ask_only_for_what_is_exported_or_recorded(samples: set[str]) -> None:
    recorded = {rule["record"] for rule in rules("record")}
    asked = names(rule["expr"] for rule in [*rules("record"), *rules("alert")])
    for board in BOARDS:
        asked |= names(expressions(board))
    assert len(asked) > 30
    assert asked - samples - recorded == set()


def test_a_name_that_nobody_exports_is_found() -> None:
    assert names(['sum(dsec_no_such_metric{pool="x"}) / pool:dsec_x:sum', "time()"]) == {
        "dsec_no_such_metric",
        "pool:dsec_x:sum",
    }


def test_the_page_explains_every_metric_and_no_other(exported: dict[str, str]) -> None:
    told = re.findall(r"^\| `(dsec_\w+)`", PAGE.read_text(), re.MULTILINE)
    counters = {f"{name}_total" if kind == "counter" else name for name, kind in exported.items()}
    assert set(told) == counters
    assert len(told) == len(set(told))


def test_every_alert_says_how_bad_it_is_and_what_to_do() -> None:
    for rule in rules("alert"):
        assert rule["labels"]["severity"] in ("critical", "warning"), rule["alert"]
        assert rule["for"], rule["alert"]
        assert rule["annotations"]["summary"] and len(rule["annotations"]["description"]) > 40, rule["alert"]


def test_of_every_alert_it_is_tested_that_it_fires_and_that_it_keeps_quiet() -> None:
    tests = yaml.safe_load(RULES_TEST.read_text())["tests"]
    quiet = {each["alertname"] for test in tests for each in test.get("alert_rule_test", ()) if not each["exp_alerts"]}
    asked = [each for test in tests for each in test.get("promql_expr_test", ()) if each["exp_samples"]]
    fires = {found[1] for each in asked if (found := re.match(r'ALERTS\{alertname="(\w+)"', each["expr"]))}
    everything = {rule["alert"] for rule in rules("alert")}
    assert quiet == everything and fires == everything


def test_of_every_recorded_figure_it_is_tested_what_it_is() -> None:
    texts = [
        each["expr"]
        for test in yaml.safe_load(RULES_TEST.read_text())["tests"]
        for each in test.get("promql_expr_test", ())
    ]
    used = names([*texts, *(rule["expr"] for rule in rules("alert"))])
    assert {rule["record"] for rule in rules("record")} <= used


def test_there_is_a_board_for_the_platform_and_one_for_a_team() -> None:
    assert [board.name for board in BOARDS] == ["platform.json", "team.json"]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_a_board_can_be_imported_and_each_panel_explains_itself(board: Path) -> None:
    body = json.loads(board.read_text())
    assert body["uid"] == f"dsec-{board.stem}" and body["title"] and body["schemaVersion"] >= 36
    assert "id" not in body, "a board with a database id would replace another one"
    variables = {variable["name"]: variable for variable in body["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    ids = [panel["id"] for panel in body["panels"]]
    assert len(ids) == len(set(ids))
    for panel in panels(board):
        assert panel["title"] and len(panel["description"]) > 10, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["targets"], panel["title"]
        for target in panel["targets"]:
            assert target["datasource"] == panel["datasource"]
            used = set(re.findall(r"\$(\w+)", target["expr"])) - {"__range"}
            assert used <= variables.keys(), panel["title"]


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_no_two_panels_of_a_board_lie_on_each_other(board: Path) -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in json.loads(board.read_text())["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        for place in ((x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])):
            assert place not in taken, f"{panel['title']} lies on {taken[place]}"
            taken[place] = panel["title"]


def promtool(*words: str, cwd: Path = RULES.parent) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([program("promtool"), *words], cwd=cwd, text=True, capture_output=True, check=False)


def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", RULES.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(rules('record')) + len(rules('alert'))} rules found" in done.stdout


@pytest.mark.slow
def test_promtool_sees_each_alert_fire_when_it_should() -> None:
    done = promtool("test", "rules", RULES_TEST.name)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.stem)
def test_promtool_can_parse_each_question_of_a_board(board: Path, tmp_path: Path) -> None:
    asked = [{"record": f"board:{index}", "expr": text} for index, text in enumerate(questions(board))]
    (tmp_path / "board.yaml").write_text(yaml.safe_dump({"groups": [{"name": board.stem, "rules": asked}]}))
    done = promtool("check", "rules", "board.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
