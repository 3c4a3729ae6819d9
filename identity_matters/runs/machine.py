"""The machine that a run is computed on: in one line, and its memory."""

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


def _gpus() -> list[str]:
    """Names the GPUs, where a framework that knows them is imported already."""
    if tensorflow := sys.modules.get("tensorflow"):
        devices = tensorflow.config.list_physical_devices("GPU")
        return [tensorflow.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in devices]
    if jax := sys.modules.get("jax"):
        return [device.device_kind for device in jax.devices() if device.platform != "cpu"]
    return []
