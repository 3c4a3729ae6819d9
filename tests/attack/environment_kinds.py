"""What surrounds a command: variables, limits, the umask, descriptors, names of files; TF_CONFIG of any shape."""

import json
import os
import resource
import shutil
import subprocess
import sys

import damage

from attack import command, kind, prepared
from attack.prepared import HOSTILE, pick, with_hostile_value
from identity_matters.distributed.rendezvous import parse_tf_config
from identity_matters.errors import UserError

SURROUNDINGS = {
    "MPLBACKEND": ["nonsense", "", "TkAgg", "module://nowhere"],
    "PYTHONWARNINGS": ["error", "error::DeprecationWarning", "always", "nonsense", "error,ignore"],
    "HOME": ["/nonexistent", "", "/dev/null", "/proc"],
    "TMPDIR": ["/nonexistent", "", "/dev/null"],
    "MPLCONFIGDIR": ["/nonexistent", "/dev/null"],
    "LC_ALL": ["C", "C.UTF-8", "xx_YY", "POSIX", "tr_TR.UTF-8", "é"],
    "LANG": ["", "C", "de_DE.ISO-8859-1"],
    "PYTHONIOENCODING": ["ascii", "latin-1", "utf-16", "utf-8:strict"],
    "PYTHONUTF8": ["0", "1"],
    "COLUMNS": ["0", "-1", "x", "1", "99999"],
    "OMP_NUM_THREADS": ["0", "-1", "x", "1"],
    "OPENBLAS_NUM_THREADS": ["0", "x", "1"],
    "CUDA_VISIBLE_DEVICES": ["x", "-1", "0,0", "99"],
    "TF_CPP_MIN_LOG_LEVEL": ["x", "-1", "0"],
    "TF_ENABLE_ONEDNN_OPTS": ["x", "0"],
    "TZ": ["x", ":/dev/null", "UTC+99"],
    "PYTHONDONTWRITEBYTECODE": ["1"],
    "PYTHONOPTIMIZE": ["2"],
    "PYTHONDEVMODE": ["1"],
    "PYTHONUNBUFFERED": ["1"],
    "KERAS_BACKEND": ["nonsense", ""],
    "KERAS_HOME": ["/nonexistent", "/dev/null"],
    "NO_COLOR": ["1"],
    "http_proxy": ["http://127.0.0.1:1", "x"],
    "SLURM_JOB_ID": ["x"],
    "TERM": ["", "dumb", "nonsense"],
}


def commands(random, folder) -> tuple[str, list[str]]:
    """A launcher that takes a second or two in a process of its own, and its flags; now and then one that trains."""
    if random.random() < 0.1:
        return "train", [f"--run_dir={folder / 'run'}", *prepared.TINY]
    (folder / "run").mkdir()
    for name in ("metrics.csv", "config.json"):
        shutil.copy(prepared.run() / name, folder / "run" / name)
    return pick(
        random,
        [
            ("plot", [f"--run_dir={folder / 'run'}", f"--format={pick(random, ['png', 'pdf', 'svg'])}"]),
            ("cluster", ["--slurm", "--run_dir=/tmp/ℓ", f"--write={folder / 'job'}"]),
            ("cluster", ["--kubernetes", "--image=é", "--volume_claim=c", "--run_dir=/shared/🤖"]),
            ("report", [f"--runs={folder / 'run'}", f"--run_dir={folder / 'report'}"]),
            ("relu_search", ["--help"]),
            ("train", ["--no_such_flag"]),
            ("check_theory", ["--claim=hm.theorem_2.1"]),
        ],
    )


def started(folder, name, flags, environment=(), **options) -> command.Ended:
    """Runs a launcher in a process that imports everything itself."""
    done = subprocess.run(
        [sys.executable, "-m", f"launch.{name}", *flags], cwd=folder, env=os.environ | dict(environment),
        timeout=command.SECONDS, capture_output=True, text=True, errors="replace", **options,
    )  # fmt: skip
    return command.Ended(done.returncode, done.stdout, done.stderr, 0)


