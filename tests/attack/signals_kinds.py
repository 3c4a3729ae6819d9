"""Signals at any moment of a command, which the same command then continues."""

import signal
from collections import Counter

import numpy as np

from attack import command, kind, prepared
from attack.prepared import pick
from identity_matters.runs import checkpoint
from identity_matters.runs.tables import read_metrics

CODES = {signal.SIGTERM: (0, 75), signal.SIGINT: (0, 130), signal.SIGKILL: (0, -9)}
STEPS = ["--train_steps=12", "--eval_every=6", "--checkpoint_every=3"]
FLAGS = [*prepared.NETWORK, *STEPS, "--train_examples=40", "--eval_examples=20"]
_undisturbed = {}


def undisturbed() -> dict:
    """The last checkpoint of an undisturbed run, its table, and how long it took."""
    if not _undisturbed:
        place = prepared.folder() / "undisturbed"
        ended = command.run(prepared.folder(), "train", f"--run_dir={place}", *FLAGS)
        assert ended.code == 0, ended.err
        _undisturbed.update(arrays=checkpoint.load_newest(str(place / "checkpoints"))[1], seconds=ended.seconds)
        _undisturbed["rows"] = read_metrics(str(place / "metrics.csv"))
    return _undisturbed


def must_be_undisturbed(run_dir) -> None:
    """Fails unless the weights, to the bit, and the table, to a digit of the training means, are as without signals."""
    _, arrays = checkpoint.load_newest(str(run_dir / "checkpoints"))
    expected = undisturbed()["arrays"]
    assert arrays.keys() == expected.keys()
    for name in expected:
        if name.startswith("variable/"):
            np.testing.assert_array_equal(arrays[name], expected[name], name)
    rows = read_metrics(str(run_dir / "metrics.csv"))
    for row, known in zip(rows, undisturbed()["rows"], strict=True):
        for column in known.keys() - {"images_per_second"}:
            np.testing.assert_allclose(row[column], known[column], rtol=1e-6, err_msg=column)
    left = [path.name for path in run_dir.rglob(".tmp*")]
    assert not left, left


@kind("signals: one or two at any moment of train, then the same command")
def train(random, folder):
    flags = [f"--run_dir={folder / 'run'}", *FLAGS]
    for _ in range(random.integers(1, 3)):
        number, moment = pick(random, list(CODES)), random.uniform(0, 1.1) * undisturbed()["seconds"]
        ended = command.run(folder, "train", *flags, sigterm_after=moment, number=number)
        assert ended.code in CODES[number] and "Traceback" not in ended.out + ended.err, (ended, moment)
        if number == signal.SIGTERM and not (folder / "run" / "config.json").exists():
            assert ended.code == 75, ended
    ended = command.run(folder, "train", *flags)
    assert ended.code == 0, ended
    must_be_undisturbed(folder / "run")


@kind("signals: export_npz, cluster --write, plot leave a whole file or nothing")
def writers(random, folder):
    place = folder / "place"
    place.mkdir()
    name, *flags = pick(
        random,
        [
            ("export_npz", "--dataset=mnist_sample", f"--npz={place}/a.npz"),
            ("cluster", "--slurm", "--run_dir=r", f"--write={place}/job"),
            ("plot", f"--run_dir={place}", f"--beside={prepared.run()}"),
        ],
    )
    if name == "plot":
        (place / "metrics.csv").write_text((prepared.run() / "metrics.csv").read_text())
    number, moment = pick(random, list(CODES)), random.uniform(0, 1.2)
    ended = command.run(folder, name, *flags, sigterm_after=moment, number=number)
    assert ended.code in CODES[number] and "Traceback" not in ended.out + ended.err, ended
    names = Counter(path.name[:4] for path in place.iterdir())
    if number != signal.SIGKILL:  # which nobody can answer
        assert not names[".tmp"], list(place.iterdir())
    for path in place.glob("a.npz"):
        with np.load(path) as arrays:
            assert len(dict(arrays)["train_labels"]) == 4000
