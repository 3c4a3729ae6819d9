"""The machine that a run is computed on: a short description, and its memory."""

import contextlib
import os
import platform
import sys


def machine() -> str:
    """Returns the processor, the cores that this process may use, and the GPUs that TensorFlow or JAX sees."""
    count = len(cores())
    return ", ".join([processor(), f"{count} core{'s' if count != 1 else ''}", *_gpus()])


def processor() -> str:
    """Returns the name of the processor; on macOS, which has no /proc, that of its architecture."""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":")[1].strip()
    return platform.machine()


def cores() -> list[int]:
    """Returns the numbers of the cores that this process may use; on macOS, which does not say, those of all cores."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def physical_memory() -> int:
    """Returns how many bytes of memory the machine has in all."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_memory() -> int:
    """Returns how many bytes of memory this process may still use: the machine's free memory, or its cgroups' limit."""
    free = [physical_memory()]
    with contextlib.suppress(OSError, StopIteration):  # macOS has no /proc
        with open("/proc/meminfo") as file:
            line = next(line for line in file if line.startswith("MemAvailable:"))
        free.append(1024 * int(line.split()[1]))
    return max(min(free + [limit - used for limit, used in _cgroup_memory()]), 0)


def _cgroup_memory(root: str = "/sys/fs/cgroup", of_process: str = "/proc/self/cgroup") -> list[tuple[int, int]]:
    """Returns limit and use of this process's cgroup and of those around it, in bytes, of versions 1 and 2.

    A container may show its own group at the root; files that are read and may be dropped count as free.
    """
    names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")}
    names[2] = "memory.max", "memory.current", "inactive_file"
    found = []
    with contextlib.suppress(OSError), open(of_process) as file:
        for line in file:
            number, controllers, path = line.rstrip("\n").split(":", 2)
            version = 2 if number == "0" else 1 if "memory" in controllers.split(",") else None
            parts = path.strip("/").split("/")
            for depth in range(len(parts) + 1) if version else ():
                folder = os.path.join(root, "memory" * (version == 1), *parts[:depth])
                with contextlib.suppress(OSError, ValueError):  # "max" is no limit
                    limit, used = (int(_content(folder, name)) for name in names[version][:2])
                    counts = dict(line.split() for line in _content(folder, "memory.stat").splitlines())
                    found.append((limit, used - int(counts.get(names[version][2], 0))))
    return found


def _content(folder: str, name: str) -> str:
    with open(os.path.join(folder, name)) as file:
        return file.read()


def _gpus() -> list[str]:
    """Names the GPUs, if a framework that knows them is imported already."""
    if tensorflow := sys.modules.get("tensorflow"):
        devices = tensorflow.config.list_physical_devices("GPU")
        return [tensorflow.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in devices]
    if jax := sys.modules.get("jax"):
        return [device.device_kind for device in jax.devices() if device.platform != "cpu"]
    return []
