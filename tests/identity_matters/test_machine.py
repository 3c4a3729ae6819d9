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


GROUPS = {
    "a container of version 2": ("0::/\n", {"memory.max": 8e9, "memory.current": 5e9, "stat": 1e9}, 4e9),
    "a job around ours": (
        "0::/job/step\n",
        {
            "job/memory.max": 3e9,
            "job/memory.current": 1e9,
            "job/step/memory.max": "max",
            "job/step/memory.current": 1e9,
        },
        2e9,
    ),
    "version 1": (
        "9:name=systemd:/\n4:cpu,memory:/job\n0::/\n",
        {"memory/job/memory.limit_in_bytes": 6e9, "memory/job/memory.usage_in_bytes": 4e9, "memory/job/stat": 0.5e9},
        2.5e9,
    ),
    "no limit": ("0::/\n", {"memory.max": "max", "memory.current": 5e9}, None),
    "no groups": (None, {}, None),
}


@pytest.mark.parametrize("name", GROUPS)
def test_the_limits_of_cgroups_count_with_what_is_in_use(tmp_path, name, monkeypatch):
    of_process, files, expected = GROUPS[name]
    for path, value in files.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        text = value if isinstance(value, str) else f"{value:.0f}"
        if file.name == "stat":  # of files that were read, which the kernel drops
            file, text = file.parent / "memory.stat", f"anon 7\ninactive_file {text}\ntotal_inactive_file {text}\n"
        file.write_text(text.rstrip() + "\n")
    for folder in {(tmp_path / path).parent for path in files} | {tmp_path}:
        (folder / "memory.stat").touch()
    (tmp_path / "self").write_text(of_process or "")
    process = str(tmp_path / ("self" if of_process else "none"))
    found = machine._cgroup_memory(str(tmp_path), process)
    assert min((limit - used for limit, used in found), default=None) == expected
    monkeypatch.setattr(machine, "_cgroup_memory", lambda: found)
    free = machine.available_memory()
    assert 0 < free <= machine.physical_memory() and (expected is None or free <= expected)
