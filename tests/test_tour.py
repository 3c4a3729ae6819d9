"""docs/start/tour.ipynb: every cell runs, every section has its picture, and it is committed with its outputs."""

import pathlib
import re

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from identity_matters import near_identity
from identity_matters.data.digits import mnist_sample
from identity_matters.model import standardize
from identity_matters.pretrained import load
from theory import factorization

TOUR = pathlib.Path(__file__).parents[1] / "docs" / "start" / "tour.ipynb"


def sections(notebook) -> dict[str, list]:
    """The outputs under each heading."""
    found, heading = {}, ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and cell.source.startswith("#"):
            heading = cell.source.splitlines()[0].lstrip("# ")
            found[heading] = []
        elif cell.cell_type == "code":
            found[heading] += cell.outputs
    return found


def assert_whole(notebook) -> None:
    """Whether no output is an error or a warning, and every section has its picture."""
    outputs = sections(notebook)
    theorems = ["A theorem", "The landscape near the identity", "A network that memorises"]
    names = ["The network", "A training run", *theorems, "A Hessian", "A spectrum", "Your own model"]
    assert list(outputs)[1:] == [*names, "Further", "Exercises"]
    for heading in (*names, "Exercises"):
        kinds = {output.output_type for output in outputs[heading]}
        assert any("image/png" in output.get("data", {}) for output in outputs[heading]), heading
        assert "error" not in kinds and "stderr" not in {output.get("name") for output in outputs[heading]}, heading


def test_the_tour_is_committed_with_its_pictures_and_small():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    assert_whole(notebook)
    assert TOUR.stat().st_size < 1e6
    assert "/work" not in TOUR.read_text() and "/home" not in TOUR.read_text()


@pytest.mark.slow
def test_the_answers_of_the_exercises_are_right():
    """Each printed answer, against the theory or the package."""
    cells = {cell.source: cell for cell in nbformat.read(TOUR, as_version=4).cells}
    texts = {}
    for number in (1, 2, 3):
        (cell,) = (cell for source, cell in cells.items() if f"answer_{number} = " in source)
        texts[number] = "".join(output.get("text", "") for output in cell.outputs)
    turn = factorization.factorize(-np.eye(2), num_layers=10)
    assert np.linalg.norm(turn, 2, axis=(1, 2)).max() == pytest.approx(2 * np.sin(np.pi / 20))
    assert texts[1].startswith(f"{2 * np.sin(np.pi / 20):.4f};")
    past_one, past_two = map(float, re.findall(r"× ([\d.]+)", texts[2]))
    assert past_one > 5 and past_two == 1  # Theorem 1: for n = 2 it is the same at every depth
    images, labels = mnist_sample().test_images[:300], mnist_sample().test_labels[:300]
    rows = list(near_identity.measure(load("digits", standardized=False), standardize(images), labels))
    errors = [row["error_without"] for row in rows]
    assert texts[3].startswith(f"block {1 + int(np.argmax(errors))}: {max(errors):.0%} of the digits")


def test_the_first_cell_says_how_to_install():
    first, *_ = nbformat.read(TOUR, as_version=4).cells
    assert "pip install -e ." in first.source and "jupyter notebook docs/start/tour.ipynb" in first.source


def test_the_tour_imports_what_exists():
    lines = [line for cell in nbformat.read(TOUR, as_version=4).cells for line in cell.source.splitlines()]
    imports = [line for line in lines if line.startswith(("from ", "import "))]
    assert len(imports) > 10
    exec("\n".join(imports), {})


def test_the_readme_and_the_index_link_the_tour():
    root = TOUR.parents[2]
    assert "docs/start/tour.ipynb" in (root / "README.md").read_text()
    assert "(start/tour.ipynb)" in (root / "docs" / "index.md").read_text()


@pytest.mark.nightly
def test_every_cell_of_the_tour_runs():
    notebook = nbformat.read(TOUR, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = []
    resources = {"metadata": {"path": TOUR.parent}}
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources=resources).execute()
    assert_whole(notebook)
