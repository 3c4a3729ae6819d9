"""The checks that run elsewhere (a workflow, pre-commit, .ci) name commands, files and Python versions that exist."""

import pathlib
import re
import shlex
import shutil
import sys

import pytest
import yaml

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = pathlib.Path(__file__).parents[1]
WORKFLOW, SITE = (
    yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text()) for name in ("ci", "site")
)
SETUP = (ROOT / "setup.cfg").read_text()


def workflow_commands() -> list[str]:
    jobs = [*WORKFLOW["jobs"].values(), *SITE["jobs"].values()]
    return [step["run"] for job in jobs for step in job["steps"] if "run" in step]


def pre_commit_commands() -> list[str]:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    return [hook["entry"] for hook in hooks]


def script_commands(name: str) -> list[str]:
    lines = (ROOT / ".ci" / name).read_text().splitlines()
    return [line for line in lines if re.match(r"(python -m|pip|ruff|mypy|mkdocs)\b", line)]


COMMANDS = [*workflow_commands(), *pre_commit_commands(), *script_commands("run"), *script_commands("nightly")]


@pytest.mark.parametrize("command", sorted(set(COMMANDS)))
def test_every_command_names_what_is_installed_here(command):
    """A module of ours, or a program that the extras of setup.cfg install."""
    program, *arguments = shlex.split(command)
    if program == "python":
        assert arguments[0] == "-m"
        path = ROOT / (arguments[1].replace(".", "/") + ".py")
        assert path.exists() or arguments[1] == "pytest"
    elif program == "pip":
        extras = re.findall(r"\.\[([\w,]+)\]", command)
        assert all(f"\n{extra} =" in SETUP for names in extras for extra in names.split(","))
    else:
        assert re.search(rf"^    {program}[>=]", SETUP, re.M), f"{program} is in no extra of setup.cfg"
        has_extra = shutil.which("pre-commit") and program != "mkdocs"  # users without an extra run the suite too
        assert shutil.which(program) or not has_extra


def test_the_workflow_lints_as_ci_does_and_runs_the_readmes_commands():
    own = script_commands("run")
    shared = [command for command in workflow_commands() if not command.startswith(("pip", "python -m launch"))]
    assert "mkdocs build --strict" in shared
    assert all(any(line.startswith(command) for line in own) for command in shared)
    readme = (ROOT / "README.md").read_text()
    assert all(command in readme for command in WORKFLOW_RUNS)


WORKFLOW_RUNS = [step["run"] for step in WORKFLOW["jobs"]["suite"]["steps"] if "run" in step]


def test_the_workflow_has_every_python_that_setup_cfg_names_and_macos():
    matrix = WORKFLOW["jobs"]["suite"]["strategy"]["matrix"]
    named = re.findall(r"Python :: (3\.\d+)$", SETUP, re.M)
    assert matrix["python-version"] == named and f"python_requires = >={named[0]}" in SETUP
    assert any(more["os"].startswith("macos") and more["python-version"] in named for more in matrix["include"])


def test_mypy_checks_files_that_exist():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["files"] and not [name for name in settings["files"] if not (ROOT / name).exists()]


def test_every_marker_of_a_test_is_run_by_a_script():
    markers = re.findall(r"^    (\w+): takes", SETUP, re.M)
    assert markers == ["slow", "nightly"]
    assert any('-m "slow and not nightly"' in command for command in script_commands("run"))
    assert any("-m nightly" in command for command in script_commands("nightly"))
