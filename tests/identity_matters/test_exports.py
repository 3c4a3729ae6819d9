"""The exports that docs/guides/run_directory.md shows, run as written: all of them answer as the network does."""

import dataclasses
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

from identity_matters import evaluation, training
from identity_matters.data.digits import mnist_sample
from shortcut_study.curvature import with_dtype

pytestmark = pytest.mark.slow

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "guides" / "run_directory.md"


@pytest.fixture
def run_snippet(tiny_run, tmp_path, monkeypatch):
    """Runs the snippet that holds a word, with a finished run at runs/first."""

    def run(word):
        (snippet,) = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if word in code]
        (tmp_path / "runs").mkdir()
        (tmp_path / "runs" / "first").symlink_to(tiny_run)
        monkeypatch.chdir(tmp_path)
        exec(compile(snippet, PAGE.name, "exec"), found := {})
        return found

    return run


@pytest.fixture(scope="module")
def digits():
    return mnist_sample().test_images[:3].astype(np.float32)


@pytest.fixture(scope="module")
def logits(tiny_run, digits):
    serve = tf.saved_model.load(str(tiny_run / "saved_model")).signatures["serving_default"]
    return serve(images=tf.constant(digits))["logits"].numpy()


def test_the_saved_model_answers_with_probabilities(run_snippet, digits, logits):
    serve = run_snippet("saved_model.load")["serve"]
    answer = serve(images=tf.constant(digits))["probabilities"]
    np.testing.assert_allclose(answer, tf.nn.softmax(logits), atol=1e-6)


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_tflite_answers_as_the_saved_model(run_snippet, digits, logits):
    run_snippet("TFLiteConverter")
    interpreter = tf.lite.Interpreter("digits.tflite")
    answer = interpreter.get_signature_runner("serving_default")(images=digits)
    np.testing.assert_allclose(answer["logits"], logits, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*tf.lite.Interpreter is deprecated")
def test_after_mixed_precision_tflite_takes_the_float32_copy(tiny_config, digits, tmp_path):
    model = dataclasses.replace(tiny_config.model, mixed_precision=True)
    training.train(dataclasses.replace(tiny_config, model=model), tmp_path / "run")
    network = with_dtype(keras.saving.load_model(tmp_path / "run" / "model.keras"), "float32")
    evaluation.export(network, str(tmp_path / "saved_model"))
    converted = tf.lite.TFLiteConverter.from_saved_model(str(tmp_path / "saved_model")).convert()
    answer = tf.lite.Interpreter(model_content=converted).get_signature_runner("serving_default")(images=digits)
    np.testing.assert_allclose(answer["logits"], network(digits), atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*np.object")
def test_onnx_answers_as_the_saved_model(run_snippet, digits, logits):
    onnxruntime = pytest.importorskip("onnxruntime")
    run_snippet("onnx")
    session = onnxruntime.InferenceSession("digits.onnx", providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, {"images": digits})
    np.testing.assert_allclose(answer, logits, atol=1e-4)
