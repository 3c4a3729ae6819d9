"""Each flag of a launcher changes what it passes on to those that do the work, or what it prints.

The work is done by mocks. Launchers that give their whole config away (train, ablations, shortcut_study, cluster,
report) have no flag to lose here; tests of those who read it see each field.
"""

import dataclasses
import importlib
import re
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest
from begun import begin
from launching import config_of

from identity_matters import networks
from identity_matters.config import DataConfig, ModelConfig, TrainConfig
from identity_matters.errors import UserError
from launch import config_flags, descent_map, trained_run

EXAMPLES = {
    "launch.trained_run.read_config": "the config",
    "launch.trained_run.load_model": ("a network", ""),
    "launch.trained_run.first_examples": (np.zeros(1), np.zeros(1), "data"),
    "launch.trained_run.weights_digest": "a digest",
    "launch.trained_run.require_same_weights": None,
}
SPECTRUM = EXAMPLES | {
    "shortcut_study.curvature.Hessian": ...,
    "shortcut_study.figures.spectrum.quadrature_rows": [],
    "shortcut_study.curvature.checks.without_averages": [],
    "launch.hessian_spectrum.num_weights": 12,
    "launch.hessian_spectrum._texts": ["text"],
}
BLOCKS = EXAMPLES | {
    "identity_matters.near_identity.Measurement": ...,
    "launch.near_identity.table": "table",
    "launch.near_identity.removable": "removable",
}
ERRORS = {"top1_error": 0.25, "top5_error": 0.5}
EVALUATION = {
    "identity_matters.evaluation.load_classifier": SimpleNamespace(num_classes=10),
    "identity_matters.evaluation.evaluate": ERRORS,
    "identity_matters.pretrained.load": "a network",
    "builtins.print": None,
}
CLAIMS = {
    "theory.claims.check": ...,
    "launch.check_theory._checks": [SimpleNamespace(claim="hm.theorem_2.1", holds=True)],
    "launch.check_theory._lines": "lines",
    "launch.check_theory._summary": "summary",
    "theory.claims.markdown": "page",
}
STORY = {
    "launch.story._rows": [{"experiment": "initial_spectrum"}],
    "launch.story.story_figure": "figure",
    "identity_matters.runs.figures.save_figures": lambda draw, *_: [str(draw())],
}
DATA = {"data_dir": "/d", "download": True, "images": "/i", "npz": "/n.npz", "test_share": 0.3, "test_split": "s"}
# Of each launcher: what does the work, with what it returns (...: a mock, whose calls count too), and a value of each
# flag beside its default.
CASES = {
    "hessian_spectrum": (
        SPECTRUM,
        {"saved_run": "/r", "pretrained": "digits", "at_step": 3, "examples": 7, "order": 8, "tolerance": 0.5,
         "gauss_newton": True, "batch_moments": True, "with_start": True, "per_layer": True, "per_block": True,
         "num_vectors": 2, "num_eigenvalues": 4, "batch_size": 6, "precision": "default", "seed": 9, "data_dir": "/d",
         "npz": "/n.npz"},
    ),
    "near_identity": (
        BLOCKS,
        {"saved_run": "/r", "pretrained": "digits", "at_step": 3, "examples": 7, "ablate": False, "data_dir": "/d",
         "npz": "/n.npz"},
    ),
    "evaluate": (
        EVALUATION,
        {"saved_model": "/other", "pretrained": "digits", "max_examples": 5, "batch_size": 7, "json": True,
         "trust_saved_model": True, "dataset": "mnist"} | DATA,
    ),
    "relu_search": ({"theory.relu.search.measure": ({}, [])}, {"trials": 300, "seed": 4}),
    "descent_map": ({"theory.descent.target_map.run_job": []}, {"seed": 4}),
    "check_theory": (CLAIMS, {"claim": "hm.theorem_2.1", "trials": 7, "seed": 4}),
    "export_npz": (
        {"launch.export_npz.open_source": ...},
        DATA | {"dataset": "mnist", "train_split": "t", "image_size": 9},
    ),
    "story": (STORY, {"study": "/s", "blocks": "/a,/b,/c", "names": "a,b,c", "format": "pdf", "style": "paper"}),
}  # fmt: skip
# What a launcher must be given, what a flag needs beside it, and flags that other tests see at work.
GIVEN = {"evaluate": ["--saved_model=/m"], "export_npz": ["--npz=new.npz"]}
NEEDS = {"test_share": ["--images=/i"], "test_split": ["--images=/i"], "train_split": ["--images=/i"]}
SEEN_ELSEWHERE = {"check_theory": {"draw", "figures", "verbose"}, "export_npz": {"npz"}}


