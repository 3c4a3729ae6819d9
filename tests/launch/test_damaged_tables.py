"""Whatever is wrong with the tables of a run, its launcher and launch.plot name the file."""

import dataclasses
import shutil

import pytest
from begun import begin, edit
from launching import config_of

from identity_matters import training

NETWORK = ["--train_examples=60", "--eval_examples=20", "--stem_width=2", "--widths=2", "--blocks_per_stage=1"]
TINY = [*NETWORK, "--batch_size=16", "--train_steps=4", "--decay_steps=", "--eval_every=2", "--checkpoint_every=2"]
RIVALS = ["--experiment=rivals", "--only=BN-free", *NETWORK]  # whose "BN-free" takes the flags of the network
RIVALS += ["--dataset=mnist_sample", "--stem_pool=1", "--validation_examples=20", "--operations=1e6"]
# Launcher, flags, and the files that it reads when the run continues; test_experiment.py has the other launchers.
GOING_ON = {
    "train": (TINY, ["config.json", "metrics.csv"]),
    "ablations": (RIVALS, ["config.json", "BN_free_rate0.015/config.json"]),
    "hessian_spectrum": (["--saved_run={run}", "--examples=20", "--order=3"], ["config.json", "products"]),
}


@pytest.mark.parametrize(
    "kind", ["train", *(pytest.param(kind, marks=pytest.mark.slow) for kind in list(GOING_ON)[1:])]
)
def test_a_run_does_not_go_on_with_a_damaged_file(launch, tiny_run, tmp_path, kind):
    flags, names = GOING_ON[kind]
    flags = [flag.format(run=tiny_run) for flag in flags]
    config = config_of(kind, *flags)
    if kind == "train":  # which takes these two from the data
        model = dataclasses.replace(config.model, image_shape=(28, 28, 1), num_classes=10)
        config = dataclasses.replace(config, model=model)
    for name in names:
        run_dir = tmp_path / name.replace("/", "_")
        begin(run_dir, config, kind)
        (run_dir / name).parent.mkdir(exist_ok=True)
        (run_dir / name).write_text("step,loss\n1\n")
        code, _, err = launch(kind, f"--run_dir={run_dir}", *flags)
        last = err.splitlines()[-1]
        assert code == 1 and last.startswith("error: ") and name.split("/")[-1] in last and "Traceback" not in err


@pytest.mark.parametrize("change", [{"model": 5}, {"seed": "x"}, {"model": {"widths": [[1]]}}, {"new": 1}, {"npz": 3}])
def test_hessian_spectrum_refuses_a_config_of_other_types(launch, tiny_run, tmp_path, change):
    shutil.copytree(tiny_run, tmp_path / "run")
    edit(tmp_path / "run", change)
    code, _, err = launch("hessian_spectrum", f"--saved_run={tmp_path}/run", f"--run_dir={tmp_path}/spectrum")
    assert code == 1 and f"{tmp_path}/run" in err and err.count("\n") == 1


@pytest.mark.slow
def test_a_command_that_was_corrected_goes_on_where_the_first_had_not_begun(launch, tmp_path, monkeypatch):
    """A network that cannot be built leaves no run directory."""

    def fails(*_):
        raise MemoryError("no memory for this network")

    with monkeypatch.context() as patch:
        patch.setattr(training, "build", fails)
        assert launch("train", f"--run_dir={tmp_path}/run", *TINY, "--stem_width=1")[0] == 1
    assert not (tmp_path / "run").exists()
    code, _, err = launch("train", f"--run_dir={tmp_path}/run", *TINY)
    assert code == 0, err
