"""launch.evaluate and launch.export_npz: shipped networks, JSON, no top-5 of five classes, a data set as one file."""

import ast
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
from loaded import load_npz

from identity_matters.runs.tables import read_metrics
from launch import launcher

TINY = "--stem_width=2 --widths=2,4 --blocks_per_stage=1,1 --train_steps=4 --decay_steps=2 --batch_size=8".split()


@pytest.fixture
def five_classes(digits_npz, tmp_path):
    """--npz of the digits 0 … 4."""
    with np.load(digits_npz) as file:
        arrays = dict(file)
    few = {split: arrays[f"{split}_labels"] < 5 for split in ("train", "test")}
    np.savez(tmp_path / "five.npz", **{name: array[few[name.split("_")[0]]] for name, array in arrays.items()})
    return tmp_path / "five.npz"


def test_a_shipped_network_is_evaluated_on_its_data_set(launch):
    code, out, _ = launch("evaluate", "--pretrained=digits", "--max_examples=200")
    assert code == 0 and out.splitlines()[1:] == ["top5_error: 0.00 %", "num_examples: 200"]
    assert float(out.split()[1].rstrip("%")) <= 1


def test_a_file_of_test_images_alone_is_evaluated_and_not_trained_on(launch, digits_npz, tmp_path):
    with np.load(digits_npz) as file:
        np.savez(tmp_path / "test.npz", test_images=file["test_images"], test_labels=file["test_labels"])
    code, printed, _ = launch("evaluate", "--pretrained=digits", f"--npz={digits_npz}")
    assert code == 0 and "num_examples: 200" in printed
    assert launch("evaluate", "--pretrained=digits", f"--npz={tmp_path}/test.npz")[:2] == (0, printed)
    code, _, err = launch("train", f"--npz={tmp_path}/test.npz", f"--run_dir={tmp_path}/run", *TINY)
    assert code == launcher.EXIT_ERROR and "test.npz" in err and "train_images" in err


def test_a_run_directory_stands_for_the_network_and_the_data_of_its_run(launch, tiny_run, tmp_path):
    _, printed, _ = launch("evaluate", f"--saved_model={tiny_run}/saved_model")
    assert launch("evaluate", f"--saved_model={tiny_run}/")[:2] == (0, printed)
    run = shutil.copytree(tiny_run, tmp_path / "run")
    shutil.rmtree(run / "saved_model")
    assert launch("evaluate", f"--saved_model={run}")[:2] == (0, printed)


def test_the_foreign_saved_model_of_a_run_directory_is_run_on_request_alone(launch, tiny_run, tmp_path):
    (tmp_path / "saved_model").mkdir()
    (tmp_path / "saved_model" / "saved_model.pb").write_bytes(b"junk")
    code, _, err = launch("evaluate", f"--saved_model={tmp_path}")
    assert code == 1 and f"{tmp_path}/saved_model" in err
    shutil.copy(tiny_run / "model.keras", tmp_path)  # which is not evaluated in its place
    assert launch("evaluate", f"--saved_model={tmp_path}", "--dataset=mnist_sample")[0] == 1


@pytest.mark.slow
def test_five_classes_have_no_top_5(launch, five_classes, tmp_path):
    code, out, _ = launch("train", f"--npz={five_classes}", f"--run_dir={tmp_path}/run", *TINY)
    assert code == 0 and "done: step 4, test error " in out and "top-5" not in out
    _, out, _ = launch("evaluate", f"--saved_model={tmp_path}/run")
    assert [line.split(":")[0] for line in out.splitlines()] == ["top1_error", "num_examples"]
    _, out, _ = launch("evaluate", f"--saved_model={tmp_path}/run", "--json")
    assert set(json.loads(out)) == {"top1_error", "num_examples"}


def test_a_data_set_becomes_a_file_that_training_takes(launch, tmp_path):
    code, out, _ = launch("export_npz", "--dataset=mnist_sample", f"--npz={tmp_path}/digits.npz")
    assert code == 0 and "4000 training and 1000 test images [28, 28, 1], 10 classes" in out
    data = load_npz(str(tmp_path / "digits.npz"))
    assert (len(data.train_labels), len(data.test_labels), data.source.num_classes) == (4000, 1000, 10)
    code, _, err = launch("export_npz", "--dataset=mnist_sample", f"--npz={tmp_path}/digits.npz")
    assert code == launcher.EXIT_ERROR and "exists" in err


def test_a_file_has_images_of_the_size_that_is_asked_for(launch, tmp_path):
    code, out, _ = launch("export_npz", "--dataset=mnist_sample", "--image_size=14", f"--npz={tmp_path}/small.npz")
    assert code == 0 and "test images [14, 14, 1]" in out
    with np.load(tmp_path / "small.npz") as file:
        assert file["train_images"].shape == (4000, 14, 14, 1) and file["test_images"].shape == (1000, 14, 14, 1)


WITHOUT_TENSORFLOW = """
import os, sys
os.environ["KERAS_BACKEND"] = "jax"
sys.modules["tensorflow"] = sys.modules["tensorflow_datasets"] = None  # as where they are not installed
from launching import launched
print([launched(name, *flags) for name, *flags in {commands}])
"""


@pytest.mark.slow
def test_keras_file_is_evaluated_without_tensorflow_and_the_rest_is_an_error(tiny_run, digits_npz, tmp_path):
    shutil.copytree(tiny_run / "saved_model", tmp_path / "saved_model")
    commands = [
        ["evaluate", f"--saved_model={tiny_run}/model.keras", "--json"],
        ["evaluate", f"--saved_model={tiny_run}/model.keras", f"--npz={digits_npz}"],
        ["evaluate", f"--saved_model={tmp_path}/saved_model/", "--trust_saved_model"],
        ["train", "--preset=cifar10", f"--run_dir={tmp_path}/run"],
    ]
    program = [sys.executable, "-c", WITHOUT_TENSORFLOW.format(commands=commands)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    of_run, of_file, of_saved_model, trained = ast.literal_eval(done.stdout)
    last = read_metrics(tiny_run / "metrics.csv")[-1]
    assert json.loads(of_run[1])["top1_error"] == pytest.approx(last["test_top1_error"], abs=0.021)
    assert "num_examples: 200" in of_file[1]
    for (code, _, err), words in (
        (of_saved_model, "model.keras"),
        (trained, "cifar10"),
    ):
        assert code == launcher.EXIT_ERROR and words in err.splitlines()[-1] and "Traceback" not in err
    assert "python -m launch.export_npz --dataset=cifar10 --npz=cifar10.npz" in trained[2]
    assert not (tmp_path / "run").exists()
