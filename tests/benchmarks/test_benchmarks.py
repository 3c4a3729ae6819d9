"""The benchmarks run: what they print is judged by people, not by a test."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from refusals import refused

from benchmarks import coverage
from benchmarks.train_step import StepBenchmark


@pytest.mark.nightly
@pytest.mark.parametrize(
    "command, row",
    [
        ("benchmarks.train_step --preset=mnist --repeats=1 --steps=1 --batch_size=8", "ours / matrix product"),
        (
            "KERAS_BACKEND=jax benchmarks.train_step --preset=mnist --repeats=1 --steps=4 --steps_per_execution=2 "
            "--batch_size=8 --product_size=512",
            "ours / matrix product, both in bfloat16",
        ),
        ("benchmarks.input_stream --repeats=1 --seconds=0.1", "tf.data, image by image"),
        ("benchmarks.hessian --depths=4,8 --repeats=1", "8"),
        ("benchmarks.lanczos --repeats=1 --examples=16 --batch_size=8 --order=3", "trace, ours"),
        ("benchmarks.coverage --preset=quick --repeats=1", "0.01"),
        ("benchmarks.scaling --preset=mnist --repeats=1 --steps=2", "two workers / one process"),
    ],
)
def test_a_benchmark_prints_its_table(command, row):
    words = command.split()
    settings = [word for word in words if word.startswith("KERAS_BACKEND=")]
    command = ["env", *settings, sys.executable, "-m", *words[len(settings) :]]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert any(line.startswith(f"| {row} ") for line in done.stdout.splitlines()), done.stdout


def test_steps_that_are_no_multiple_of_a_call_are_rejected():
    message = "steps must be a multiple of steps_per_execution = 2, got 3"
    assert message in refused(StepBenchmark, steps=3, steps_per_execution=2)


def test_the_coverage_is_the_share_of_numbers_within_their_errors(capsys, monkeypatch):
    exact, errors = np.array([1.0, -4.0, 0.0, 2.0]), np.full(4, 0.5)
    assert coverage.held(exact + [0.5, 0.51, -0.4, 3.0], errors, exact) == (0.5, 0.125)
    values = coverage.spectra(200)["power law, 1/i"]
    product = coverage.turned(values)
    dense = np.array([product(unit) for unit in np.eye(200)])
    np.testing.assert_allclose(np.linalg.eigvalsh(dense), np.sort(values), atol=1e-12)
    assert np.abs(dense - np.diag(np.diag(dense))).max() > 0.01  # its eigenvectors are dense
    only = {"power law, 1/i": values}
    monkeypatch.setattr(coverage, "spectra", lambda dim: only)
    coverage.main(dataclasses.replace(coverage.QUICK, repeats=30))
    head, _, row = capsys.readouterr().out.splitlines()[-3:]
    cells = dict(zip(head.split("|")[1:-1], row.split("|")[1:-1]))
    assert cells["spectrum"] == "power law, 1/i" and cells["products"] == "20"
    shares = {name: float(cell.split()[0]) for name, cell in cells.items() if cell.endswith(")")}
    assert len(shares) == 9
    assert all(share >= 80 for name, share in shares.items() if name != "density")  # 95 in 30 is 25 or more
    monkeypatch.setattr(coverage, "spectra", lambda dim: {"power law, 1/i": np.roll(values, 1) + 1})
    monkeypatch.setattr(coverage, "turned", lambda _: product)  # negative control: another matrix
    coverage.main(dataclasses.replace(coverage.QUICK, repeats=3))
    assert capsys.readouterr().out.splitlines()[-1].split("|")[4].startswith("0.0")
