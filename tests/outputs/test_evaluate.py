"""launch.evaluate and evaluation.evaluate: errors counted one by one, on the test images and no others."""

import json

import keras
import numpy as np
import pytest
from outputs.conftest import TRAINED_ON
from outputs.references import error

from identity_matters import pretrained
from identity_matters.data.digits import mnist_sample


def logits_of(run_dir, images):
    return keras.saving.load_model(run_dir / "model.keras")(images.astype(np.float32)).numpy()


def printed(text) -> dict[str, str]:
    return dict(line.split(": ") for line in text.splitlines())


def lines(logits, labels) -> dict[str, str]:
    errors = {f"top{k}_error": f"{100 * error(logits, labels, k):.2f} %" for k in (1, 5)}
    return errors | {"num_examples": str(len(labels))}


@pytest.mark.parametrize("fixture", ["momentum_run", "held_out_run"])
def test_a_run_is_evaluated_on_all_its_test_images(launch, small_digits, request, fixture):
    run_dir = request.getfixturevalue(fixture)
    train_images, train_labels, images, labels = small_digits
    expected = lines(logits_of(run_dir, images), labels)
    code, out, _ = launch("evaluate", f"--saved_model={run_dir}/saved_model")
    assert code == 0 and printed(out) == expected and list(printed(out)) == list(expected)
    for part in (slice(TRAINED_ON), slice(130), slice(-70, None), slice(None)):  # it can tell the splits apart
        other = lines(logits_of(run_dir, train_images[part]), train_labels[part])
        assert other["top1_error"] != expected["top1_error"] or other["top5_error"] != expected["top5_error"]


def test_json_has_fractions_over_the_first_examples_in_unequal_batches(launch, momentum_run, small_digits):
    images, labels = small_digits[2][:37], small_digits[3][:37]
    flags = ("--max_examples=37", "--batch_size=10", "--json")
    code, out, _ = launch("evaluate", f"--saved_model={momentum_run}", *flags)
    logits = logits_of(momentum_run, images)
    expected = {"top1_error": error(logits, labels), "top5_error": error(logits, labels, 5), "num_examples": 37}
    assert code == 0 and json.loads(out) == pytest.approx(expected) and expected["top5_error"] > 0


def test_other_data_are_those_of_the_files_test_split(launch, momentum_run, small_digits, tmp_path):
    images, labels = small_digits[0][100:151], small_digits[1][100:151]
    arrays = {"test_images": images, "test_labels": labels, "train_images": images[::-1], "train_labels": labels}
    np.savez(tmp_path / "other.npz", **arrays)
    code, out, _ = launch("evaluate", f"--saved_model={momentum_run}", f"--npz={tmp_path}/other.npz")
    assert code == 0 and printed(out) == lines(logits_of(momentum_run, images), labels)


def test_the_shipped_digits_are_evaluated_on_the_thousand_test_digits(launch):
    data = mnist_sample()
    logits = pretrained.load("digits").predict(data.test_images.astype(np.float32), verbose=0)
    code, out, _ = launch("evaluate", "--pretrained=digits")
    assert code == 0 and printed(out) == lines(logits, data.test_labels)
    assert lines(logits, data.test_labels) != lines(logits[:999], data.test_labels[1:])
