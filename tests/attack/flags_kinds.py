"""Flags with extreme values."""

from launching import LAUNCHERS, config_of

from attack import command, kind, prepared
from attack.prepared import pick
from launch import config_flags

VALUES = ["", "0", "-1", "nan", "inf", "-inf", "1e308", "9" * 400, "x", "\0", "a\nb", "$(id)", "../..", "1,2,3", "None"]


def usual(name, folder) -> list[str]:
    """Flags without which a launcher says only that they are missing."""
    where = [] if name in ("evaluate", "export_npz") else [f"--run_dir={folder / 'run'}"]
    if name == "plot":
        where = [f"--run_dir={prepared.run()}", f"--beside={folder / 'other'}"]
    return where + {
        "evaluate": [f"--saved_model={prepared.run() / 'model.keras'}"],
        "export_npz": ["--dataset=mnist_sample", f"--npz={folder / 'x.npz'}"],
        "hessian_spectrum": [f"--saved_run={prepared.run()}", "--examples=20", "--batch_size=10", "--order=3"],
        "report": [f"--runs={prepared.run()}"],
        "cluster": ["--slurm"],
    }.get(name, [])


@kind("a flag of any launcher with an extreme value")
def extreme_flag(random, folder):
    name = str(pick(random, LAUNCHERS))
    fields = [field.name for field, *_ in config_flags.flag_fields(config_of(name))]
    given = usual(name, folder)
    for _ in range(random.integers(1, 3)):
        flag, value = pick(random, fields), str(pick(random, VALUES))
        if "\0" in value:
            value = value.replace("\0", "\\0")  # the kernel takes no NUL in an argument
        given.append(f"--{flag}={value}")
    if name == "cluster" and not {"--slurm=0", "--slurm=None"}.isdisjoint(given):
        given.append("--slurm")
    command.must_end_well(command.run(folder, name, *given, cwd=folder, sigterm_after=3))
