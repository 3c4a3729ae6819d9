"""The config of launch.ablations, kept apart from ablations.py so that --help need not import TensorFlow."""

import dataclasses
import difflib
from typing import ClassVar, Literal

from identity_matters.config import TrainConfig
from identity_matters.errors import UserError
from identity_matters.experiments.variants import EXPERIMENTS, NORMS_STEPS, Variant, norms
from identity_matters.fields import check_fields, option, split_names
from identity_matters.presets import TRAIN_PRESETS

FIXED_BY_EXPERIMENTS = (
    "network", "convs_per_block", "optimizer", "learning_rate", "train_steps", "eval_every", "checkpoint_every",
)  # fmt: skip


class _SharedConfig(TrainConfig):  # without a docstring: --help shows TrainConfig's
    def _check_steps(self) -> None:
        """Does nothing: the steps of each run are set later, as a multiple of steps_per_execution."""


def _shared(preset: str, held_out: int) -> TrainConfig:
    """Returns the run that all variants start from."""
    run = TRAIN_PRESETS[preset]
    data = dataclasses.replace(run.data, validation_examples=held_out)
    return _SharedConfig(**vars(run) | {"data": data})


@dataclasses.dataclass(frozen=True)
class AblationConfig:
    """Which experiment to run, and of what size.

    Attributes:
      train: The config that all runs share. Its seed is the first, and the learning rates are chosen on its
        validation_examples. The experiment sets learning rates, steps and evaluations.
      experiment: statements: each choice of Hardt & Ma changed in turn; rivals: other networks on the same images;
        norms: the norms of Li et al., Figure 2; initializers: the small initialiser compared with later ones, such as
        Fixup's and ReZero's.
      operations: Floating-point operations of the convolutions in each run, forward and backward; they determine the
        number of steps, except for norms.
      norms_steps: With norms: number of steps of each run; the learning rate drops at 81 and 122 200ths of them. The
        paper's 200 epochs are 78,000 steps.
      search_operations: The same for each run that tries a learning rate (0: half as many as operations).
      num_seeds: Number of runs of each variant at its best learning rate, evaluated on the test images.
      only: Names of the variants to run, with commas between them (empty: all).
    """

    ALIASES: ClassVar = {"seeds": "num_seeds"}
    WITHOUT_FLAGS: ClassVar = FIXED_BY_EXPERIMENTS

    train: TrainConfig = _shared("cifar10_fast", held_out=5_000)
    experiment: Literal["statements", "rivals", "norms", "initializers"] = "statements"
    operations: float = option(3e13, at_least=1)
    search_operations: float = option(0.0, at_least=0)
    norms_steps: int = option(NORMS_STEPS, at_least=5)
    num_seeds: int = option(3, at_least=1, at_most=10_000, compared=False)
    only: str = option("", compared=False)

    def __post_init__(self) -> None:
        check_fields(self)
        searched = any(len(variant.rates) > 1 for variant in EXPERIMENTS[self.experiment])
        if searched and not self.train.data.validation_examples:
            raise UserError("validation_examples must be at least 1: the learning rates are chosen on them")
        if self.norms_steps != NORMS_STEPS and self.experiment != "norms":
            raise UserError(f"norms_steps is for --experiment=norms; --operations sets the steps of {self.experiment}")
        names = [variant.name for variant in EXPERIMENTS[self.experiment]]
        chosen = split_names(self.only)
        if self.only and not chosen:
            raise UserError(f"only names no variant, got {self.only!r}; leave it empty for all of them")
        unknown = [name for name in chosen if name not in names]
        if unknown:
            near = dict.fromkeys(match for name in unknown for match in difflib.get_close_matches(name, names))
            hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
            given = ", ".join(map(repr, unknown))
            raise UserError(f"only names {given}; {hint}the variants of {self.experiment} are {', '.join(names)}")

    @property
    def variants(self) -> list[Variant]:
        """Returns the variants to compare."""
        names = split_names(self.only)
        variants = EXPERIMENTS[self.experiment]
        if self.norms_steps != NORMS_STEPS:
            variants = norms(self.norms_steps)
        return [variant for variant in variants if not names or variant.name in names]

    def unused_fields(self) -> dict[str, str]:
        """Returns the fields that a variant of the experiment sets, and why they take no other value.

        This includes fields that another variant leaves at its default, because the variant's name states the value.
        """
        variants = EXPERIMENTS[self.experiment]
        names = set().union(*(variant.model.keys() | variant.train.keys() for variant in variants))
        return dict.fromkeys(sorted(names), "set by the experiment: see --operations and experiments/variants.py")


# Of launch.ablations: the run that all variants start from. The first is that of the experiments.
PRESETS = {
    name: AblationConfig(train=_shared(name, held_out))
    for name, held_out in (("cifar10_fast", 5_000), ("cifar10", 5_000), ("mnist", 1_000))
}
