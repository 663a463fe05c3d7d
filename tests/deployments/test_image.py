"""The image's recipe agrees with the repository and with the chart. (Nothing here can build an image.)"""

import re
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "deployments/images/Dockerfile").read_text()


def test_what_it_copies_is_there_and_is_sent_to_the_builder() -> None:
    sent = (ROOT / ".dockerignore").read_text().splitlines()
    for line in re.findall(r"^COPY (?!--from)(.+)$", RECIPE, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (ROOT / source).exists(), source
            assert f"!{source}" in sent


def test_it_installs_every_package_with_extras_that_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = re.search(r"'\.\[(.+)\]'", RECIPE)
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["project"]["optional-dependencies"])
    for folder in project["tool"]["setuptools"]["package-dir"].values():
        assert re.search(rf"^COPY {folder.split('/')[0]}", RECIPE, re.MULTILINE), folder


def test_one_argument_names_the_base_of_all_its_stages() -> None:
    assert set(re.findall(r"^FROM (\S+)", RECIPE, re.MULTILINE)) == {"${BASE}"}
    argument = re.search(r"^ARG BASE=(\S+)$", RECIPE, re.MULTILINE)
    assert argument is not None and argument.start() < RECIPE.index("\nFROM "), (
        "before the first stage, or none sees it"
    )
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    python = re.fullmatch(r"python:3\.(\d+)-slim", argument[1])
    lowest = re.match(r">=3\.(\d+)", wanted)
    assert python is not None and lowest is not None and int(python[1]) >= int(lowest[1])


def test_it_runs_as_the_user_that_the_chart_names() -> None:
    values = yaml.safe_load((ROOT / "deployments/kubernetes/dsec/values.yaml").read_text())
    assert re.findall(r"^USER (\d+)$", RECIPE, re.MULTILINE) == [str(values["user"])]


def test_it_pins_the_installer_that_the_makefile_pins() -> None:
    pinned = re.search(r"UV_VERSION := (\S+)", (ROOT / "Makefile").read_text())
    assert pinned is not None
    assert f"uv=={pinned[1]}" in RECIPE


def test_what_runs_in_it_has_the_git_that_prefects_pull_steps_call() -> None:
    """`git_clone`, the pull step that Prefect writes for a deployment from a repository, starts this program."""
    import prefect.runner.storage

    called = re.findall(r"run_process\(\s*\[\"(\w+)\"|cmd(?:: list\[str\])? = \[\"(\w+)\"",
                        Path(prefect.runner.storage.__file__).read_text())  # fmt: skip
    programs = {one or other for one, other in called}
    assert programs == {"git"}
    last = RECIPE[RECIPE.rindex("\nFROM ") :]
    installed = re.search(r"apt-get install ([^&]+)", last)
    assert installed is not None and programs <= set(installed[1].replace("\\", " ").split())
