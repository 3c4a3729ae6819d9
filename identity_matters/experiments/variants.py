"""The variants that launch.ablations compares: networks, and ways to train them."""

import dataclasses
from typing import Any

from identity_matters.config import TrainConfig
from identity_matters.fields import with_fields

MUON_RATES = (0.015, 0.03, 0.06)
SGD_RATES = (0.05, 0.1, 0.2)


@dataclasses.dataclass(frozen=True)
class Variant:
    """One network, or one way to train it.

    Attributes:
      name: As tables and figures show it, without commas; its runs are in directories of that name.
      rates: Learning rates that it is tried at; of several, the best on held-out images is taken.
      model: Fields of the ModelConfig that differ from the base, and their values.
      train: The same of the TrainConfig; if it sets train_steps, these replace the number that operations would give.
      evaluations: How many of each run on the test images; a search evaluates only at its end.
    """

    name: str
    rates: tuple[float, ...] = MUON_RATES
    model: dict[str, Any] = dataclasses.field(default_factory=dict)
    train: dict[str, Any] = dataclasses.field(default_factory=dict)
    evaluations: int = 4

    def config(self, base: TrainConfig, rate: float) -> TrainConfig:
        """Returns the run of this variant at a learning rate."""
        return with_fields(base, learning_rate=rate, **self.model, **self.train)

    @property
    def directory(self) -> str:
        """Returns the name as a part of a path."""
        return "".join(letter if letter.isalnum() else "_" for letter in self.name)


_MUON = {"optimizer": "muon"}  # stated, because a preset whose optimiser is another one can be the base too
# Keras's momentum, with which the experiments of docs/runs were run; identity_matters/momentum.py has the difference.
_SGD = {"optimizer": "keras_momentum", "momentum": 0.9, "decoupled_weight_decay": 0.0, "clip_norm": 0.0}
_CLIPPED = _SGD | {"clip_norm": 1.0}
_DECAYED = {"weight_decay": 1e-4}  # as Hardt & Ma and the papers of the ResNets


def _with_sgd(name: str, model: dict[str, Any], train: dict[str, Any], rates: tuple[float, ...] = SGD_RATES) -> Variant:
    return Variant(name, rates, _DECAYED | model, train)


def _of_depth(blocks: int, width: int) -> dict[str, Any]:
    """The fields of a network with `blocks` blocks in each of three stages, `width` channels in the first."""
    return {"blocks_per_stage": (blocks,) * 3, "widths": (width, 2 * width, 4 * width), "stem_width": width}


def _statement(name: str, blocks: int = 2, width: int = 24, **model: Any) -> Variant:
    return Variant(name, model=_of_depth(blocks, width) | model, train=_MUON)


# Hardt & Ma's statements (§4.1 and §4.2): the effect of each of their choices, each variant at its best learning rate.
# "BN-free" has their small initialiser, a fixed projection and no normalisation, and is trained with Muon, whose
# decoupled weight decay was chosen for it; the variants of the network share that. It is half as wide as cifar10_fast,
# so that few operations are enough epochs to leave the saddle at zero far behind.
_BATCH_NORM = {"use_batch_norm": True}
_STANDARD = {"residual_initializer": "standard"}
_PLAIN = {"shortcut": False}
_TRAINED = {"train_projection": True}
STATEMENTS = (
    _statement("BN-free"),
    _statement("standard initializer", **_STANDARD),
    _statement("zero initializer", residual_initializer="zero"),
    _statement("trained projection", **_TRAINED),
    _statement("batch norm with small initializer", **_BATCH_NORM),
    _statement("batch norm with standard initializer", **_BATCH_NORM, **_STANDARD),
    _statement("no shortcuts", **_PLAIN),
    _statement("no shortcuts with standard initializer", **_PLAIN, **_STANDARD),
    _with_sgd("momentum SGD", _of_depth(2, 24), _SGD),
    # The paper trained with momentum SGD, without clipping, when it saw that the small initialiser helped.
    _with_sgd("momentum SGD with standard initializer", _of_depth(2, 24) | _STANDARD, _SGD),
    _with_sgd("clipped momentum SGD", _of_depth(2, 24), _CLIPPED),
    _with_sgd("clipped momentum SGD with standard initializer", _of_depth(2, 24) | _STANDARD, _CLIPPED),
    # Depth at equal operations: more and narrower blocks, in as many steps as the operations allow.
    _statement("1 block a stage", blocks=1, width=32),
    _statement("1 block a stage with standard initializer", blocks=1, width=32, **_STANDARD),
    _statement("4 blocks a stage", blocks=4, width=16),
    _statement("4 blocks a stage with standard initializer", blocks=4, width=16, **_STANDARD),
    _statement("9 blocks a stage", blocks=9, width=12),
    _statement("9 blocks a stage with standard initializer", blocks=9, width=12, **_STANDARD),
    # The paper's sentence on the small initialiser at the paper's 55 convolutions and with its optimiser. Unclipped,
    # the network with the standard one diverges in its first steps at 0.004, a twelfth of the paper's rate, so lower
    # ones are tried too.
    _with_sgd("9 blocks a stage with momentum SGD", _of_depth(9, 12), _SGD),
    _with_sgd(
        "9 blocks a stage with momentum SGD and standard initializer",
        _of_depth(9, 12) | _STANDARD,
        _SGD,
        (0.001, 0.002, 0.004, *SGD_RATES),
    ),
    _with_sgd("9 blocks a stage with clipped momentum SGD", _of_depth(9, 12), _CLIPPED),
    _with_sgd(
        "9 blocks a stage with clipped momentum SGD and standard initializer", _of_depth(9, 12) | _STANDARD, _CLIPPED
    ),
    # The rest of a ladder from the batch-normalised network to the paper's, one choice changed at a time.
    _with_sgd(
        "9 blocks a stage with momentum SGD and batch norm and standard initializer",
        _of_depth(9, 12) | _BATCH_NORM | _STANDARD,
        _SGD,
    ),
    _with_sgd("9 blocks a stage with momentum SGD and batch norm", _of_depth(9, 12) | _BATCH_NORM, _SGD),
    _with_sgd("9 blocks a stage with momentum SGD and trained projection", _of_depth(9, 12) | _TRAINED, _SGD),
    _with_sgd(
        "9 blocks a stage with clipped momentum SGD and trained projection", _of_depth(9, 12) | _TRAINED, _CLIPPED
    ),
)

