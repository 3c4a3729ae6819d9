"""The benchmarks run: what they print is judged by people, not by a test."""

import subprocess
import sys

import pytest
from refusals import refused

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


def test_steps_that_no_whole_number_of_calls_makes_are_refused():
    message = "steps must be a multiple of steps_per_execution = 2, got 3"
    assert message in refused(StepBenchmark, steps=3, steps_per_execution=2)
