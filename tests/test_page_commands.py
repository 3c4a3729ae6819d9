"""Every command and every Python snippet of the pages runs, here or in another test, or has a mark on the site.

website/tested.py has the table, by which the site makes its marks. What it lists first runs here, in its order and in
one folder, so that later commands find the runs of earlier ones; CIFAR-10 and MNIST are a few made-up images there.
"""

import contextlib
import io
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import gradient_sets
import image_folders
import keras
import numpy as np
import pytest
from launching import launched
from test_readme import MANUALS, PAGES, ROOT, text_of

from website import tested

NEAR = [f"near_identity_{name}" for name in ("start", "paper", "paper_bn", "paper_muon")]
RUNS = ["paper", "paper_bn", "paper_muon", *NEAR, "spectrum_fast_end", "study_mnist"]
MODULES = [*MANUALS, ROOT / "theory" / "claims.py", ROOT / "identity_matters" / "near_identity.py"]


def blocks(text: str) -> list[str]:
    """The code blocks of a page, fenced and indented."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.M | re.S)
    rest = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return [
        *fenced,
        *(re.sub(r"^ {4,8}", "", block, flags=re.M) for block in re.findall(r"(?:^ {4}.*\n?)+", rest, re.M)),
    ]


def named(source: pathlib.Path) -> set[str]:
    """The commands and last lines of snippets of a page, in blocks and in running text."""
    text = text_of(source)
    prose = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    inline = {" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)}
    return inline | {command.text for block in blocks(text) for command in tested.commands_in(block)}


SNIPPETS = {
    tested.commands_in(block)[0].text: (page, block)
    for page in PAGES
    for block in blocks(page.read_text())
    if tested.is_python(block)
}


NAMED = set().union(*map(named, [*PAGES, *MODULES]))


def whole(entry: str) -> str:
    """The command, or the last line of a snippet, that an entry of the tables names; it stands on a page."""
    [command] = [command for command in NAMED if tested.names(entry, command)]
    return command


def test_the_tables_name_what_stands_on_a_page_and_nothing_twice():
    assert len(set(map(whole, tested.ENTRIES))) == len(tested.ENTRIES)


@pytest.mark.parametrize("place", [*tested.RUN_ELSEWHERE, *tested.RUN_PAGES.values()])
def test_what_another_test_runs_names_a_test_that_is_there(place):
    path, _, name = place.partition("::")
    text = (ROOT / path).read_text()
    assert f"def {name}(" in text or not name
    commands = " ".join(tested.RUN_ELSEWHERE.get(place, ()))
    assert all(module in text for module in re.findall(r"benchmarks\.\w+", commands))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a reader's files: docs/, images, data sets, and two runs to compare."""
    folder = tmp_path_factory.mktemp("reader")
    for name in RUNS:
        shutil.copytree(ROOT / "docs" / "runs" / name, folder / "docs" / "runs" / name)
    for page in ("reference", "appendix", "figures"):
        (folder / "docs" / page).mkdir()
    for name, run in (("second", "paper"), ("third", "paper_muon")):
        shutil.copytree(folder / "docs" / "runs" / run, folder / "runs" / name)
    image_folders.write_classes(folder / "photos", count=30)
    for builder in (gradient_sets.Cifar10, gradient_sets.Mnist):
        builder(data_dir=str(folder / "data")).download_and_prepare()
    x, y = image_folders.noise(40, 28, 28), np.arange(40) % 10
    np.savez(folder / "digits.npz", train_images=x, train_labels=y, test_images=x, test_labels=y)
    return folder


@pytest.fixture(scope="module")
def names(tiny_config):
    """The names that the snippets of a page may use, by page: those of earlier snippets, and a reader's."""
    from identity_matters.training import train

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    return {"train.md": {"train": train, "keras": keras, "config": tiny_config, "model": model}}


def run_snippet(last_line: str, replaced: dict[str, str], names: dict) -> None:
    page, code = SNIPPETS[last_line]
    for old, new in replaced.items():
        assert old in code
        code = code.replace(old, new)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        exec(compile(code, page.name, "exec"), names.setdefault(page.name, {}))


def run_command(command: str) -> tuple[int, str]:
    """Runs launchers in this process and all else in a shell; returns the exit code and stderr.

    A command with $rate runs once for each of the values of the loop in docs/guides/train.md.
    """
    if "$rate" in command:
        return max(run_command(command.replace("$rate", rate)) for rate in ("0.01", "0.03", "0.1"))
    words = shlex.split(command)
    if words[2].startswith("launch."):
        code, _, err = launched(words[2].removeprefix("launch."), *words[3:])
        return code, err
    shell = command.replace("python ", f"{shlex.quote(sys.executable)} ", 1)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", shell], env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", tested.RUN_HERE, ids=lambda command: command[-90:])
def test_a_command_or_snippet_of_a_page_runs(folder, names, monkeypatch, command):
    monkeypatch.chdir(folder)
    change = tested.RUN_HERE[command]
    if isinstance(change, dict):
        run_snippet(whole(command), change, names)
    else:
        code, err = run_command(f"{whole(command)} {change}")
        assert code == 0 and "Traceback" not in err, err[-3000:]