# Other networks on the same images, each with the SGD of its paper, in batches of 128 as steps are few, and with Muon,
# so that networks are compared and not optimisers. All-CNN-C's rates and weight decay are its authors'. Its gradient is
# clipped: without that the ReLUs of its logits die in the first steps at 0.01, and it diverges at 0.1.
_SGD_128, _CLIPPED_128 = (settings | {"batch_size": 128} for settings in (_SGD, _CLIPPED))
_ALL_CNN_C = {"network": "all_cnn_c", "weight_decay": 1e-3}
RIVALS = (
    Variant("BN-free", train=_MUON),
    Variant("batch norm with standard initializer", model=_BATCH_NORM | _STANDARD, train=_MUON),
    _with_sgd("BN-free with clipped momentum SGD", {}, _CLIPPED_128),
    _with_sgd("batch norm with standard initializer and SGD", _BATCH_NORM | _STANDARD, _SGD_128),
    _with_sgd("All-CNN-C with clipped SGD", _ALL_CNN_C, _CLIPPED_128, (0.01, 0.05, 0.1, 0.25)),
    _with_sgd("ResNet-20 with SGD", {"network": "resnet_20"}, _SGD_128),
    _with_sgd("pre-activation ResNet-20 with SGD", {"network": "preact_resnet_20"}, _SGD_128),
    Variant("All-CNN-C with Muon", model={"network": "all_cnn_c"}, train=_MUON),
    Variant("ResNet-20 with Muon", model={"network": "resnet_20"}, train=_MUON),
    Variant("pre-activation ResNet-20 with Muon", model={"network": "preact_resnet_20"}, train=_MUON),
)

NORMS_STEPS = 1_950  # 5 epochs; the 200 of Li et al. are 78,000


def norms(num_steps: int) -> tuple[Variant, ...]:
    """Returns the variants of Figure 2 of Li et al., each trained for num_steps updates, with the schedule scaled.

    Average Frobenius norms of pre-activation ResNets during training, at the paper's learning rate, which drops at 81
    and 122 of 200 epochs, as theirs does. In 5 epochs weight decay has no time to act. Beside them the BN-free network,
    of as many convolutions, with the same SGD, clipped.
    """
    dropping = {"train_steps": num_steps, "batch_size": 128, "eval_examples": 1_000, "schedule": "piecewise"}
    dropping |= {"decay_steps": (num_steps * 81 // 200, num_steps * 122 // 200)}

    def variant(name: str, model: dict[str, Any], train: dict[str, Any]) -> Variant:
        return Variant(name, (0.1,), _DECAYED | model, dropping | train, evaluations=30)

    resnets = (
        variant(f"pre-activation ResNet-{depth}", {"network": f"preact_resnet_{depth}"}, _SGD)
        for depth in (8, 14, 20, 32)
    )
    bn_free = (
        variant(f"BN-free of {6 * blocks + 2} layers", _of_depth(blocks, 16) | {"stem_pool": 1}, _CLIPPED)
        for blocks in (1, 2, 3, 5)
    )
    return (*resnets, *bn_free)


NORMS = norms(NORMS_STEPS)

# The paper's small initialiser beside later rules of the same idea, at the paper's 55 convolutions and with its
# optimiser, unclipped, so that the initialisation matters. All are tried at the same learning rates. Narrow, and in
# batches of 32, so that few operations are many steps.
_INITIALIZERS = {"small": "small", "standard": "standard", "zero": "zero", "Fixup": "fixup", "ReZero": "rezero"}
INITIALIZERS = tuple(
    _with_sgd(
        name,
        _of_depth(9, 8) | {"residual_initializer": initializer},
        _SGD | {"batch_size": 32},
        (0.003, 0.025, 0.05, 0.1),
    )
    for name, initializer in _INITIALIZERS.items()
)

EXPERIMENTS = {"statements": STATEMENTS, "rivals": RIVALS, "norms": NORMS, "initializers": INITIALIZERS}


def depths() -> dict[str, dict[str, int]]:
    """Returns, by initialiser, the number of convolutions of the statements' variants that differ only in depth."""
    sizes = set(_of_depth(1, 1))
    by_family = {"small": {}, "standard": {}}
    for variant in EXPERIMENTS["statements"]:
        initializer = variant.model.get("residual_initializer", "small")
        others = variant.model.keys() - sizes - {"residual_initializer"}
        if sizes <= variant.model.keys() and initializer in by_family and not others and variant.train == _MUON:
            by_family[initializer][variant.name] = 1 + 2 * sum(variant.model["blocks_per_stage"])
    return by_family
