"""Flags with extreme values."""

from launching import config_of

from attack import command, kind

VALUES = ["", "0", "-1", "nan", "inf", "-inf", "1e308", "9" * 400, "x", "\0", "a\nb", "$(id)", "../..", "1,2,3", "None"]


@kind("a flag of train, evaluate or a study with an extreme value")
def extreme_flag(random, folder):
    name = random.choice(["train", "ablations", "shortcut_study", "relu_search", "descent_map"])
    fields = [field for field in vars(config_of(name)) if field != "model"]
    flag, value = random.choice(fields), random.choice(VALUES)
    if "\0" in value:
        value = value.replace("\0", "\\0")  # the kernel takes no NUL in an argument
    ended = command.run(folder, name, f"--run_dir={folder / 'run'}", f"--{flag}={value}", sigterm_after=3)
    command.must_end_well(ended)
