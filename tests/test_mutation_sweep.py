"""The sweep of planted errors: what it plants, and that it reports what no test notices."""

import importlib
import os
import pathlib
import subprocess
import sys

import pytest

from tests import mutants, mutation_sweep

ROOT = pathlib.Path(__file__).parents[1]
SOURCE = '''"""A module."""
import functools
import numpy as np
LIMIT = 1e-9

@functools.cache
def f(num_layers, power=2):
    """Not a mutant: -1."""
    def g(A):
        return np.sqrt(A.T @ A).sum() <= power * num_layers
    if num_layers < 0:
        raise ValueError(f"{num_layers - 1}")
    return g
'''


def test_each_mutant_is_one_small_error_of_the_arithmetic(tmp_path):
    (tmp_path / "module_of_mutants.py").write_text(SOURCE)
    found = {mutant.text.split(": ")[-1] for mutant in mutants.mutants(tmp_path / "module_of_mutants.py", "m")}
    assert found == {
        "1e-09 → 0.001", "np.sqrt(A.T @ A).sum() <= power * num_layers → np.sqrt(A.T @ A).sum() < power * num_layers",
        "np.sqrt(A.T @ A).sum() → np.sqrt(A.T @ A).mean()", "np.sqrt(A.T @ A) → A.T @ A", "A.T @ A → A @ A.T",
        "A.T → A", "power * num_layers → power / num_layers", "num_layers → num_layers + 1",
        "num_layers < 0 → num_layers <= 0", "0 → 1",
    }  # fmt: skip


def test_a_planted_mutant_is_seen_by_all_who_imported_the_function_or_the_constant(tmp_path, monkeypatch):
    (tmp_path / "module_of_mutants.py").write_text(SOURCE)
    (tmp_path / "user_of_mutants.py").write_text("from module_of_mutants import LIMIT, f\n")
    monkeypatch.syspath_prepend(tmp_path)
    user = importlib.import_module("user_of_mutants")
    for mutant in mutants.mutants(tmp_path / "module_of_mutants.py", "module_of_mutants"):
        if mutant.text.endswith(("1e-09 → 0.001", "num_layers < 0 → num_layers <= 0")):
            mutant.plant()
    assert user.LIMIT == 1e-3
    with pytest.raises(ValueError, match="-1"):
        user.f(0)
    for name in ("module_of_mutants", "user_of_mutants"):
        sys.modules.pop(name)


def test_a_mutant_is_written_into_its_line_and_every_other_stays(tmp_path):
    (tmp_path / "module_of_mutants.py").write_text(SOURCE)
    for mutant in mutants.mutants(tmp_path / "module_of_mutants.py", "module_of_mutants"):
        written = mutant.written(SOURCE.encode()).decode()
        (line,) = [new for old, new in zip(SOURCE.splitlines(), written.splitlines()) if new != old]
        assert mutant.text.split(" → ")[1] in line and len(written.splitlines()) == len(SOURCE.splitlines())
        compile(written, "written", "exec")


@pytest.mark.slow
def test_what_is_written_into_a_copy_is_noticed_by_the_tests_of_those_that_import_it(tmp_path):
    found = mutants.mutants(ROOT / "theory/descent/update_rules.py", "theory.descent.update_rules")
    noticed = next(mutant for mutant in found if mutant.text.endswith("0.9 → 1.8"))
    disk = mutation_sweep.Disk(tmp_path / "project")
    outcome, test = disk.outcome(noticed, 300)
    assert outcome == "killed" and disk.is_sound == {test: True}
    assert disk.outcome(noticed, 0.1) == ("unfinished", "")
    copied = tmp_path / "project/theory/descent/update_rules.py"
    assert copied.read_bytes() == noticed.file.read_bytes()  # right again


@pytest.mark.slow
def test_every_equivalent_is_still_a_mutant_of_the_code():
    keys = {mutant.key for mutant in mutants.of_modules(ROOT, mutation_sweep.PACKAGES)}
    keys |= {key.split(": ")[0] for key in keys}
    lines = mutation_sweep.EQUIVALENTS.read_text().splitlines()
    assert not [line for line in lines if not line.startswith("#") and line not in keys]


def test_a_setting_that_is_not_passed_on_is_an_error_of_a_launcher(tmp_path):
    source = "def main(config):\n    return run(('order', 'seed'), trials=config.trials)\n"
    (tmp_path / "a.py").write_text(source)
    errors = {
        m: {f.text.split(": ")[-1] for f in mutants.mutants(tmp_path / "a.py", m)} for m in ("launch.a", "theory.a")
    }
    call, default = "run(('order', 'seed'), trials=config.trials)", "config.trials → type(config)().trials"
    assert errors["theory.a"] == {default, f"{call} → 2 * {call}"}
    lost = {"('order', 'seed') → ('order',)", "('order', 'seed') → ('seed',)", f"{call} → run(('order', 'seed'))"}
    assert errors["launch.a"] == errors["theory.a"] | lost


def test_a_sampled_error_meets_the_tests_that_import_its_module_those_of_its_own_file_first():
    files = {place: ROOT / "tests" / place for place in ("theory/test_descent_map.py", "theory/test_saddle_escape.py")}
    found = {place: mutation_sweep.distance(file, "theory.descent.target_map") for place, file in files.items()}
    assert found == {"theory/test_descent_map.py": 1, "theory/test_saddle_escape.py": None}
    assert mutation_sweep.distance(ROOT / "tests/launch/test_evaluate.py", "launch.evaluate") == 0
    assert mutation_sweep.distance(ROOT / "tests/launch/test_images.py", "launch.train") == 1
    assert mutation_sweep.distance(files["theory/test_descent_map.py"], "theory.products") == 2


@pytest.mark.slow
@pytest.mark.parametrize("tests, missed", [("", 0), ("::test_the_polar_factor_is_orthogonal_whatever_the_scale", 5)])
def test_a_sweep_reports_what_no_test_notices(tmp_path, tests, missed):
    """All tests of the update rules notice all errors in them; the polar factor's alone say nothing of momentum."""
    report, command = tmp_path / "report.txt", [sys.executable, "-m", "tests.mutation_sweep"]
    command += ["theory/descent/update_rules.py", f"--report={report}", "--tests"]
    name = f"{tests}_and_zero_where_the_matrix_is" if tests else ""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command.append(f"tests/theory/test_saddle_escape.py{name}")
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    outcomes = [line.split("\t")[0] for line in report.read_text().splitlines()]
    unnoticed = sum(outcome in ("survived", "not covered") for outcome in outcomes)
    assert unnoticed >= missed and (unnoticed > 0) is bool(tests) and len(outcomes) > 10
    assert f"{1 - unnoticed / len(outcomes):.1%}" in ended.stdout
