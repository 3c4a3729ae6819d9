"""The launchers: their output when all goes well, and the short error when it does not."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from image_folders import noise, write
from launching import LAUNCHERS, launched, presets_of

from identity_matters.config import DataConfig, ModelConfig, TrainConfig
from identity_matters.errors import EXIT_DIVERGED, Unreadable
from identity_matters.fields import all_fields
from launch import config_flags, launcher

TINY = "--stem_width=2 --widths=2,4 --blocks_per_stage=1,1 --batch_size=8".split()


# For each launcher: flags and arguments, then words of the one line that it must print. {tmp} is the current directory,
# `folder`.
MISTAKES = {
    "train": [
        ("--batch_size=0", "batch_size", "0"),
        ("--train_steps=1e3", "train_steps", "'1e3'"),
        ("--widths=16,x,64", "widths", "'16,x,64'"),
        ("--noshortcut=false", "--noshortcut=false"),
        ("--learning_rate=0,1", "learning_rate", "'0,1'"),
        ("--learning_rate=0", "learning_rate", "0"),
        ("--preset=cifar11", "--preset=cifar11", "cifar10"),
        ("--trian_steps=5", "--trian_steps", "--train_steps"),
        ("cifar10", "'cifar10'"),
        ("--dataset=cifar1O", "'cifar1O'", "cifar10"),
        ("--dataset=cifar100 --data_dir={tmp}", "cifar100", "{tmp}", "--download"),
        ("--optimizer=adamm", "optimizer", "momentum, keras_momentum, nesterov", "adamm"),
        ("--momentum=1", "momentum", "1"),
        ("--widths=64,32,16", "widths", "(64, 32, 16)"),
        ("--decay_steps=30,20", "decay_steps", "(30, 20)"),
        ("--blocks_per_stage=2,2", "blocks_per_stage", "(2, 2)"),
        ("--steps_per_execution=7", "steps_per_execution", "7"),
        ("--run_dir=", "--run_dir"),
        ("--run_dir={tmp}/file/run", "run_dir", "{tmp}/file/run"),
        ("--run_dir={tmp}/damaged", "{tmp}/damaged/config.json"),
        ("--run_dir={tmp}/\udcff", "--run_dir", "\\udcff"),
        ("--npz={tmp}/none.npz", "{tmp}/none.npz"),
    ],
    "evaluate": [
        ("", "--saved_model"),
        ("--saved_model={tmp}/none", "{tmp}/none"),
        ("--saved_model=x --max_examples=-1", "max_examples", "-1"),
        ("--pretrained=cifar11", "'cifar11'", "digits, cifar10_fast, cifar10"),
        ("--pretrained=digits --saved_model=x", "--pretrained", "--saved_model"),
    ],
    "classify": [
        ("photo.png", "--saved_model"),
        ("--saved_model=x --pretrained=digits photo.png", "--pretrained", "--saved_model"),
        ("--pretrained=digits", "image"),
        ("--saved_model=none photo.png", "none"),
        ("--pretrained=digits none.png", "none.png"),
        ("--pretrained=digits file", "file", "PNG"),
        ("--pretrained=digits empty", "empty", "PNG"),
        ("--pretrained=digits colour.png", "colour.png", "3"),
    ],
    "plot": [
        ("--run_dir={tmp}/none", "{tmp}/none"),
        ("--run_dir={tmp} --beside=,", "beside", "','"),
        ("--run_dir={tmp} --format=bmp", "format", "png, pdf, svg", "bmp"),
        ("--run_dir={tmp} --names=a", "names", "--beside"),
        ("--run_dir={tmp} --beside={tmp}/\udcff", "--beside", "\\udcff"),
        ("--run_dir={tmp} --level=0.0638", "level", "'0.0638'"),
    ],
    "export_npz": [
        ("", "--npz"),
        ("--npz={tmp}/none/x.npz", "{tmp}/none"),
        ("--npz={tmp}/file", "{tmp}/file"),
        ("--npz={tmp}/x.npz --dataset=cifar10 --data_dir={tmp}", "cifar10", "--download"),
    ],
    "check_theory": [
        ("--claim=1 --run_dir={tmp}/run", "'1'", "hm.claim_2.3"),
        ("--claim=hm.theorem_21", "'hm.theorem_21'", "hm.theorem_2.1"),
        ("--trials=0", "trials", "0"),
        ("--draw=ball --run_dir={tmp}/run", "draw", "'ball'", "norms"),
        ("--draw=spectra", "--draw", "--run_dir"),
        ("--draw=spectra --claim=hm.theorem_2.1", "claim", "draw"),
    ],
    "shortcut_study": [
        ("--hparams=x --run_dir={tmp}/run", "hparams", "'x'"),
        ("--depths=2,4,8 --run_dir={tmp}/run", "depths", "(2, 4, 8)"),
        ("--depths=2,six --run_dir={tmp}/run", "depths", "'2,six'"),
        ("--dataset=nonexistent --run_dir={tmp}/run", "'nonexistent'"),
        ("--dataset=mnist --data_dir={tmp} --run_dir={tmp}/run", "mnist", "{tmp}"),
        ("--preset=smoke --examples=5 --run_dir={tmp}/run", "5"),
    ],
    "ablations": [
        ("--num_seeds=0 --run_dir={tmp}/run", "num_seeds", "0"),
        ("--only=x --run_dir={tmp}/run", "only", "'x'"),
        ("--validation_examples=0 --run_dir={tmp}/run", "validation_examples"),
    ],
    "hessian_spectrum": [
        ("--run_dir={tmp}/run", "--saved_run"),
        ("--pretrained=digits --saved_run=x --run_dir={tmp}/run", "--pretrained", "--saved_run"),
        ("--pretrained=x --run_dir={tmp}/run", "'x'", "digits"),
        ("--saved_run={tmp}/none --run_dir={tmp}/run", "saved_run", "{tmp}/none"),
        ("--pretrained=digits --at_step=1 --run_dir={tmp}/run", "--at_step=1", "--saved_run"),
        ("--saved_run=x --at_step=-2 --run_dir={tmp}/run", "at_step", "-2"),
        *(
            (f"--pretrained=digits --run_dir={{tmp}}/run --{name}=0", name, "0")
            for name in ("examples", "order", "num_vectors", "num_eigenvalues", "batch_size")
        ),
    ],
    "relu_search": [("--trials=0", "trials", "0")],
    "cluster": [
        ("--num_servers=30000 --run_dir={tmp}/run", "num_servers", "30000"),
        ("--num_servers=2 --run_dir={tmp}/run", "--num_servers=2", "--strategy=parameter_server"),
        ("--num_workers=5 --run_dir={tmp}/run", "batch_size", "num_workers", "5", "32"),
    ],
}
CASES = [(launcher, flags, words) for launcher, cases in MISTAKES.items() for flags, *words in cases]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "photo.png", noise(28, 28))
    write(tmp_path / "colour.png", noise(28, 28, 3))
    (tmp_path / "file").write_text("not a directory")
    (tmp_path / "empty").mkdir()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "config.json").write_text('{"status": "runn')
    return tmp_path


@pytest.mark.parametrize("program, flags, words", CASES, ids=[f"{name} {flags}" for name, flags, _ in CASES])
def test_a_mistake_gets_a_short_error_and_writes_nothing(launch, folder, program, flags, words):
    arguments = flags.format(tmp=folder).split()
    if program == "train" and "--run_dir" not in flags:
        arguments.append(f"--run_dir={folder}/run")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, out, err = launch(program, *arguments)
    assert (code, out) == (launcher.EXIT_ERROR, "")
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n"), err
    assert not [word for word in words if word.format(tmp=folder) not in err], err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize("flags, backend", [("--dataset=cifar100 --data_dir={tmp}", "tensorflow"), ("", "foo")])
def test_a_mistake_ends_a_real_process_with_a_short_error(tmp_path, flags, backend):
    """TFDS would warn about the folder."""
    (tmp_path / "cifar100" / "3.0.2").mkdir(parents=True)
    command = [sys.executable, "-m", "launch.train", *flags.format(tmp=tmp_path).split(), f"--run_dir={tmp_path}/run"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"KERAS_BACKEND": backend})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith("error: ") and ("cifar100" if flags else backend) in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_bug_of_ours_shows_its_traceback(launch, monkeypatch, tmp_path):
    from identity_matters import training

    monkeypatch.setattr(training, "train", lambda *_: json.loads("{"))
    code, _, err = launch("train", f"--run_dir={tmp_path}/run")
    assert code == launcher.EXIT_ERROR
    assert "Traceback" in err and "json.loads" in err


HELP = """
import os, runpy, sys
def leave(code): raise SystemExit(code)
os._exit = leave
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    try:
        runpy.run_module(f"launch.{name}", run_name="__main__")
    except SystemExit as end:
        print(f"END {name} {end.code}", *{"tensorflow", "keras", "matplotlib"} & set(sys.modules))
