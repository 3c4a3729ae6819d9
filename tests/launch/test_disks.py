"""Full disks, exhausted inodes, directories of others: one line with a path and exit code 1, whatever the moment.

Each run has a file system of its own in memory, which root alone can mount.
"""

import os
import shutil
import subprocess
import sys

import pytest

from identity_matters.errors import EXIT_ERROR

pytestmark = pytest.mark.slow
MOMENTS = ["size=4k", "size=450k", "nr_inodes=8"]
MOMENTS += [
    pytest.param(options, marks=pytest.mark.nightly) for options in ("size=128k", "nr_inodes=2", "nr_inodes=12")
]
# 25 convolutions, whose histograms fill an event file.
FLAGS = """--train_examples=400 --eval_examples=50 --stem_width=4 --widths=4,4,4 --blocks_per_stage=4,4,4
    --batch_size=16 --train_steps=6 --decay_steps=5 --eval_every=3 --checkpoint_every=2""".split()


@pytest.fixture
def mounted(tmp_path):
    """mounted("size=16k") -> a folder on a file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(options):
        if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True).returncode:
            pytest.skip("only root can mount a file system")
        return folder

    yield mount
    subprocess.run(["umount", folder], capture_output=True)


def train(run_dir, prefix=()):
    """Runs launch.train; returns its exit code and the lines of its stderr that are no progress bar's."""
    command = [*prefix, sys.executable, "-m", "launch.train", f"--run_dir={run_dir}", *FLAGS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = done.stderr.replace("\r", "\n").splitlines()
    return done.returncode, [line for line in lines if line.strip() and "%|" not in line]


@pytest.mark.parametrize("options", MOMENTS)
def test_a_disk_that_is_full_at_any_moment_is_one_line_with_a_path(mounted, options):
    """So it is from the first file on; the sizes let the run get to its later ones."""
    folder = mounted(options)
    code, lines = train(folder / "run")
    assert (code, len(lines)) == (EXIT_ERROR, 1), lines
    assert lines[0].startswith("error: ") and str(folder) in lines[0]
    assert "No space left on device" in lines[0]


@pytest.mark.parametrize("size", [4, 128, *(pytest.param(size, marks=pytest.mark.nightly) for size in (8, 64))])
def test_a_disk_that_is_full_under_a_spectrum_names_a_file(mounted, size):
    folder = mounted(f"size={size}k")
    flags = "--pretrained=digits", "--examples=20", "--order=4", "--num_vectors=2", f"--run_dir={folder}/run"
    command = [sys.executable, "-m", "launch.hessian_spectrum", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    last = done.stderr.splitlines()[-1]
    assert done.returncode == EXIT_ERROR and "Traceback" not in done.stderr
    assert f"error: cannot write {folder}/run/" in last and "No space left on device" in last, last  # behind a bar


def test_where_the_disk_has_room_again_the_same_command_continues(mounted):
    folder = mounted("size=128k")
    assert train(folder / "run")[0] == EXIT_ERROR
    subprocess.run(["mount", "-o", "remount,size=10m", folder], check=True)
    assert train(folder / "run") == (0, [])


def make_unwritable(folder):
    folder.mkdir(mode=0o555)
    return folder / "run"


def make_foreign(folder, mode=0o755):
    folder.mkdir(mode=mode)
    shutil.chown(folder, "nobody")
    return folder


def make_secret(folder):
    return make_foreign(folder, mode=0o700)


def make_unfinished_of_another(folder):
    assert train(folder) == (0, [])
    for path in [folder, *folder.rglob("*")]:
        shutil.chown(path, "nobody")
    (folder / "config.json").write_text((folder / "config.json").read_text().replace('"done"', '"running"'))
    return folder


@pytest.mark.skipif(os.getuid() != 0 or not shutil.which("setpriv"), reason="needs root, and setpriv to be less")
@pytest.mark.parametrize("make", [make_unwritable, make_foreign, make_secret, make_unfinished_of_another])
def test_a_directory_that_belongs_to_another_user_is_one_line(tmp_path, make):
    run_dir = make(tmp_path / "folder")
    with_the_rights_of_an_owner = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
    code, lines = train(run_dir, prefix=with_the_rights_of_an_owner)
    assert (code, len(lines)) == (EXIT_ERROR, 1), lines
    assert lines[0].startswith("error: ") and str(run_dir) in lines[0] and "Permission denied" in lines[0]
