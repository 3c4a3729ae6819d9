"""docs/start/tour.ipynb: every cell runs, every section has its picture, and it is committed with its outputs."""

import pathlib

import nbformat
import pytest
from nbclient import NotebookClient

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
    assert list(outputs)[1:-1] == ["The network", "A training run", *theorems, "A Hessian", "A spectrum"]
    for heading in list(outputs)[1:-1]:
        kinds = {output.output_type for output in outputs[heading]}
        assert "display_data" in kinds, heading
        assert "error" not in kinds and "stderr" not in {output.get("name") for output in outputs[heading]}, heading


def test_the_tour_is_committed_with_its_pictures_and_small():
    notebook = nbformat.read(TOUR, as_version=4)
    nbformat.validate(notebook)
    assert_whole(notebook)
    assert TOUR.stat().st_size < 1e6
    assert "/work" not in TOUR.read_text() and "/home" not in TOUR.read_text()


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