@kind("environment: variables")
def variables(random, folder):
    names = random.choice(list(SURROUNDINGS), random.integers(1, 6), replace=False)
    chosen = {str(name): pick(random, SURROUNDINGS[name]) for name in names}
    name, flags = commands(random, folder)
    ended = started(folder, name, flags, chosen)
    may_fail = {"KERAS_BACKEND", "KERAS_HOME"} & chosen.keys() or "--no_such_flag" in flags
    # Python then reads the flags as ASCII, and a name that is none cannot be printed.
    may_fail = may_fail or (chosen.get("PYTHONUTF8") == "0" and not " ".join(flags).isascii())
    may_fail = may_fail or (chosen.get("PYTHONOPTIMIZE") == "2" and "--help" in flags)
    assert ended.code == 0 or may_fail, (chosen, name, ended)
    command.must_end_well(ended, codes=(0, 1))


@kind("environment: limits of address space, files, descriptors; the umask; closed descriptors; without rights")
def limits(random, folder):
    name, flags = commands(random, folder)
    which, limit, umask = None, 0, int(pick(random, [0o000, 0o022, 0o077, 0o777, 0o027]))
    closed = [number for number in (0, 1, 2) if random.random() < 0.2]
    if random.random() < 0.5:
        which, limit = pick(
            random,
            [
                (resource.RLIMIT_AS, int(random.uniform(0.1, 6) * 2**30)),
                (resource.RLIMIT_FSIZE, int(2 ** random.uniform(0, 20))),
                (resource.RLIMIT_NOFILE, int(random.integers(8, 64))),
            ],
        )

    def surround():
        os.umask(umask)
        if which is not None:
            resource.setrlimit(which, (limit, limit))
        for number in closed:
            os.close(number)

    options = {"preexec_fn": surround}
    command_line = [sys.executable, "-m", f"launch.{name}", *flags]
    if random.random() < 0.3:
        command_line = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command_line]
        folder.chmod(int(pick(random, [0o555, 0o000, 0o700])))
    done = subprocess.run(
        command_line, cwd="/", timeout=90, capture_output=True, text=True, errors="replace", **options
    )
    folder.chmod(0o700)
    assert done.returncode in (0, 1), (name, which, limit, oct(umask), closed, done)
    assert "Traceback" not in done.stdout + done.stderr, (name, which, limit, oct(umask), closed, done.stderr[-2000:])


@kind("environment: TF_CONFIG of any shape")
def tf_config(random, folder):
    config = {"cluster": {"worker": ["127.0.0.1:1234", "b:2"]}, "task": {"type": "worker", "index": 0}}
    for _ in range(200):
        hostile = config
        for _ in range(random.integers(1, 4)):
            hostile = with_hostile_value(random, hostile)
        text = json.dumps(hostile)
        if random.random() < 0.3:
            text = damage.flipped(random, text.encode()).decode(errors="replace")
        if random.random() < 0.05:
            text = pick(random, ["[", '{"cluster":', '{"a":[']) * 100_000
        try:
            cluster, task, index = parse_tf_config(text, ("chief", "worker"))
        except UserError as error:
            assert "\n" not in str(error) and len(str(error)) < 1000, error
        else:
            assert all(isinstance(a, str) for addresses in cluster.values() for a in addresses)
            assert 0 <= index < len(cluster[task])


@kind("environment: TF_CONFIG of any shape, then train")
def tf_config_of_train(random, folder):
    value = pick(
        random, [*HOSTILE, "localhost:1", ["a"], ["127.0.0.1:1"], {"worker": "localhost:1"}, [["a:1"]], "[" * 10**5]
    )
    config = pick(
        random,
        [value, {"cluster": value}, {"cluster": {"worker": value}}, {"cluster": {"worker": ["a:1"]}, "task": value}],
    )
    text = value if isinstance(value, str) and random.random() < 0.3 else json.dumps(config)
    environment = {"TF_CONFIG": text.replace("\0", "")[:100_000]}
    strategy = pick(random, ["synchronous", "parameter_server"])
    flags = [f"--run_dir={folder / 'run'}", *prepared.TINY, f"--strategy={strategy}"]
    ended = command.run(folder, "train", *flags, environment=environment, sigterm_after=8)
    command.must_end_well(ended)
