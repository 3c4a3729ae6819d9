"""The README and the docs say what is there: commands, links, Python, names of files."""

import ast
import importlib
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest

from launch import config_flags

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
MANUALS = sorted([*(ROOT / "launch").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")])


def commands(path: pathlib.Path) -> list[list[str]]:
    """Every `python -m launch.… --flags` or `python -m benchmarks.…` of a page or a module's docstring."""
    text = path.read_text()
    text = ast.get_docstring(ast.parse(text)) or "" if path.suffix == ".py" else text
    text = re.sub(r" *\\\n *", " ", text)
    found = re.findall(r"python -m ((?:launch|benchmarks)\.\w+[^\n`|&;)]*)", text)
    return [shlex.split(command.split("  ")[0]) for command in found]


@pytest.mark.parametrize("path", PAGES + MANUALS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_names_a_module_and_flags_that_exist(path):
    for module, *flags in commands(path):
        options = importlib.import_module(module).cli.keywords
        values = config_flags.define(options["presets"], options.get("has_run_dir", True))
        assert config_flags.parse(values, ["", *flags]) == [], (module, flags)
        if "config" in values:
            values["config"].value = None  # a file of a run that is not there
        config_flags.config_from(values, options["presets"])


def test_the_readme_has_the_commands_that_these_tests_check():
    modules = {module for module, *_ in commands(ROOT / "README.md")}
    assert {"launch.train", "launch.evaluate", "launch.plot", "launch.shortcut_study"} <= modules


def test_the_readme_fits_150_lines():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_docs_have_at_most_18_000_words_and_no_page_over_2_000():
    generated = {"claims.md", "tables.md"}
    words = {path.name: len(path.read_text().split()) for path in (ROOT / "docs").rglob("*.md")}
    written = {name: count for name, count in words.items() if name not in generated}
    assert sum(written.values()) <= 18_000 and max(written.values()) <= 2_000, written


def test_the_index_lists_every_page():
    docs, text = ROOT / "docs", (ROOT / "docs" / "index.md").read_text()
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"index.md"}
    assert not [page for page in pages if f"({page})" not in text]


def test_the_readmes_theorems_are_those_of_the_table_of_claims():
    from theory.claims import CLAIMS

    section = (ROOT / "README.md").read_text().split("## Theorems")[1].split("## As a library")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \| ((?:holds|false|depends).*) \|$", section, re.M)
    table = {(claim.source, claim.statement.replace("|", "\\|"), claim.verdict) for claim in CLAIMS.values()}
    assert len(rows) == 10 and not set(rows) - table


def test_the_readme_counts_the_statements_as_the_table_does():
    from theory.claims import summary

    row = next(line for line in (ROOT / "README.md").read_text().splitlines() if line.startswith("| the printed state"))
    total, *kinds = map(int, re.findall(r"\d+(?= (?:printed|hold|depend|are ))", summary()))
    counted = row.split("|")[5].split(":")[0]
    assert f"| {total} |" in row and list(map(int, re.findall(r"\d+", counted))) == kinds and sum(kinds) == total


def test_a_package_index_gets_no_relative_link():
    from setup import RELATIVE, for_index

    readme = (ROOT / "README.md").read_text()
    assert re.search(RELATIVE, readme)
    without, with_base = for_index(readme, ""), for_index(readme, "https://example.org/raw/main/")
    assert not re.search(RELATIVE, without) and "Figure 1" not in without and "numbers, with spread" in without
    assert not re.search(RELATIVE, with_base) and "](https://example.org/raw/main/docs/figures/paper.png)" in with_base


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_every_link_leads_to_a_file(path):
    links = re.findall(r"\]\((?!http)([^)#]+)", path.read_text())
    missing = [link for link in links if not (path.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_every_link_to_a_heading_leads_to_one(path):
    links = re.findall(r"\]\((?!http)([^)#\s]*)#([^)\s]+)\)", path.read_text())
    missing = [link for link in links if link[1] not in anchors(path.parent / link[0] if link[0] else path)]
    assert not missing


def anchors(page: pathlib.Path) -> set[str]:
    """What a page's headings are called in its links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


def test_the_readmes_python_imports_what_exists():
    imports = [line for snippet in snippets() for line in snippet.splitlines() if re.match("from |import ", line)]
    assert imports
    exec("\n".join(imports), {})


def run_python(code: str, folder: pathlib.Path) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_the_readmes_snippet_without_training_runs_quietly(tmp_path):
    (snippet,) = [snippet for snippet in snippets() if "train(" not in snippet]
    done = run_python(snippet, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "runs" / "memory" / "saved_model.pb").exists()


@pytest.mark.slow
def test_the_readmes_training_snippet_runs_as_written_and_quietly(tmp_path):
    (snippet,) = [snippet for snippet in snippets() if "train(" in snippet]
    printing = snippet.replace("evaluation.evaluate(", "print(evaluation.evaluate(").replace(")  # ", "))  # ")
    done = run_python(printing, tmp_path)
    assert done.returncode == 0, done.stderr
    *_, trained, shipped = map(ast.literal_eval, done.stdout.splitlines()[-2:])
    assert trained["num_examples"] == shipped["num_examples"] == 1000
    assert trained["top1_error"] < 0.5 and shipped["top1_error"] == pytest.approx(0.005, abs=0.0011)
    assert not [line for line in done.stderr.splitlines() if line.strip() and "step" not in line]


def test_the_readmes_layout_names_every_folder():
    text = (ROOT / "README.md").read_text()
    folders = {
        path.parent.relative_to(ROOT) for path in ROOT.glob("*/**/*.py") if path.parts[len(ROOT.parts)][0] != "."
    }
    missing = [str(folder) for folder in folders if f"{folder.name}/" not in text]
    assert not missing


def start_commands() -> list[str]:
    section = (ROOT / "README.md").read_text().split("## Start")[1]
    return re.findall(r"^    (python3 -m venv .*)$", section, re.M)


def test_the_start_section_has_the_two_commands():
    train, test = start_commands()
    assert train.endswith("python -m launch.train --run_dir=runs/first")
    assert test.endswith("pip install -e '.[test]' && python -m pytest")


@pytest.mark.parametrize(
    "has_own_venv", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.nightly)]
)
def test_the_first_command_works_in_a_fresh_clone(tmp_path, has_own_venv):
    """In the venv that it makes, or in the one that runs this test, which .ci/run has just made."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    *make_venv, train = start_commands()[0].split(" && ")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if not has_own_venv:
        make_venv, environment = [f"PATH={os.path.dirname(sys.executable)}:$PATH"], environment | {"PYTHONPATH": clone}

    def run(*commands):
        command = ["bash", "-c", " && ".join(commands)]
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    error = float(re.search(r"^done: .*test error ([\d.]+)%", run(*make_venv, train), re.M)[1])
    assert error <= 3
    evaluate = "python -m launch.evaluate --saved_model=runs/first/saved_model"
    assert f"top1_error: {error:.2f}%" in run(make_venv[0] if not has_own_venv else ". .venv/bin/activate", evaluate)
