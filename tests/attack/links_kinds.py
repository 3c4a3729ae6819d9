"""Links planted in run directories and beside files that launchers write: nothing is written or deleted through one."""

import functools
import os
import pathlib
import shutil

from attack import command, kind, prepared
from attack.checkpoint_kinds import interrupted
from attack.prepared import pick

STUDY = ["--figure=5", "--preset=smoke"]
# What a launcher can write into its run directory; of what is not there yet a link may be planted too.
NAMES = (
    "config.json metrics.csv results.csv results.md claims.md points.csv search.md convergence.png comparison.png "
    "relu_search.png model.keras saved_model checkpoints learning_rates report.html workers.log claims claims.log "
    "digits digits.log study study.log .lock figure_5.png density.csv .tmp7_a .tmp7_saved_model "
    "checkpoints/step_00000002.npz checkpoints/.tmp7_step_00000002.npz saved_model/saved_model.pb learning_rates/a"
).split()

FOLDERS = "checkpoints learning_rates claims digits study".split()


def snapshot(folder) -> dict:
    """What every file below a folder is and holds."""
    return {
        str(path.relative_to(folder)): (
            path.lstat().st_mode,
            path.lstat().st_mtime_ns,
            path.is_file() and path.read_bytes(),
        )
        for path in folder.rglob("*")
    }


def plant(random, run_dir: pathlib.Path, outside: pathlib.Path) -> list[str]:
    """Moves some of a run's files and folders outside and leaves links to them; adds links to files of others."""
    (outside / "folder").mkdir(parents=True)
    for name in ("mine", "folder/step_00000001.npz", "folder/.tmp7_mine", "folder/events.out.tfevents.1"):
        (outside / name).write_text("mine")
    planted = []
    present = [str(path.relative_to(run_dir)) for path in run_dir.rglob("*") if not path.is_symlink()]
    chosen = [pick(random, pick(random, [FOLDERS, NAMES, present or NAMES])) for _ in range(random.integers(1, 6))]
    for name in dict.fromkeys(chosen):
        path, number = run_dir / name, len(planted)
        if not path.parent.is_dir() or any(parent.is_symlink() for parent in [path, *path.parents]):
            continue
        target = outside / pick(random, ["mine", "folder", "nothing", "folder/new"])
        if path.exists() and random.random() < 0.7:
            target = outside / f"moved{number}"
            shutil.move(path, target)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if random.random() < 0.3:
            target = os.path.relpath(target, path.parent)
        path.symlink_to(target)
        planted.append(name)
    return planted


def must_leave_alone(random, folder, run_dir, name, *flags, **options) -> None:
    """Runs a launcher after links were planted in run_dir; fails where anything outside has changed."""
    outside = folder / "outside"
    planted = plant(random, run_dir, outside)
    before = snapshot(outside)
    ended = command.run(folder, name, *flags, **options)
    assert snapshot(outside) == before, (name, planted, ended.err[-500:])
    command.must_end_well(ended)


@functools.cache
def study() -> pathlib.Path:
    """A study of Figure 5 as SIGTERM left it, with some rows."""
    path = prepared.folder() / "study"
    command.run(prepared.folder(), "shortcut_study", *STUDY, f"--run_dir={path}", sigterm_after=12)
    return path


@kind("links in a run directory: train goes on")
def train(random, folder):
    run_dir = folder / "run"
    shutil.copytree(interrupted(), run_dir)
    must_leave_alone(random, folder, run_dir, "train", f"--run_dir={run_dir}", *prepared.TINY)


@kind("links in a run directory: plot, report, evaluate")
def readers(random, folder):
    run_dir = folder / "run"
    shutil.copytree(prepared.run(), run_dir)
    form = pick(random, ["png", "pdf", "svg"])
    name, *flags = pick(
        random,
        [
            ("plot", f"--run_dir={run_dir}", f"--format={form}"),
            ("plot", f"--run_dir={run_dir}", f"--beside={prepared.run()}"),
            ("report", f"--run_dir={run_dir}", f"--runs={prepared.run()}"),
            ("report", f"--run_dir={folder / 'report'}", f"--runs={run_dir}"),
            ("evaluate", f"--saved_model={run_dir / 'model.keras'}", "--max_examples=4"),
        ],
    )
    must_leave_alone(random, folder, run_dir, name, *flags)


@kind("links in a new directory: report, relu_search, descent_map, check_theory, cluster")
def new_directory(random, folder):
    run_dir = folder / "run"
    run_dir.mkdir()
    name, *flags = pick(
        random,
        [
            ("report", f"--runs={prepared.run()}"),
            ("report",),
            ("relu_search", "--trials=1"),
            ("descent_map",),
            ("check_theory", "--claim=hm.theorem_2.1"),
            ("shortcut_study", *STUDY, "--hparams"),
            ("cluster", *prepared.TINY, "--num_workers=1"),
        ],
    )
    must_leave_alone(random, folder, run_dir, name, f"--run_dir={run_dir}", *flags, sigterm_after=2.5)
