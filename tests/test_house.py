"""The house rules: dependencies that point one way, no circle of imports, a short walk to the code that does the
work."""

import ast
import functools
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("identity_matters", "shortcut_study", "theory", "launch", "benchmarks", "website", "tests")
# What each package may import of ours, itself aside; launch sits on top, and nothing shipped imports benchmarks.
MAY_IMPORT = {"theory": (), "shortcut_study": ("theory", "identity_matters"), "identity_matters": ()}
MAY_IMPORT["launch"] = tuple(MAY_IMPORT)
FOR_ALL = {"identity_matters"}  # the bare package, which does no more than silence TensorFlow's import
MAX_FILE, MAX_FUNCTION = 500, 80  # lines, where they hold one idea
MAX_BODIES = {"train": 20, "spectrum": 12}  # that a reader passes, counted by tests/walk.py


def files(package: str) -> list[pathlib.Path]:
    return sorted((ROOT / package).rglob("*.py"))


@functools.cache
def nodes(path: pathlib.Path) -> list[ast.AST]:
    """The imports and functions of a file."""
    kinds = ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for package in PACKAGES if package != "tests" for path in files(package)}


def imported(path: pathlib.Path) -> set[str]:
    """Our modules that a file imports, inside functions and for annotations too."""
    found = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found & MODULES.keys()


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_is_too_long(package):
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files(package)}
    assert not {name: length for name, length in lengths.items() if length > MAX_FILE}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_is_too_long(package):
    lengths = {
        f"{path.relative_to(ROOT)}::{node.name}": node.end_lineno - node.lineno + 1
        for path in files(package)
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert not {name: length for name, length in lengths.items() if length > MAX_FUNCTION}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_dependencies_point_one_way(package):
    allowed = (package, *MAY_IMPORT[package])
    wrong = {
        module_name(path): sorted(name for name in imported(path) - FOR_ALL if name.split(".")[0] not in allowed)
        for path in files(package)
    }
    assert not {name: others for name, others in wrong.items() if others}


def cycles(graph: dict[str, set[str]]) -> list[str]:
    """The modules of a circle of imports, and those that import them."""
    left = {name: set(others) - {name} for name, others in graph.items()}
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


def test_no_module_imports_itself_in_a_circle():
    assert not cycles({name: imported(path) for name, path in MODULES.items()})


def test_a_circle_would_be_found():
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == ["a", "b", "c", "d"]
    assert not cycles({"a": {"b"}, "b": {"c"}, "c": set(), "d": {"a", "c"}})


@pytest.mark.slow
def test_the_walks_to_the_work_are_short():
    done = subprocess.run([sys.executable, "-m", "tests.walk", *MAX_BODIES], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    walks = [line.split()[0] for line in done.stdout.splitlines()]
    for walk, most in MAX_BODIES.items():
        assert 5 < walks.count(walk) <= most, done.stdout


def test_every_package_is_typed_and_shipped():
    setup = (ROOT / "setup.cfg").read_text()
    for package in ("identity_matters", "shortcut_study", "theory", "launch"):
        assert (ROOT / package / "py.typed").exists() and f"{package} = py.typed" in setup
    assert "launch = py.typed, templates/*" in setup
    folders = {path.parent for name, path in MODULES.items() if not name.startswith("benchmarks")}
    assert not [folder for folder in folders if not (folder / "__init__.py").exists()]
