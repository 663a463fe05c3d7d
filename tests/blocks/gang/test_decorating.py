"""`@gang` on a flow: attached, merged into deployments, refused where it cannot work."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from prefect import Flow, flow
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from dsec_blocks import gang
from dsec_blocks.gang import check_admitted, current_gang, gang_request_of, merged_job_variables
from dsec_blocks.gang.membership import membership
from dsec_blocks.model import names
from dsec_blocks.model.errors import GangMismatch, InvalidRequest, NotInGang, SubmitRefused
from dsec_blocks.model.requests import parse_request


@gang(nodes=2, devices_per_node=4, gpu_model="H100", grace="20s", env={"A": "1"})
@flow
def above(x: int = 1) -> int:
    return x


@flow
@gang(nodes=2, devices_per_node=4)
def below(x: int = 1) -> int:
    return x


@flow
def plain() -> None: ...


def test_it_works_above_and_below_flow_and_leaves_a_flow() -> None:
    assert isinstance(above, Flow) and isinstance(below, Flow)
    assert gang_request_of(above) == {
        "nodes": 2, "devices_per_node": 4, "gpu_model": "H100", "grace": "20s", "env": {"A": "1"},
    }  # fmt: skip
    assert gang_request_of(below) == {"nodes": 2, "devices_per_node": 4}
    assert gang_request_of(plain) is None
    assert above.fn(3) == 3 and above.name == "above"


@pytest.mark.parametrize("variables", [{}, {"work_queue_name": "team-a"}])
def test_a_deployment_takes_over_the_request(variables: dict[str, Any]) -> None:
    for decorated in (above, below):
        deployment = decorated.to_deployment("d", work_pool_name="p", **variables)
        assert deployment.job_variables["devices_per_node"] == 4
        assert parse_request(deployment.job_variables).devices == 8


async def test_a_deployment_made_in_an_event_loop_takes_it_over_too() -> None:
    deployment = await above.ato_deployment("d", work_pool_name="p")
    assert deployment.job_variables["gpu_model"] == "H100"
    dispatched = await above.to_deployment("d", work_pool_name="p")
    assert dispatched.job_variables["gpu_model"] == "H100"


def test_explicit_job_variables_win_and_the_difference_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    merged = merged_job_variables(above, {"nodes": 1, "priority": 5, "gpu_model": None, "env": {"A": "2", "B": "3"}})
    assert (merged["nodes"], merged["priority"], merged["gpu_model"]) == (1, 5, "H100")
    assert (merged["env"]["A"], merged["env"]["B"]) == ("2", "3")
    assert "above: nodes=1 from the deployment wins over @gang(nodes=2)" in capsys.readouterr().err


def test_a_flow_without_gang_keeps_its_job_variables_as_they_are() -> None:
    assert merged_job_variables(plain, {"nodes": 3}) == {"nodes": 3}


def test_with_options_keeps_the_request() -> None:
    renamed = above.with_options(name="renamed")
    assert renamed.name == "renamed"
    assert renamed.to_deployment("d", work_pool_name="p").job_variables["nodes"] == 2


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"nodes": 0}, "nodes"),
        ({"nodes": 1, "min_nodes": 2}, "min_nodes: 2 is more than nodes"),
        ({"devices_per_node": 1, "gpu_memory": "80"}, "'80' has no unit"),
        ({"gpu_model": "H100"}, "ask for at least one device"),
        ({"kind": "gaming"}, "'gaming' is not one of"),
        ({"inputs": "s3://b/x"}, "is not a list of URIs"),
    ],
)
def test_a_bad_request_is_refused_where_it_is_written(request_: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        gang(**request_)


def test_gang_without_parentheses_says_how_to_write_it() -> None:
    with pytest.raises(InvalidRequest, match=r"@gang\(nodes=2"):
        gang(plain)


@pytest.mark.parametrize("method", ["submit", "map", "delay"])
@pytest.mark.parametrize("decorated", [above, below], ids=["above", "below"])
def test_submit_is_refused_with_the_way_to_deploy(decorated: Any, method: str) -> None:
    with pytest.raises(SubmitRefused, match=r"run_deployment\('\w+/DEPLOYMENT'\)"):
        getattr(decorated, method)(1)


def test_importing_the_gang_package_does_not_import_prefect() -> None:
    code = "import sys, dsec_blocks.gang; print([m for m in ('prefect', 'boto3', 'numpy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_gang_is_the_same_thing_however_it_is_imported() -> None:
    import dsec_blocks.gang
    from dsec_blocks.gang import gang as from_package

    assert gang is from_package is dsec_blocks.gang
    assert gang.agree(True) is True


class TestWhatWasAdmitted:
    def env(self, **variables: Any) -> dict[str, str]:
        extra = variables.pop("extra", {})
        return {names.ENV_REQUEST: json.dumps(parse_request(variables).to_json()), **extra}

    def test_the_same_request_passes(self) -> None:
        check_admitted(above, self.env(**(gang_request_of(above) or {})))

    def test_what_gang_leaves_out_may_be_anything(self) -> None:
        check_admitted(
            above, self.env(**{**(gang_request_of(above) or {}), "priority": 9, "env": {"A": "1", "B": "2"}})
        )

    def test_a_run_admitted_with_the_yaml_alone_fails_naming_each_field(self) -> None:
        with pytest.raises(GangMismatch) as caught:
            check_admitted(above, self.env())
        text = str(caught.value)
        assert "nodes is 2 in @gang but 1 was admitted" in text
        assert "gpu_model is 'H100' in @gang but None was admitted" in text
        assert "dsec deploy" in text

    def test_an_override_that_the_deployment_made_on_purpose_passes(self) -> None:
        merged = merged_job_variables(above, {"nodes": 1})
        check_admitted(above, self.env(**merged, extra=merged["env"]))

    def test_code_that_changed_since_it_was_deployed_is_compared_again(self) -> None:
        merged = merged_job_variables(below, {})
        with pytest.raises(GangMismatch):
            check_admitted(above, self.env(**merged, extra=merged["env"]))

    def test_a_flow_without_gang_and_a_run_without_a_gang_pass(self) -> None:
        check_admitted(plain, self.env(nodes=3))
        check_admitted(above, {})


class TestInsideAGang:
    @pytest.fixture
    def in_a_gang(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        monkeypatch.setattr("dsec_blocks.gang.membership._known", None)
        monkeypatch.setenv(names.ENV_CHANNEL, "/nowhere/channel")
        monkeypatch.setenv(names.ENV_RUN_ID, "11111111-1111-1111-1111-111111111111")
        monkeypatch.setenv(names.ENV_REQUEST, json.dumps(parse_request({"nodes": 2}).to_json()))
        monkeypatch.setenv(
            names.ENV_PLACEMENT, json.dumps([{"node": "a", "devices": ["u"]}, {"node": "b", "devices": []}])
        )
        yield
        monkeypatch.setattr("dsec_blocks.gang.membership._known", None)

    def context(self, of: Any, *, run_id: str, is_subflow: bool) -> FlowRunContext:
        run = FlowRun.model_construct(id=run_id, parent_task_run_id="t" if is_subflow else None)
        return FlowRunContext.model_construct(flow=of, flow_run=run)

    def test_current_gang_tells_request_and_placement(self, in_a_gang: None) -> None:
        found = current_gang()
        assert (found.nodes, found.request.nodes, found.placement.devices) == (2, 2, ("u",))

    @pytest.mark.parametrize("decorated", [above, below], ids=["above", "below"])
    def test_a_subflow_with_its_own_gang_is_an_error_that_names_run_deployment(
        self, in_a_gang: None, decorated: Any
    ) -> None:
        with self.context(decorated, run_id="22222222-2222-2222-2222-222222222222", is_subflow=True):
            with pytest.raises(SubmitRefused, match="run_deployment"):
                current_gang()

    def test_calling_a_gang_flow_inside_a_gang_is_refused_before_it_runs(self, in_a_gang: None) -> None:
        with self.context(plain, run_id=membership().run_id, is_subflow=False):
            with pytest.raises(
                SubmitRefused, match=r"inside the gang of 'plain'.*run_deployment\('above/DEPLOYMENT'\)"
            ):
                above(1)

    def test_a_subflow_without_gang_uses_its_parents(self, in_a_gang: None) -> None:
        with self.context(plain, run_id="22222222-2222-2222-2222-222222222222", is_subflow=True):
            assert current_gang().nodes == 2


def test_outside_of_a_flow_current_gang_says_what_to_do() -> None:
    with pytest.raises(NotInGang, match="call it inside a @flow"):
        current_gang()