"""


def test_help_shows_purpose_command_and_time_and_imports_no_tensorflow():
    done = subprocess.run([sys.executable, "-c", HELP, *LAUNCHERS], capture_output=True, text=True)
    *pages, rest = re.split(r"^END .*\n", done.stdout, flags=re.M)
    assert re.findall(r"^END (.*)\n", done.stdout, re.M) == [f"{name} 0" for name in LAUNCHERS], done.stderr
    for name, page in zip(LAUNCHERS, pages, strict=True):
        assert f"python -m launch.{name} --" in page and "Flags:" in page
        assert "minute" in page or "second" in page
        assert max(map(len, page.splitlines())) <= 110


def test_help_whose_reader_is_gone_ends_quietly():
    """As in `--help | true`."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "launch.train", "--help"], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", LAUNCHERS)
def test_every_field_has_a_flag_and_a_description(name):
    for field, _, holder in config_flags.flag_fields(next(iter(presets_of(name).values()))):
        assert config_flags.field_descriptions(holder)[field.name].endswith((".", ")")), field.name  # and not "Raises:"


def test_help_with_a_preset_shows_the_values_of_that_preset(launch):
    _, out, _ = launch("train", "--preset=cifar10_fast", "--help")
    steps = presets_of("train")["cifar10_fast"].train_steps
    assert f"--train_steps={steps}" in out and "--preset=cifar10_fast " in out
    assert "--train_steps=1200" in launch("train", "--help")[1]  # of the first one


