"""The pages of the commands and of the presets, from the launchers themselves: their manuals, flags and configs."""

import configparser
import importlib
import inspect
import pathlib
import re
from typing import Any

from identity_matters.config import ModelConfig
from identity_matters.presets import TRAIN_PRESETS
from launch import config_flags, launcher

ROOT = pathlib.Path(__file__).parents[1]


def launchers() -> list[str]:
    """Returns the names of the launchers, as setup.cfg lists their commands."""
    settings = configparser.ConfigParser(comment_prefixes=("#",))
    settings.read(ROOT / "setup.cfg", encoding="utf-8")
    scripts = settings["options.entry_points"]["console_scripts"].split("\n")
    return [line.partition("launch.")[2].partition(":")[0] for line in scripts if "launch." in line]


def launcher_options(name: str) -> dict[str, Any]:
    """Returns what launch.NAME gives to `launcher.command`: its presets, its manual and the like."""
    return importlib.import_module(f"launch.{name}").cli.keywords


def command_page(name: str) -> str:
    """Returns the page of launch.NAME: what --help prints, with the flags as a table."""
    options = launcher_options(name)
    run_dir = options.get("run_dir", "required")
    values = config_flags.define(options["presets"], has_run_dir=run_dir != "none")
    text = launcher.describe_run_dir(run_dir, options.get("run_dir_text", ""))
    entries = config_flags.flag_entries(options["presets"], values, text)
    rows = "".join(f"| `{flag}` | {_cell(meaning)} |\n" for flag, meaning in entries)
    manual = re.sub(r"^(?! {4}).*", _as_markdown, inspect.cleandoc(options["manual"]), flags=re.M)
    return f"# launch.{name}\n\n{manual}\n\n## Flags\n\n| flag and default | meaning |\n| --- | --- |\n{rows}"


def _as_markdown(line: re.Match) -> str:
    """Returns a line of running text with its commands and flags as code and links to the pages that it names."""
    command = r"(?:[A-Z_]+=\w+ )?python -m launch\.\w+(?: --[\w=./]+)*"
    text = re.sub(command + r'|(?<![\w`-])--\w+(=("[^"]*"|[\w./|,-]*\w))?', r"`\g<0>`", line[0])
    return re.sub(r"docs/([\w/]+\.md)", r"[\g<0>](../../\1)", text)


def commands_index() -> str:
    """Returns the page that lists the commands, each with the first line of its manual."""
    rows = []
    for name in launchers():
        first_line = _cell(launcher_options(name)["manual"].partition("\n")[0])
        rows.append(f"| [`python -m launch.{name}`]({name}.md) | {first_line} |")
    body = "\n".join(rows)
    return f"# Commands\n\nEach prints its manual with `--help`.\n\n| command | what it does |\n| --- | --- |\n{body}\n"


def presets_page() -> str:
    """Returns the table of the presets of launch.train: every setting in which two of them differ."""
    configs = {name: _settings(config) for name, config in TRAIN_PRESETS.items()}
    first = next(iter(configs.values()))
    names = [field for field in first if len({settings[field] for settings in configs.values()}) > 1]
    lines = [["", *(f"`{name}`" for name in configs)], ["---"] * (len(configs) + 1)]
    lines.append(["weights of convolutions", *(f"{count_weights(c.model):,}" for c in TRAIN_PRESETS.values())])
    lines += [[f"`{field}`", *(settings[field] for settings in configs.values())] for field in names]
    table = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    return f"""# Presets

`python -m launch.train --preset=NAME` takes one of these. cifar10, cifar100 and imagenet are the paper's recipes, and
imagenet_narrow the same with ResNet-34's widths; the others are not in the paper. Every row but the first is a flag of
[launch.train](commands/train.md), which says what it means; settings in which no two presets differ are left out.

{table}
"""


def count_weights(model: ModelConfig) -> int:
    """Returns how many weights the convolutions of the network have: 13,538,736 of Table 1."""
    width = model.stem_width
    count = model.stem_kernel_size**2 * model.image_shape[2] * width
    for stage_width, blocks in zip(model.widths, model.blocks_per_stage):
        later = (blocks * model.convs_per_block - 1) * stage_width
        count += 9 * stage_width * (width + later)
        width = stage_width
    return count


def _settings(config: Any) -> dict[str, str]:
    """Returns the value of each flag of a config as --help writes it."""
    shown = {"image_shape": "×".join(map(str, config.model.image_shape))}
    for field, value, _ in config_flags.flag_fields(config):
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        shown[field.name] = text or "–"
    return shown


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("_", "\\_")
