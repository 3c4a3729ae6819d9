"""What measurements of large matrices take of memory and disk: refused beforehand, near the peak, or in a file."""

import os
import subprocess
import sys

import numpy as np
import pytest
from refusals import refused

from shortcut_study.curvature import memory
from shortcut_study.curvature.estimators import hutchinson, xdiag, xtrace
from shortcut_study.curvature.quadrature import deflated_quadrature

VALUES = np.append(np.linspace(-1, 1, 1990), np.linspace(20, 30, 10))


class Disk:
    def __init__(self, free):
        self.free = free


@pytest.fixture
def machine_of(monkeypatch):
    def limit(free, disk):
        monkeypatch.setattr(memory, "available_memory", lambda: free)
        monkeypatch.setattr(memory.shutil, "disk_usage", lambda folder: Disk(disk))

    return limit


@pytest.mark.parametrize("find, name, size", [(xtrace, "num_products", 0.5), (xdiag, "num_vectors", 1.0)])
def test_more_products_than_memory_are_rejected_with_the_number_that_fits(machine_of, find, name, size):
    machine_of(8e9, 0)
    message = refused(find, None, 23_500_000, 400, dtype=np.float32)
    most = int(message.rsplit("at most ", 1)[1])
    assert message.startswith(f"{name}=400 needs ") and "23,500,000 weights, and 8.0 GB are free" in message
    assert size * most * 4 * 23.5e6 < 8e9 and 0.8 * 8e9 < size * (most + 9) * 4 * 23.5e6
    small = 2_000
    vectors = {xtrace: 30 + 4, xdiag: 60 + 8}[find]
    machine_of(8 * small * vectors, 0)
    find(lambda v: VALUES * v, small, 60)
    machine_of(8 * small * vectors - 1, 0)
    assert "choose at most 5" in refused(find, lambda v: VALUES * v, small, 60)
    machine_of(8 * small, 0)
    assert "each product needs 0.0 GB" in refused(hutchinson, lambda v: VALUES * v, small, 60)
    assert "which not even one leaves room for" in refused(find, lambda v: VALUES * v, small, 60)


def test_basis_too_large_for_memory_and_disk_is_an_error_with_the_order_that_fits(machine_of, tmp_path):
    expected, expected_vectors = deflated_quadrature(lambda v: VALUES * v, 2000)
    machine_of(2000 * 8 * 60, 2000 * 8 * 60)
    kinds, seen = set(), memory.basis

    def product(v):
        kinds.add(type(v))
        assert not os.listdir(tmp_path)  # the file has no name
        return VALUES * v

    found, vectors = deflated_quadrature(product, 2000, folder=tmp_path)
    assert np.memmap in kinds and type(vectors) is np.ndarray
    for one, other in zip((*found, vectors), (*expected, expected_vectors)):
        np.testing.assert_array_equal(one, other)
    machine_of(2000 * 8 * 12, 2000 * 8 * 60)  # nor does memory hold all eigenvectors, of which 10 are alone outside
    found, vectors = deflated_quadrature(product, 2000, folder=tmp_path)
    assert len(found.known) >= 10 and type(vectors) is np.memmap
    np.testing.assert_array_equal(vectors, expected_vectors)
    machine_of(2 * 2000 * 8 * 60, 0)
    assert type(seen(60, 2000, np.dtype(float), 12)) is np.ndarray


def test_wrong_weights_targets_and_unknown_initialisations_are_errors(machine_of, tmp_path):
    machine_of(8e9, 5e9)
    message = refused(deflated_quadrature, None, 110_000_000, dtype=np.float32, folder=tmp_path)
    assert "order=60 needs 26.4 GB for vectors of 110,000,000 weights; 8.0 GB of memory are free" in message
    assert f"5.0 GB of disk at {tmp_path}; choose at most 11" in message
    machine_of(5e9, 100e9)  # no room for the products themselves
    assert "each product needs 5.3 GB" in refused(deflated_quadrature, None, 110_000_000, dtype=np.float32)


PEAK = """
import pathlib, re, sys
import numpy as np
from shortcut_study.curvature import estimators, quadrature
def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1])
dim, values = 4_000_000, np.append(np.ones(3_999_990, np.float32), np.linspace(20, 30, 10, dtype=np.float32))
pathlib.Path("/proc/self/clear_refs").write_text("5")  # else the peak is also that of the program that started this one
before = (values * values, peak())[1]
name, count = sys.argv[1], int(sys.argv[2])
if name == "spectrum":
    quadrature.deflated_quadrature(lambda v: values * v, dim, count, 6, 0.0, dtype=np.float32)
else:
    getattr(estimators, name)(lambda v: values * v, dim, count, dtype=np.float32)
print((peak() - before) / (4 * dim))
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="the peak of memory is read as Linux has it")
@pytest.mark.parametrize(
    "name, count, most", [("xtrace", 30, 15 + 4), ("xdiag", 30, 30 + 8), ("spectrum", 25, 25 + 12)]
)
def test_the_peak_is_near_what_is_asked_for_beforehand_and_below_twice_the_products(name, count, most):
    done = subprocess.run([sys.executable, "-c", PEAK, name, str(count)], capture_output=True, text=True, check=True)
    vectors = float(done.stdout)
    assert vectors <= 2.2 * count and 0.7 * most <= vectors <= 1.1 * most  # a product of a network takes some more