@pytest.fixture(scope="module")
def trained(tmp_path_factory, digits_npz):
    """A run of the launcher: (run_dir, its flags, stdout, stderr)."""
    run_dir = tmp_path_factory.mktemp("runs") / "Ann's first"
    flags = [f"--npz={digits_npz}", *TINY, "--train_steps=4", "--eval_every=2", "--decay_steps=2"]
    code, out, err = launched("train", f"--run_dir={run_dir}", *flags)
    assert code == 0, err
    return run_dir, flags, out, err


def test_a_run_ends_with_the_error_the_files_and_the_next_commands(trained):
    run_dir, _, out, err = trained
    lines = out.splitlines()
    assert lines[-6].startswith("done: step 4,")
    assert "convergence.png" in lines[-5] and "saved_model" in lines[-5]
    assert [shlex.split(line) for line in lines[-3:]] == [
        ["tensorboard", f"--logdir={run_dir.parent}"],
        ["python", "-m", "launch.classify", f"--saved_model={run_dir}", "photo.jpg"],
        ["python", "-m", "launch.evaluate", f"--saved_model={run_dir}/saved_model"],
    ]
    assert "4/4" in err  # the progress bar


def test_the_same_command_again_says_that_the_run_is_finished(trained, launch):
    run_dir, flags, *_ = trained
    code, out, _ = launch("train", f"--run_dir={run_dir}", *flags)
    assert code == 0 and "already finished" in out


@pytest.mark.parametrize(
    "flags", ["--preset=mnist --widths=2,2,2,2 --blocks_per_stage=1,1,1,1", "--preset=cifar10 --stem_stride=3"]
)
def test_the_strides_must_divide_the_images_of_the_data_and_not_the_preset_s(
    launch, digits_npz, tmp_path, monkeypatch, flags
):
    def builds(*_):
        raise Unreadable("the network is built")

    monkeypatch.setattr("identity_matters.training.build", builds)
    arguments = ["--stem_width=2", "--widths=2", "--blocks_per_stage=1", "--decay_steps=", *flags.split()]
    arguments += ["--train_steps=1", "--batch_size=8", f"--npz={digits_npz}"]
    _, out, err = launch("train", *arguments, "--image_size=24", f"--run_dir={tmp_path}/fits")
    assert "the network is built" in out, err
    code, _, err = launch("train", *arguments, "--image_size=25", f"--run_dir={tmp_path}/none")
    assert code == 1 and err.count("\n") == 1 and "does not divide 25x25 pixels; try --image_size=24" in err
    assert not (tmp_path / "none").exists()


def test_a_diverging_run_exits_with_its_own_code(launch, digits_npz, tmp_path):
    arguments = [f"--npz={digits_npz}", f"--run_dir={tmp_path}/run", *TINY, "--train_steps=8"]
    flags = ("--learning_rate=1e30", "--clip_norm=0", "--eval_every=4", "--decay_steps=7,8,1000")
    code, out, err = launch("train", *arguments, *flags)
    assert code == EXIT_DIVERGED
    (late,) = [line for line in err.splitlines() if line.startswith("note: the learning rate")]
    assert "8, 1000" in late and out.splitlines()[-1].startswith("diverged: ")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["status"] == "diverged"


def test_a_flag_that_nothing_reads_is_named_with_the_reason(tmp_path, launch, monkeypatch):
    from identity_matters import training

    monkeypatch.setattr(training, "train", lambda config, run_dir: None)
    given = "--schedule=linear --decay_steps=1 --newton_schulz_steps=9 --network=resnet_20 --widths=8,4,8"
    code, _, err = launch("train", f"--run_dir={tmp_path}", "--download", *given.split())
    reasons = {"decay_steps": "linear", "newton_schulz_steps": "momentum", "download": "mnist_sample"}
    reasons["widths"] = "resnet_20"
    for line, (name, reason) in zip(err.splitlines(), reasons.items(), strict=True):
        assert line.startswith("note: ") and f"--{name} " in line and reason in line
    assert code == 0


def test_the_fields_that_are_said_to_be_ignored_exist():
    every = TrainConfig(ModelConfig(network="all_cnn_c"), DataConfig(npz="x"), schedule="constant")
    fields = {field.name for field, _ in all_fields(every)}
    assert len(every.unused_fields()) > 15 and every.unused_fields().keys() <= fields
    assert not TrainConfig(optimizer="muon", init_from="digits").unused_fields()
