"""The line that names the machine of a run."""

import os
import platform
import sys
from types import SimpleNamespace

import pytest

from identity_matters.runs import machine


@pytest.mark.parametrize("numbers, said", [([0], "1 core"), ([0, 3, 5], "3 cores")])
def test_the_line_has_the_processor_the_cores_and_the_gpus(monkeypatch, numbers, said):
    monkeypatch.setattr(machine, "cores", lambda: numbers)
    monkeypatch.setattr(machine, "processor", lambda: "EPYC")
    experimental = SimpleNamespace(get_device_details=lambda gpu: {"device_name": gpu} if gpu == "H200" else {})
    config = SimpleNamespace(list_physical_devices=lambda kind: ["H200", "other"], experimental=experimental)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    assert machine.machine() == f"EPYC, {said}, H200, GPU"


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="Linux says it in files")
def test_memory_and_processor_are_those_of_the_files_of_linux(monkeypatch):
    with open("/proc/meminfo") as file:
        kilobytes = next(int(line.split()[1]) for line in file if line.startswith("MemTotal:"))
    assert machine.physical_memory() == pytest.approx(1024 * kilobytes, rel=1e-3)
    with open("/proc/cpuinfo") as file:
        names = {line.partition(":")[2].strip() for line in file if line.startswith("model name")}
    assert {machine.processor()} == (names or {platform.machine()})
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    assert machine.processor() == platform.machine()
