"""The form is the gang request, and an upgrade keeps what a user changed."""

import copy

from dsec_blocks.model.requests import REQUEST_VARIABLES, GangRequest, parse_request
from dsec_workers.form import GangJobConfiguration, GangVariables, default_template, upgraded_template


def test_the_form_has_every_field_of_the_gang_request_first_and_in_its_order() -> None:
    fields = list(default_template()["variables"]["properties"])
    assert tuple(fields[: len(REQUEST_VARIABLES)]) == REQUEST_VARIABLES
    assert set(fields[len(REQUEST_VARIABLES) :]) == {"working_dir", "command", "name", "labels"}


def test_every_field_has_a_title_and_a_plain_description() -> None:
    for name, field in default_template()["variables"]["properties"].items():
        assert field.get("title"), name
        assert field.get("description"), name
        assert not set("`*_#[") & set(field["description"]), f"{name}: the UI shows no markdown"


def test_the_forms_defaults_are_the_requests_defaults() -> None:
    defaults = {
        name: field["default"]
        for name, field in default_template()["variables"]["properties"].items()
        if "default" in field
    }
    assert parse_request(defaults) == GangRequest()


def test_choices_are_shown_with_their_values() -> None:
    properties = default_template()["variables"]["properties"]
    assert properties["kind"]["enum"] == ["training", "inference", "batch", "interactive"]
    assert properties["sharing"]["enum"] == ["auto", "whole", "slice", "time-slice"]
    assert properties["topology"]["enum"] == [
        "preferred", "node-domain", "domain", "rack", "block", "zone", "spread",
    ]  # fmt: skip


def test_every_job_variable_reaches_the_job_configuration() -> None:
    template = default_template()
    for name in GangVariables.model_fields:
        assert template["job_configuration"][name] == f"{{{{ {name} }}}}"


def test_the_request_is_read_from_the_configuration_as_it_was_written() -> None:
    configuration = GangJobConfiguration(nodes="2", devices_per_node=8, gpu_memory="80GiB", env={"A": "1"})
    request = parse_request(configuration.request_variables)
    assert (request.nodes, request.devices_per_node, request.env) == (2, 8, {"A": "1"})


def test_an_upgrade_brings_new_fields_and_new_defaults_and_keeps_the_users_edits() -> None:
    old = copy.deepcopy(default_template())
    for part in (old, old["dsec"]["shipped"]):
        fields = part["variables"]["properties"]
        del fields["topology"]  # this version added it
        fields["grace"]["default"] = 10.0  # this version changed it
        fields["labels"]["title"] = "Old title"
        part["job_configuration"].pop("topology")
    users = old["variables"]["properties"]
    users["devices_per_node"]["default"] = 4
    users["labels"]["title"] = "Our labels"
    del users["image"]
    users["cost_centre"] = {"type": "string", "title": "Cost centre"}
    old["job_configuration"]["env"] = {"SITE": "north"}

    merged = upgraded_template(old)

    fields = merged["variables"]["properties"]
    assert fields["topology"] == default_template()["variables"]["properties"]["topology"]
    assert fields["grace"]["default"] == 30.0
    assert fields["devices_per_node"]["default"] == 4
    assert fields["labels"]["title"] == "Our labels"
    assert "image" not in fields
    assert fields["cost_centre"] == {"type": "string", "title": "Cost centre"}
    assert merged["job_configuration"]["env"] == {"SITE": "north"}
    assert merged["job_configuration"]["topology"] == "{{ topology }}"
    assert upgraded_template(merged) == merged


def test_a_pool_that_does_not_remember_what_was_shipped_keeps_all_it_has() -> None:
    bare = {key: value for key, value in copy.deepcopy(default_template()).items() if key != "dsec"}
    bare["variables"]["properties"]["grace"]["default"] = 10.0
    assert upgraded_template(bare)["variables"]["properties"]["grace"]["default"] == 10.0
