"""Training on a folder of images from the command line, and what docs/guides/train.md says of it."""

import contextlib
import io
import os
import pathlib
import re
import shlex
import shutil

import processes
import pytest
from begun import read_config_json
from image_folders import DIGITS, write, write_digits

from identity_matters.data.digits import mnist_sample
from identity_matters.runs.tables import read_metrics
from launch import launcher

GUIDE = (pathlib.Path(__file__).parents[2] / "docs" / "guides" / "train.md").read_text()
SMALL = "--stem_width=4 --widths=4,8 --blocks_per_stage=1,1 --train_steps=4 --decay_steps=3 --eval_every=4".split()


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """120 digits to train on, 50 to test on. Read only."""
    return write_digits(tmp_path_factory.mktemp("images") / "digits", 120, 50)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """The current folder, in which photos/ has digits of four classes, as in the guide."""
    data = mnist_sample()
    for i, label in enumerate(data.train_labels[:200]):
        if label < 4:
            write(tmp_path / "photos" / DIGITS[label] / f"{i:05}.png", data.train_images[i, ..., 0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_a_run_on_a_folder_is_exported_and_evaluated(launch, digits, tmp_path):
    code, out, err = launch("train", f"--images={digits}", f"--run_dir={tmp_path}/run", *SMALL)
    assert code == 0, err
    code, found, err = launch("evaluate", f"--saved_model={tmp_path}/run")
    assert code == 0 and "num_examples: 50" in found and f"test error {found.split()[1]}" in out
    code, out, _ = launch("export_npz", f"--images={digits}", "--image_size=14", f"--npz={tmp_path}/digits.npz")
    assert code == 0 and "120 training and 50 test images [14, 14, 1], 10 classes" in out
    code, found, err = launch("evaluate", "--pretrained=digits", f"--images={digits}", "--json")
    assert code == 0 and '"num_examples": 50' in found


@pytest.mark.nightly
def test_two_workers_train_on_a_folder_as_one_does(launch, digits, tmp_path):
    flags, pair = [f"--images={digits}", "--batch_size=16", *SMALL], tmp_path / "pair"
    assert processes.start(pair, "cluster", "--num_workers=2", *flags).wait() == 0, processes.log_of(pair)
    assert launch("train", f"--run_dir={tmp_path}/one", *flags)[0] == 0
    (found,), (expected,) = (read_metrics(path / "metrics.csv") for path in (pair, tmp_path / "one"))
    for name in ("train_cross_entropy", "test_cross_entropy", "test_top1_error"):
        assert found[name] == pytest.approx(expected[name], rel=1e-5)
    records = [read_config_json(path) for path in (pair, tmp_path / "one")]
    assert records[0]["class_names"] == records[1]["class_names"] == sorted(DIGITS)


# How a folder is damaged, and what the line must name.
DAMAGES = {
    "a broken file": (lambda folder: (folder / "train" / "one" / "x.png").write_bytes(b"\x89PNG"), "train/one/x.png"),
    "an empty class": (lambda folder: (folder / "train" / "ten").mkdir(), "train/ten"),
    "no folder": (shutil.rmtree, "data"),
    "a link": (lambda folder: (folder / "test" / "one" / "x.png").symlink_to("/etc/hostname"), "test/one/x.png"),
    "no test": (lambda folder: shutil.rmtree(folder / "test"), "test/"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_folder_that_cannot_be_used_is_a_short_error_and_leaves_nothing(launch, digits, tmp_path, damage):
    folder = shutil.copytree(digits, tmp_path / "data")
    change, words = DAMAGES[damage]
    change(folder)
    code, _, err = launch("train", f"--images={folder}", f"--run_dir={tmp_path}/run", *SMALL)
    assert code == launcher.EXIT_ERROR and err.count("\n") == 1 and words in err
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_the_guides_commands_train_on_a_folder_from_shipped_weights(launch, photos):
    block = re.search(r"^    (python -m launch\.train --preset=cifar10_fast.*?)\n\n", GUIDE, re.M | re.S)[1]
    commands = re.sub(r" \\\n *", " ", block).splitlines()
    again = re.search(r"^    (python -m launch\.train --config=.*)$", GUIDE, re.M)[1]
    short, printed = ("--train_steps=2", "--eval_every=2", "--checkpoint_every=2"), ""
    for command in (*commands, again):
        words = shlex.split(command)
        code, out, err = launch(words[2].removeprefix("launch."), *words[3:], *(short if "train" in words[2] else ()))
        assert code == 0, err
        printed += out
    assert re.search(r"^photos/one/\d+\.png  (one|two|three|zero)  \d+\.\d %$", printed, re.M)
    assert "num_examples" in printed and read_config_json("runs/tuned")["class_names"] == [
        "one",
        "three",
        "two",
        "zero",
    ]


@pytest.mark.slow
def test_the_guides_lines_of_python_fine_tune_on_a_folder(photos):
    lines = re.search(r"## Fine-tune.*?```python\n(.*?)```", GUIDE, re.S)[1]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        exec(lines.replace("train_steps=40", "train_steps=2, batch_size=16"), {})
    assert 0 <= float(out.getvalue().split()[-1]) <= 1 and os.path.exists("runs/python/model.keras")
    assert "13 of the network's 14 variables begin with the weights of cifar10_fast" in err.getvalue()


@pytest.mark.parametrize(
    "command", ["train", "cluster", "ablations", pytest.param("near_identity", marks=pytest.mark.slow),
                pytest.param("hessian_spectrum", marks=pytest.mark.slow)]
)  # fmt: skip
def test_no_command_writes_among_the_images(launch, photos, command):
    """Its files would form a class from then on."""
    data, run_dir = ["--images=photos", "--test_share=0.2", "--image_size=14", "--preset=mnist", *SMALL], "photos/run"
    if command in ("near_identity", "hessian_spectrum"):
        assert launch("train", "--run_dir=trained", *data)[0] == 0
        data = ["--saved_run=trained"]
    if command == "ablations":
        data = ["--images=photos", "--test_share=0.2", "--image_size=14", "--validation_examples=9", "--seeds=1"]
    code, _, err = launch(command, f"--run_dir={run_dir}", *data)
    assert code == 1 and "error: photos/run is in the folder of images" in err
    assert "Traceback" not in err and not os.path.exists(run_dir)