def computed(experiment, config, run_dir):
    """In place of launch.experiment.run: the check, some jobs of each table, and the report."""
    experiment.check(MagicMock())
    for jobs in experiment.tables.values():
        for job in jobs[:3]:
            if "density" not in job.label and "several" not in job.label:
                job.compute(lambda *_: None)
    experiment.report(MagicMock(contents={"seconds": 60}), *([] for _ in experiment.tables))


def passed_on(name, *flags):
    """Returns the calls of the mocks, as text, in a run of a launcher with some flags."""
    module, calls = importlib.import_module(f"launch.{name}"), MagicMock()
    with pytest.MonkeyPatch.context() as patch:
        for place, result in CASES[name][0].items():
            mock = getattr(calls, place.replace(".", "_").strip("_"))
            if callable(result):
                mock.side_effect = result
            elif result is not ...:
                mock.return_value = result
            patch.setattr(place, mock)
        if hasattr(module, "run"):
            patch.setattr(module, "run", computed)
        run_dir = {"export_npz": [], "evaluate": [], "relu_search": [None], "check_theory": [None]}.get(name, ["run"])
        try:
            module.main(config_of(name, *flags), *run_dir)
        except UserError:
            assert name == "export_npz"  # which cannot read a mock
    return re.sub(r" id='\d+'| at 0x\w+", "", repr(calls.mock_calls))


def test_the_relu_search_looks_again_at_a_fortieth_of_its_trials_and_at_five_or_more():
    assert "'risk', 100, 5, [" in passed_on("relu_search")
    assert "'risk', 400, 10, [" in passed_on("relu_search", "--trials=400")


def test_the_accuracy_of_a_spectrum_is_that_of_its_layers_too():
    """The table below does not see it: other mocks are given the whole config."""
    flags = "--order=8", "--num_vectors=2", "--tolerance=0.5", "--seed=9", "--per_layer", "--per_block"
    calls, accuracy = passed_on("hessian_spectrum", *flags), "order=8, num_vectors=2, tolerance=0.5, seed=9, path="
    for measured in ("spectrum(", "per_layer('layer', ", "per_layer('block', "):
        assert f"Hessian().{measured}{accuracy}" in calls


