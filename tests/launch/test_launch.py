"""The launchers: what a user sees when all goes well, and the one line when it does not."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
from image_folders import noise, write
from launching import LAUNCHERS, launched, presets_of

from identity_matters.config import DataConfig, ModelConfig, TrainConfig, ignored_fields
from identity_matters.errors import EXIT_DIVERGED, Unreadable
from identity_matters.fields import all_fields
from launch import config_flags, launcher

TINY = "--stem_width=2 --widths=2,4 --blocks_per_stage=1,1 --batch_size=8".split()


STUDY = ["--preset=smoke", "--run_dir={tmp}/run"]
# Each: launcher, flags, what the line must name. {tmp} is the current directory, `folder`.
MISTAKES = {
    "batch size 0": ("train", ["--batch_size=0"], "batch_size must be at least 1, got 0"),
    "steps not a number": ("train", ["--train_steps=1e3"], "error: train_steps must be a whole number, got '1e3'"),
    "widths not numbers": ("train", ["--widths=16,x,64"], "whole numbers with commas between, got '16,x,64'"),
    "switch not a switch": ("shortcut_study", ["--hparams=a: b"], "hparams must be true or false, got 'a: b'; write"),
    "switch off, false": ("train", ["--noshortcut=false"], "--noshortcut=false does not take an argument"),
    "rate not a number": ("train", ["--learning_rate=0,1"], "error: learning_rate must be a number, got '0,1'"),
    "unknown preset": ("train", ["--preset=cifar11"], "--preset=cifar11: value should be one of <mnist|cifar10"),
    "unknown flag": ("train", ["--trian_steps=5"], "--train_steps"),
    "stray argument": ("train", ["cifar10"], "'cifar10'"),
    "unknown dataset": ("train", ["--dataset=cifar1O"], "cifar10"),
    "unprepared dataset": ("train", ["--dataset=cifar100", "--data_dir={tmp}"], "--download"),
    "unknown claim": ("check_theory", ["--claim=1", "--run_dir={tmp}/run"], "no claim '1'; they are hm.claim_2.3, "),
    "mistyped claim": ("check_theory", ["--claim=hm.theorem_21"], "'hm.theorem_21'; did you mean hm.theorem_2.1 or "),
    "no trials": ("check_theory", ["--trials=0"], "trials must be at least 1, got 0"),
    "unknown optimiser": ("train", ["--optimizer=adamm"], "momentum, nesterov"),
    "zero learning rate": ("train", ["--learning_rate=0"], "learning_rate must be positive"),
    "momentum of one": ("train", ["--momentum=1"], "momentum must lie in [0, 1)"),
    "widths that shrink": ("train", ["--widths=64,32,16"], "got (64, 32, 16) and stem_width 16"),
    "drops that go back": ("train", ["--decay_steps=30,20"], "(30, 20)"),
    "stages without blocks": ("train", ["--blocks_per_stage=2,2"], "(2, 2)"),
    "ragged executions": ("train", ["--steps_per_execution=7"], "multiple of steps_per_execution = 7"),
    "no run_dir": ("train", ["--run_dir="], "--run_dir is missing"),
    "run_dir below a file": ("train", ["--run_dir={tmp}/file/run"], "cannot write to run_dir"),
    "run_dir of a damaged config": ("train", ["--run_dir={tmp}/damaged"], "config.json"),
    "missing npz": ("train", ["--npz={tmp}/none.npz"], "none.npz"),
    "no saved model": ("evaluate", [], "--saved_model is missing"),
    "missing saved model": ("evaluate", ["--saved_model={tmp}/none"], "{tmp}/none"),
    "negative max_examples": ("evaluate", ["--saved_model=x", "--max_examples=-1"], "got -1"),
    "nothing to plot": ("plot", ["--run_dir={tmp}/none"], "metrics.csv"),
    "nothing to compare with": ("plot", ["--run_dir={tmp}", "--beside=,"], "names no directory"),
    "unknown format": ("plot", ["--run_dir={tmp}", "--format=bmp"], "png, pdf, svg"),
    "unknown network": ("evaluate", ["--pretrained=cifar11"], "'cifar11', only digits, cifar10_fast, cifar10"),
    "two networks": ("evaluate", ["--pretrained=digits", "--saved_model=x"], "give one of them"),
    "export without a file": ("export_npz", [], "--npz is missing"),
    "export to no folder": ("export_npz", ["--npz={tmp}/none/x.npz"], "there is no folder {tmp}/none"),
    "export of what is not there": (
        "export_npz", ["--npz={tmp}/x.npz", "--dataset=cifar10", "--data_dir={tmp}"], "--download"
    ),
    "classify without a network": ("classify", ["photo.png"], "--saved_model is missing"),
    "classify by two": ("classify", ["--saved_model=x", "--pretrained=digits", "photo.png"], "give one of them"),
    "no photo": ("classify", ["--pretrained=digits"], "no image is named"),
    "classify by no run": ("classify", ["--saved_model=none", "photo.png"], "none is not a SavedModel of this project"),
    "no photo there": ("classify", ["--pretrained=digits", "none.png"], "there is no file or folder none.png"),
    "a text as photo": ("classify", ["--pretrained=digits", "file"], "cannot read file: it is not a PNG or JPEG"),
    "no photo in a folder": ("classify", ["--pretrained=digits", "empty"], "empty holds no PNG or JPEG file"),
    "colours": (
        "classify", ["--pretrained=digits", "colour.png"], "colour.png has 3 channels"
    ),
    "unknown figure": ("check_theory", ["--draw=ball", "--run_dir={tmp}/run"], "no figure 'ball'; there are norms, "),
    "figure without a place": ("check_theory", ["--draw=spectra"], "--draw needs a --run_dir"),
    "figure and claim": ("check_theory", ["--draw=spectra", "--claim=hm.theorem_2.1"], "exclude each other"),
    "depths that 3 does not divide": (
        "shortcut_study", [*STUDY, "--depths=2,4,8"], "depths (2, 4, 8) hold no multiple of shortcut_depth 3"
    ),
    "depths not numbers": ("shortcut_study", [*STUDY, "--depths=2,six"], "with commas between, got '2,six'"),
    "unknown data of a study": ("shortcut_study", [*STUDY, "--dataset=nonexistent"], "nonexistent"),
    "unprepared data of a study": (
        "shortcut_study", [*STUDY, "--dataset=mnist", "--data_dir={tmp}"], "mnist is not prepared"
    ),
    "fewer images than dimensions": ("shortcut_study", [*STUDY, "--examples=5"], "5 images span only 4 dimensions"),
    "no seeds": ("ablations", ["--num_seeds=0", "--run_dir={tmp}/a"], "num_seeds must be at least 1"),
}  # fmt: skip


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


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_gets_one_line_and_writes_nothing(launch, folder, name):
    program, arguments, named = MISTAKES[name]
    arguments = [argument.format(tmp=folder) for argument in arguments]
    if program == "train" and not any(a.startswith("--run_dir") for a in arguments):
        arguments.append(f"--run_dir={folder}/run")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    code, out, err = launch(program, *arguments)
    assert code == launcher.EXIT_ERROR
    assert err.startswith("error: ") and err.count("\n") == 1 and err.endswith("\n"), err
    assert named.format(tmp=folder) in err
    assert not out
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags, backend, named",
    [
        (["--dataset=cifar100", "--data_dir={tmp}"], "tensorflow", "cifar100 is not prepared under {tmp};"),
        ([], "foo", "KERAS_BACKEND=foo cannot be used"),
        ([], "numpy", "KERAS_BACKEND=numpy"),
    ],
)
def test_a_mistake_ends_a_real_process_with_one_line(tmp_path, flags, backend, named):
    """Of the folder TFDS would warn."""
    (tmp_path / "cifar100" / "3.0.2").mkdir(parents=True)
    flags = [flag.format(tmp=tmp_path) for flag in flags]
    command = [sys.executable, "-m", "launch.train", *flags, f"--run_dir={tmp_path}/run"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"KERAS_BACKEND": backend})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1), done.stderr
    assert done.stderr.startswith("error: ") and named.format(tmp=tmp_path) in done.stderr
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


def test_help_says_what_a_launcher_does_with_a_command_and_the_time_and_imports_no_tensorflow():
    done = subprocess.run([sys.executable, "-c", HELP, *LAUNCHERS], capture_output=True, text=True)
    *pages, rest = re.split(r"^END .*\n", done.stdout, flags=re.M)
    assert re.findall(r"^END (.*)\n", done.stdout, re.M) == [f"{name} 0" for name in LAUNCHERS], done.stderr
    for name, page in zip(LAUNCHERS, pages, strict=True):
        assert f"python -m launch.{name} --" in page and "Flags:" in page
        assert "minute" in page or "second" in page
        assert max(map(len, page.splitlines())) <= 110


@pytest.mark.parametrize("columns", [1, 31])
def test_help_is_as_wide_as_it_must_be_in_a_narrow_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = config_flags.wrapped_entries("", [("--seed=0", "word " * 40)]).splitlines()
    assert max(map(len, lines)) <= 60


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


def test_help_says_which_switches_are_on(launch, monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    _, out, _ = launch("train", "--help")
    out = " ".join(out.split())
    assert "in place of each addition. (default: on)" in out and "under data_dir. (default: off)" in out


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
    assert lines[-6].startswith("done: step 4, test error ")
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


@pytest.mark.slow
def test_errors_on_held_out_images_are_called_so(launch, digits_npz, tmp_path, monkeypatch):
    from identity_matters import export
    from identity_matters.runs import metrics_log

    drawn, draw = [], metrics_log.convergence_figure

    def keep(*arguments, **options):
        drawn.append(draw(*arguments, **options))
        return drawn[-1]

    for module in (metrics_log, export):
        monkeypatch.setattr(module, "convergence_figure", keep)
    arguments = [f"--npz={digits_npz}", f"--run_dir={tmp_path}/run", "--validation_examples=5", *TINY]
    code, out, err = launch("train", *arguments, "--train_steps=2", "--decay_steps=")
    assert code == 0, err
    assert len(re.findall(r" held-out error \d", out)) == 2 and "test error" not in out
    assert len(drawn) == 2  # TensorBoard's and convergence.png
    assert all(figure.axes[0].get_legend().texts[1].get_text().startswith("held-out error (") for figure in drawn)


def test_a_diverging_run_exits_with_its_own_code(launch, digits_npz, tmp_path):
    arguments = [f"--npz={digits_npz}", f"--run_dir={tmp_path}/run", *TINY, "--train_steps=8"]
    flags = ("--learning_rate=1e30", "--clip_norm=0", "--eval_every=4", "--decay_steps=7,8,1000")
    code, out, err = launch("train", *arguments, *flags)
    assert code == EXIT_DIVERGED
    late = [line for line in err.splitlines() if line.startswith("note: the learning rate")]
    assert late == ["note: the learning rate does not drop at decay_steps 8, 1000: train_steps is 8"]
    assert out.splitlines()[-1].startswith("diverged: the loss became NaN or infinite at step")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["status"] == "diverged"


def test_a_flag_that_nothing_reads_is_named_with_the_reason(tmp_path, launch, monkeypatch):
    from identity_matters import training

    monkeypatch.setattr(training, "train", lambda config, run_dir: None)
    given = "--schedule=linear --decay_steps=1 --newton_schulz_steps=9 --network=resnet_20 --widths=8,4,8"
    code, _, err = launch("train", f"--run_dir={tmp_path}", "--download", *given.split())
    assert code == 0 and err.splitlines() == [
        "note: --decay_steps has no effect: schedule is linear",
        "note: --newton_schulz_steps has no effect: optimizer is momentum",
        "note: --download has no effect: dataset is mnist_sample, which comes with a package",
        "note: --widths has no effect: network is resnet_20",
    ]


def test_the_fields_that_are_said_to_be_ignored_exist():
    every = TrainConfig(ModelConfig(network="all_cnn_c"), DataConfig(npz="x"), schedule="constant")
    fields = {field.name for field, _ in all_fields(every)}
    assert len(ignored_fields(every)) > 15 and ignored_fields(every).keys() <= fields
    assert not ignored_fields(TrainConfig(optimizer="muon", init_from="digits"))
