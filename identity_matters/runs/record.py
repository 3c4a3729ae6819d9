"""config.json: what a run directory says about its run."""

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from identity_matters.errors import UserError, truncated_repr
from identity_matters.fields import from_json, require
from identity_matters.runs.files import read_json, write_text

STATUSES = ("running", "done", "diverged", "failed")
DATA_PATHS = ("npz", "images")  # fields that name a file or a folder with the data, in place of `dataset`
# The launchers whose runs a run directory can hold. The launcher of that name draws the figures of the run: it has a
# function figures(run_dir).
RUN_TYPES = (
    "train",
    "ablations",
    "check_theory",
    "relu_search",
    "descent_map",
    "shortcut_study",
    "hessian_spectrum",
    "near_identity",
    "report",
)


@dataclasses.dataclass
class Record:
    """The config.json of a run.

    Attributes:
      kind: The launcher, one of RUN_TYPES.
      command: The latest command that computed something, and `config` its config as JSON holds it.
      status: One of STATUSES.
      data, data_digest: A summary of the data, and a digest of them: data may be moved, but not changed.
      init_digest: The digest of the weights of `init_from`; weights_digest: of the network that was measured.
      class_names: The names of the classes, if the data have them.
      versions: Those of the machine, Python and the packages in the first call.
      event_files: The TensorBoard files of a study.
      num_examples, num_weights, seconds: The size of what was measured, and the time of the last call that did so.
      diverged_at_step: The step at which a run diverged; error: the message of a run that failed.
    """

    kind: str
    config: dict[str, Any]
    command: str = ""
    status: str = "running"
    data: str = ""
    data_digest: str = ""
    init_digest: str = ""
    weights_digest: str = ""
    class_names: list[str] = dataclasses.field(default_factory=list)
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    event_files: list[str] = dataclasses.field(default_factory=list)
    num_examples: int | None = None
    num_weights: int | None = None
    seconds: float | None = None
    diverged_at_step: int | None = None
    error: str = ""

    def write(self, run_dir: str) -> None:
        """Writes config.json whole or not at all, without what is empty."""
        values = {name: value for name, value in vars(self).items() if value not in (None, "", [], {})}
        write_text(os.path.join(run_dir, "config.json"), json.dumps(values, indent=2) + "\n")

    def config_as(self, default: Any) -> Any:
        """Returns the config on top of a default; raises UserError if it is damaged or another version's."""
        return from_json(default, self.config)

    @property
    def settings(self) -> dict[str, Any]:
        """The fields of the config and of the configs in it, by name."""
        return flat(self.config)

    @property
    def split(self) -> str:
        """What tables call the images that a training run is evaluated on: "test" or "held-out"."""
        return evaluated_split(self.settings)

    def final_row_label(self, rows: list[dict]) -> str:
        """Returns in words when the last row of the run's metrics.csv was."""
        if self.status == "done" or not rows:
            return "at the end"
        place = f"at step {rows[-1]['step']:,}"
        return f"{place}, before it diverged" if self.status == "diverged" else place


def read_record(run_dir: str) -> Record | None:
    """Returns what a run directory's config.json says; None if there is none.

    Raises:
      UserError: the file is damaged, or no file, or the path is none of this machine.
    """
    require_mounted(run_dir)
    path = os.path.join(run_dir, "config.json")
    try:
        return parse_record(read_json(path))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        raise UserError(f"{path} is not a run's config.json: {error}") from error


def parse_record(contents: Any) -> Record:
    """Returns the record that the contents of a config.json make; raises UserError if they are none."""
    require(isinstance(contents, dict) and isinstance(contents.get("config"), dict), "it holds no config")
    for name, known in (("kind", RUN_TYPES), ("status", STATUSES)):
        value = contents.get(name)
        require(value in known, f"its {name} is {truncated_repr(value)}, none of {', '.join(known)}")
    names = {field.name for field in dataclasses.fields(Record)}
    record = Record(**{name: value for name, value in contents.items() if name in names})
    has_step = record.status != "diverged" or isinstance(record.diverged_at_step, int)
    require(has_step, "it does not say at which step the run diverged")
    return record


def require_mounted(path: str) -> None:
    """Raises UserError for a URL in place of a directory: Python would make a local folder of that name."""
    if re.match(r"[\w.+-]+:/", os.fspath(path)):
        raise UserError(f"{path} is a URL, not a directory: mount it, and give the folder")


def flat(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a config and of the configs in it, by name."""
    fields = {name: value for name, value in config.items() if not isinstance(value, dict)}
    for value in config.values():
        if isinstance(value, dict):
            fields |= flat(value)
    return fields


def evaluated_split(settings: Mapping[str, Any]) -> str:
    """Returns what tables call the images that a run with these settings is evaluated on."""
    return "held-out" if settings.get("validation_examples") else "test"


def differing(configs: list[dict[str, Any]]) -> list[str]:
    """Returns the names of the fields in which several configs, each `flat`, differ."""
    names = dict.fromkeys(name for config in configs for name in config)
    return [name for name in names if len({str(config.get(name)) for config in configs}) > 1]