@pytest.mark.parametrize("name", CASES)
def test_each_flag_is_passed_on(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    default = config_of(name)
    fields = {field.name for field, *_ in config_flags.flag_fields(default)}
    values, given = CASES[name][1], GIVEN.get(name, [])
    refused = getattr(type(default), "refusals", lambda flags: {})({})
    assert fields - set(values) - SEEN_ELSEWHERE.get(name, set()) - set(refused) == set()
    for flag, value in values.items():
        if flag in SEEN_ELSEWHERE.get(name, ()):
            continue
        others = NEEDS.get(flag, []) + ([] if flag in ("pretrained", "saved_model") else given)
        text = f"--{'' if value else 'no'}{flag}" if isinstance(value, bool) else f"--{flag}={value}"
        usual = passed_on(name, *(others or given))
        assert len(usual) > 20 and usual == passed_on(name, *(others or given)), flag  # nothing in it is chance
        assert passed_on(name, *others, text) != usual, flag


def test_blocks_are_left_out_only_if_they_are_to_be():
    for flag, is_given in (("--ablate", True), ("--noablate", False)):
        assert f"Measurement('a network', array([0.]), array([0.]), {is_given})" in passed_on("near_identity", flag)


def test_exported_networks_take_standardised_images_and_have_no_checkpoint_to_keep(monkeypatch):
    monkeypatch.setattr("identity_matters.pretrained.load", lambda *given, **options: (*given, options))
    monkeypatch.setattr(trained_run, "_exported", lambda config, path: path)
    for chosen, network in (
        ({"pretrained": "d"}, ("d", {"standardized": False})),
        ({"saved_run": "/r"}, "/r/model.keras"),
    ):
        assert trained_run.load_model(TrainConfig(), trained_run.SavedRun(**chosen)) == (network, "")


def test_the_start_of_a_run_takes_the_weights_that_it_began_with_and_needs_no_export(tmp_path, monkeypatch, capsys):
    config, said = TrainConfig(init_from="digits", data=DataConfig("mnist_sample")), []
    begin(tmp_path, config)
    chosen = trained_run.SavedRun(str(tmp_path), at_step=0)
    monkeypatch.setattr(trained_run, "say_named_by", lambda *given: said.append(given))
    monkeypatch.setattr(networks, "build", lambda *_: "network")
    monkeypatch.setattr("identity_matters.starting_weights.take_weights", lambda *given: f"{given[:2]} taken")
    assert trained_run.load_model(trained_run.read_config(chosen), chosen) == ("network", "")
    assert "note: ('network', 'digits') taken\n" in capsys.readouterr().err
    assert said == [(str(tmp_path / "config.json"), config.data, "")]


def test_the_label_of_a_cell_of_the_map_is_its_key(monkeypatch):
    monkeypatch.setattr(descent_map, "run", lambda experiment, *_: experiment.tables["results.csv"][0])
    job = descent_map.main(descent_map.MapConfig())
    assert job.label == ", ".join(map(str, job.key.values()))
    rows = [{"status": "lost", "excess": excess} for excess in (0.5, 0.25, 0.75)]
    assert descent_map._line(job, rows).endswith(": not reached; lowest excess risk 25.0% of f(0)")


@pytest.mark.parametrize("image_size, are_resized", [(0, False), (1, True)])
def test_the_first_examples_are_named_with_whether_they_are_resized(image_size, are_resized, monkeypatch):
    source = SimpleNamespace(num=lambda split: 5, read=lambda split, at: (np.zeros((len(at), 4, 4, 1), np.uint8), at))
    monkeypatch.setattr(trained_run, "open_source", lambda data: source)
    monkeypatch.setattr(trained_run, "examples_summary", lambda *_, are_resized: are_resized)
    config = SimpleNamespace(data=SimpleNamespace(image_size=image_size))
    for count, num in ((3, 3), (9, 5)):
        images, labels, name = trained_run.first_examples(config, count)
        assert (len(images), labels.tolist(), name) == (num, list(range(num)), are_resized)


@pytest.mark.parametrize("is_raw", [False, True])
def test_the_network_of_a_run_is_exported_as_trained_or_built_anew_where_it_takes_raw_images(is_raw, monkeypatch):
    exported, built = SimpleNamespace(get_weights=lambda: "weights"), SimpleNamespace(set_weights=lambda _: None)
    monkeypatch.setattr("identity_matters.safe_loading.load_network", lambda path: exported)
    monkeypatch.setattr("identity_matters.model.takes_raw_images", lambda network: is_raw)
    monkeypatch.setattr(networks, "build", lambda *_: built)
    assert trained_run._exported(TrainConfig(), "model.keras") is (built if is_raw else exported)


def test_an_evaluation_shows_its_bar():
    assert "progress=True" in passed_on("evaluate", *GIVEN["evaluate"])


@pytest.mark.parametrize("of", [{"saved_run": "/r"}, {"pretrained": "digits"}])
def test_the_initial_network_of_a_run_is_that_of_its_seed_in_float32(of):
    """Also of a run in mixed precision, as Hessians and norms are measured in one type."""
    model = ModelConfig((8, 8, 1), stem_width=2, widths=(2,), blocks_per_stage=(1,), mixed_precision=True)
    chosen = trained_run.SavedRun(**of, at_step=0)
    first, other = (trained_run.load_model(TrainConfig(model=model, seed=seed), chosen)[0] for seed in (1, 2))
    assert {layer.compute_dtype for layer in first.layers} == {"float32"}
    expected = networks.build(dataclasses.replace(model, mixed_precision=False), 1)
    for variable, same, another in zip(first.variables, expected.variables, other.variables):
        np.testing.assert_array_equal(variable, same)
        assert len(variable.shape) < 4 or not np.array_equal(variable, another)
