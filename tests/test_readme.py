"""The README and the docs are correct: commands, links, Python, names of files."""

import ast
import importlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap

import pytest

from launch import config_flags, launcher

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
MANUALS = sorted([*(ROOT / "launch").glob("*.py"), *(ROOT / "benchmarks").glob("*.py")])


def text_of(path: pathlib.Path) -> str:
    """A page, or the docstring of a module."""
    text = path.read_text()
    return ast.get_docstring(ast.parse(text)) or "" if path.suffix == ".py" else text


def commands(path: pathlib.Path) -> list[list[str]]:
    """Every `python -m launch.… --flags` or `python -m benchmarks.…` of a page or a module's docstring.

    Commands of a loop in the shell, with a $variable, are left to tests/test_page_commands.py.
    """
    text = re.sub(r" *\\\n *", " ", text_of(path))
    found = re.findall(r"python -m ((?:launch|benchmarks)\.\w+[^\n`|&;)]*)", text)
    return [shlex.split(command.split("  ")[0]) for command in found if "$" not in command]


@pytest.mark.parametrize("path", PAGES + MANUALS, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_command_names_a_module_and_flags_that_exist(path):
    for module, *flags in commands(path):
        cli = importlib.import_module(module).cli
        options = cli.keywords
        values = config_flags.define(options["presets"], has_run_dir=options.get("run_dir") != "none")
        files = config_flags.parse(values, ["", *flags])
        assert files == [] or options.get("takes_files"), (module, flags)
        if "config" in values:
            values["config"].value = None  # a file of a run that is not there
        launcher._config(values, options["presets"], options.get("unused_fields", lambda config: {}))


def test_the_readme_has_the_commands_that_these_tests_check():
    modules = {module for module, *_ in commands(ROOT / "README.md")}
    assert {"launch.train", "launch.check_theory", "launch.shortcut_study"} <= modules


def test_the_readme_has_at_most_550_words_and_short_cells():
    text = re.sub("<!--.*?-->", "", (ROOT / "README.md").read_text(), flags=re.S)
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|") and "---" not in line]
    words = [len(re.sub(r"\]\([^)]*\)", "]", cell).split()) for row in rows for cell in row]
    assert len(text.split()) <= 550 and len(rows) <= 5 and max(words) <= 12


def test_the_docs_have_at_most_15_500_words_and_no_page_over_1_800():
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")]
    generated = "tables.md", "coverage.md"
    written = [path for path in pages if path.parts[0] != "reference" and path.name not in generated]
    tables = re.compile("<!-- table.*?<!-- end -->", re.S)  # those of website.tables
    words = {str(path): len(tables.sub("", (ROOT / "docs" / path).read_text()).split()) for path in written}
    assert sum(words.values()) <= 15_500 and max(words.values()) <= 1_800, words


def test_the_index_lists_every_page():
    docs, text = ROOT / "docs", (ROOT / "docs" / "index.md").read_text()
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")} - {"index.md"}
    assert not [page for page in pages if f"({page})" not in text and not page.startswith("reference/api/")]


def test_a_package_index_gets_no_relative_link():
    from setup import RELATIVE, for_index

    readme = (ROOT / "README.md").read_text()
    assert re.search(RELATIVE, readme)
    without, with_base = for_index(readme, ""), for_index(readme, "https://example.org/raw/main/")
    assert not re.search(RELATIVE, without) and "*Left" not in without and "all pages" in without
    assert not re.search(RELATIVE, with_base) and "](https://example.org/raw/main/docs/figures/story.png)" in with_base


@pytest.mark.parametrize("path", PAGES, ids=lambda p: p.name)
def test_every_link_leads_to_a_file_and_to_a_heading_of_it(path):
    links = re.findall(r"\]\((?!http)([^)#\s]*)(?:#([^)\s]+))?", path.read_text())
    pages = [(path.parent / target if target else path, heading) for target, heading in links]
    assert not [link for link in pages if not link[0].exists() or link[1] and link[1] not in anchors(link[0])]


def anchors(page: pathlib.Path) -> set[str]:
    """The names of a page's headings in its links."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def snippets() -> list[tuple[str, str]]:
    """Each Python snippet of the README, and what stands below it as printed."""
    found = re.findall(r"```python\n(.*?)```\n((?:\n|    [^\n]*\n)+)", (ROOT / "README.md").read_text(), re.S)
    return [(code, textwrap.dedent(printed).strip()) for code, printed in found]


def assert_as_printed(found: str, printed: str) -> None:
    """The words are the same; numbers may differ by 10 % or by 0.02, as on other machines."""
    number = r"-?\d[\d,]*\.?\d*(?:e-?\d+)?"
    assert re.sub(number, "", found).split() == re.sub(number, "", printed).split()
    values = ([float(value.replace(",", "")) for value in re.findall(number, text)] for text in (found, printed))
    assert next(values) == pytest.approx(next(values), rel=0.1, abs=0.02)


def test_numbers_and_words_of_a_printed_line_are_compared():
    assert_as_printed("trace: 42.9 ± 6 of 1,000", "trace: 42.8 ± 6.1 of 1,000")
    for other in ("trace: 60 ± 6.1 of 1,000", "mean: 42.8 ± 6.1 of 1,000", "trace: 42.8 ± 6.1"):
        with pytest.raises(AssertionError):
            assert_as_printed(other, "trace: 42.8 ± 6.1 of 1,000")


def test_the_readme_has_a_snippet_of_five_lines_that_imports_what_exists():
    lines = [[line for line in code.splitlines() if line] for code, _ in snippets()]
    assert len(lines) == 1 and len(lines[0]) <= 5
    exec("\n".join(line for code in lines for line in code if re.match("from |import ", line)), {})


@pytest.mark.slow
@pytest.mark.parametrize("code, printed", snippets())
def test_a_snippet_of_the_readme_prints_what_stands_below_it(tmp_path, code, printed):
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert_as_printed(done.stdout, printed)
    # TensorFlow logs lines such as "I0000 00:00:… cudart_stub.cc" when it is imported.
    from_tensorflow = re.compile(r"WARNING: All log messages|[IWE]0000 |To enable the following instructions")
    lines = [line for line in done.stderr.splitlines() if line.strip() and not from_tensorflow.match(line)]
    assert not [line for line in lines if "batch" not in line]


def test_the_layout_names_every_folder():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    folders = {
        path.parent.relative_to(ROOT) for path in ROOT.glob("*/**/*.py") if path.parts[len(ROOT.parts)][0] != "."
    }
    missing = [str(folder) for folder in folders if f"{folder.name}/" not in text]
    assert not missing


def start_commands() -> list[str]:
    """The commands of the README that do all the set-up themselves."""
    return re.findall(r"^    (python3 -m venv .*)$", (ROOT / "README.md").read_text(), re.M)


def test_one_command_sets_up_and_trains_and_one_sets_up_and_tests():
    train, test = start_commands()
    assert train.endswith("pip install -e . && python -m launch.train --run_dir=runs/first")
    assert test.endswith("pip install -e '.[test]' && python -m pytest")


@pytest.mark.parametrize(
    "has_own_venv", [pytest.param(False, marks=pytest.mark.slow), pytest.param(True, marks=pytest.mark.nightly)]
)
def test_the_start_commands_work_in_a_fresh_clone(tmp_path, has_own_venv):
    """In the venv that it makes, or in the one that runs this test, which .ci/run has just made."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    train, _ = (command.split(" && ")[-1] for command in start_commands())
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    if has_own_venv:
        make_venv, enter = start_commands()[0].rpartition(" && ")[0], ". .venv/bin/activate"
    else:
        make_venv, enter = "true", f"PATH={os.path.dirname(sys.executable)}:$PATH"
        environment |= {"PYTHONPATH": str(clone)}

    def run(command):
        command = ["bash", "-c", f"{enter} && {command}"]
        done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    subprocess.run(["bash", "-c", make_venv], cwd=clone, env=environment, check=True)
    error = float(re.search(r"^done: .*test error ([\d.]+) %", run(train), re.M)[1])
    assert error <= 3
    evaluate = "python -m launch.evaluate --saved_model=runs/first/saved_model"
    assert f"top1_error: {error:.2f} %" in run(evaluate)
    (study,) = [" ".join(command) for command in commands(ROOT / "README.md") if "launch.shortcut_study" in command]
    assert "2-shortcut networks have constant condition numbers | holds |" in run(f"python -m {study}")
