"""python -m tests.attack --minutes=10 --seed=0 [--kinds=npz,slurm]: tries all kinds in turn, prints tried and failed.

Each try has a seed of its own, which a failure prints: --only=KIND:NUMBER makes that try again, in a folder that stays.
"""

import argparse
import os
import pathlib
import shutil
import sys
import tempfile
import time
import traceback

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import numpy as np  # noqa: E402

from attack import collect  # noqa: E402


def attempt(kinds, seed, name, number, keep=False) -> str:
    """Makes one try; returns what failed, or nothing."""
    folder = pathlib.Path(tempfile.mkdtemp(prefix="attack"))
    try:
        kinds[name](np.random.default_rng([seed, number, *name.encode()]), folder)
    except Exception:  # a finding, whatever it is
        return f"--seed={seed} --only={name!r}:{number} in {folder}\n{traceback.format_exc()}"
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--tries", type=int, help="so many of each kind, in place of minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="parts of names, separated by commas; all without it")
    parser.add_argument("--only", default="", help="NAME:NUMBER of one try")
    flags = parser.parse_args()
    kinds = collect()
    if flags.only:
        name, _, number = flags.only.rpartition(":")
        finding = attempt(kinds, flags.seed, name, int(number), keep=True)
        print(finding or "nothing found")
        return bool(finding)
    names = [name for name in kinds if any(part in name for part in flags.kinds.split(","))]
    tried, failed = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    started = time.monotonic()
    end = started + 60 * flags.minutes
    while time.monotonic() < end if flags.tries is None else max(tried.values()) < flags.tries:
        for name in names:
            finding = attempt(kinds, flags.seed, name, tried[name])
            tried[name] += 1
            failed[name] += bool(finding)
            if finding:
                print(finding, flush=True)
    print("| kind | tried | failed |\n|---|---:|---:|")
    for name in names:
        print(f"| {name} | {tried[name]} | {failed[name]} |")
    minutes = (time.monotonic() - started) / 60
    print(f"{sum(tried.values())} tries, {sum(failed.values())} findings (seed {flags.seed}, {minutes:.1f} minutes)")
    return bool(sum(failed.values()))


if __name__ == "__main__":
    sys.exit(main())
