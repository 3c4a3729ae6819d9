"""Full disks, exhausted inodes, foreign directories: an error with a path and exit code 1 at every moment.

Each run has its file system in memory, which only root can mount.
"""

import ast
import os
import shutil
import subprocess
import sys

import pytest
from begun import edit

from identity_matters.errors import EXIT_ERROR
from identity_matters.presets import TRAIN_PRESETS
from launch.config_flags import flags_of

pytestmark = pytest.mark.slow
MORE_MOMENTS = ("size=4k", "size=128k", "nr_inodes=2", "nr_inodes=12")
MOMENTS = ["size=450k", "nr_inodes=8", *(pytest.param(moment, marks=pytest.mark.nightly) for moment in MORE_MOMENTS)]
# 25 convolutions, whose histograms fill an event file.
FLAGS = """--train_examples=400 --eval_examples=50 --stem_width=4 --widths=4,4,4 --blocks_per_stage=4,4,4
    --batch_size=16 --train_steps=6 --decay_steps=5 --eval_every=3 --checkpoint_every=3""".split()


@pytest.fixture
def mounted(tmp_path):
    """mounted("size=16k") -> a folder on a separate file system."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True).returncode:
            pytest.skip("only root can mount a file system")
        return folder

    yield mount
    subprocess.run(["umount", folder], capture_output=True)


def train(run_dir):
    """Runs launch.train; returns its exit code and the lines of its stderr that are no progress bar's."""
    command = [sys.executable, "-m", "launch.train", f"--run_dir={run_dir}", *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = done.stderr.replace("\r", "\n").splitlines()
    return done.returncode, [line for line in lines if line.strip() and "%|" not in line]


@pytest.mark.parametrize("options", MOMENTS)
def test_a_disk_that_is_full_at_any_moment_is_a_short_error_with_a_path(mounted, options):
    """So it is from the first file on; the sizes let the run get to its later ones."""
    folder = mounted(options)
    assert_one_line(train(folder / "run"), folder, "No space left on device")


def assert_one_line(ended, folder, reason):
    code, lines = ended
    assert (code, len(lines)) == (EXIT_ERROR, 1), lines
    assert lines[0].startswith("error: ") and str(folder) in lines[0] and reason in lines[0]


def test_where_the_disk_has_room_again_the_same_command_continues(mounted):
    folder = mounted("size=128k")
    assert_one_line(train(folder / "run"), folder, "No space left on device")
    subprocess.run(["mount", "-o", "remount,size=10m", folder], check=True)
    assert train(folder / "run") == (0, [])


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root, and setpriv to be less")
def test_a_directory_that_belongs_to_another_user_is_a_short_error(tiny_run, tiny_config, tmp_path):
    for name, mode in (("unwritable", 0o555), ("foreign", 0o755), ("secret", 0o700)):
        (tmp_path / name).mkdir(mode=mode)
    unfinished = shutil.copytree(tiny_run, tmp_path / "unfinished")
    edit(unfinished, status="running")
    for path in (tmp_path / "foreign", tmp_path / "secret", unfinished, *unfinished.rglob("*")):
        shutil.chown(path, "nobody")
    run_dirs = [f"{tmp_path}/{name}" for name in ("unwritable/run", "foreign", "secret", "unfinished")]
    flags = flags_of(tiny_config, TRAIN_PRESETS)
    program = "from launching import launched\n"  # one process for all, as each takes seconds to start
    program += f"print([launched('train', f'--run_dir={{run_dir}}', *{flags}) for run_dir in {run_dirs}])"
    with_the_rights_of_an_owner = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    command = [*with_the_rights_of_an_owner, sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    for run_dir, (code, _, err) in zip(run_dirs, ast.literal_eval(done.stdout), strict=True):
        assert_one_line((code, err.splitlines()), run_dir, "Permission denied")
