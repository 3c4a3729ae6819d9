"""What a network and a training run are made of: two frozen dataclasses and the presets.

They stand apart from model.py and training.py, which export them, because a launcher
builds its flags from them and `--help` must not wait for TensorFlow.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, Literal

from identity_matters.errors import UserError
from identity_matters.fields import check_fields, from_json, require

# The fields of a run on data that no config names.
NO_PLACE: Mapping[str, Any] = dict(data_dir="", npz="", images="", test_share=0.0, train_split="", test_split="")
MAX_CLASSES = 100_000  # a label above is taken for a mistake: the last layer has a row for each class


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The all-convolutional residual network; the defaults are Hardt & Ma's Table 1.

    Attributes:
      image_shape: (height, width, channels) of the input. Set from the data by train and by a launcher; only then, or
        where the network is built, must the strides divide it.
      num_classes: Number of logits. Set from the data set by a launcher.
      network: all_conv_resnet, or one that either paper compares its own with (identity_matters.comparators), for
        which of the fields below weight_decay and mixed_precision alone are read.
      stem_width: Output channels of the first convolution.
      stem_kernel_size: Kernel size of the first convolution, pixels.
      stem_stride: Stride of the first convolution.
      stem_pool: Average pooling after the first convolution, pixels (1: none).
      widths: Output channels of each stage; every stage but the first halves the resolution.
      blocks_per_stage: Residual blocks in each stage.
      convs_per_block: Convolutions that a shortcut passes, with a ReLU between them; the paper has two.
      residual_initializer: small: Gaussian, σ = 1/(k²c), the paper's; standard: σ = 1/(k√c); zero: standard, but the
        last convolution of each block starts at 0, so each block starts as its shortcut; rezero: standard, each branch
        times a trained number that starts at 0, as in ReZero and SkipInit; fixup: zero, with the scale, the biases and
        the multiplier of Fixup. model.residual_block says which parts of these papers are taken.
      train_projection: Train the last layer; the paper leaves it at its random values.
      projection_scale: Factor on the initial values of the last layer, so on the logits.
      shortcut: Residual blocks; without it the plain network, ReLU in place of each addition.
      use_batch_norm: Batch normalisation after each convolution, the paper's comparison.
      weight_decay: λ of the penalty (λ/2)·‖w‖² on every convolution kernel.
      mixed_precision: Compute the convolutions in bfloat16; weights, sums, averages and dense layers stay float32.
        Faster on a GPU. On a CPU it depends: some with avx512_bf16 in /proc/cpuinfo are 1.6 times as fast, others
        slower; python -m benchmarks.train_step measures it.
    """

    image_shape: tuple[int, int, int] = dataclasses.field(default=(32, 32, 3), metadata={"flag": False})
    num_classes: int = dataclasses.field(default=10, metadata={"flag": False})
    network: Literal[
        "all_conv_resnet", "all_cnn_c", "resnet_20", "resnet_32", "resnet_44", "resnet_56", "resnet_110",
        "preact_resnet_8", "preact_resnet_14", "preact_resnet_20", "preact_resnet_32", "densenet_bc_100_12",
    ] = "all_conv_resnet"  # fmt: skip
    stem_width: int = 16
    stem_kernel_size: int = 3
    stem_stride: int = 1
    stem_pool: int = 1
    widths: tuple[int, ...] = (64, 128, 256)
    blocks_per_stage: tuple[int, ...] = (9, 9, 9)
    convs_per_block: int = 2
    residual_initializer: Literal["small", "standard", "zero", "fixup", "rezero"] = "small"
    train_projection: bool = False
    projection_scale: float = 1.0
    shortcut: bool = True
    use_batch_norm: bool = False
    weight_decay: float = 1e-4
    mixed_precision: bool = False

    def __post_init__(self) -> None:
        stem = ("stem_width", "stem_kernel_size", "stem_stride", "stem_pool")
        check_fields(
            self,
            at_least_1=("num_classes", *stem, "convs_per_block", "widths", "blocks_per_stage"),
            at_least_0=("weight_decay",),
            above_0=("projection_scale",),
            at_most={"blocks_per_stage": 10_000, "widths": 2**20, "stem_width": 2**20, "convs_per_block": 1_000},
        )
        require(
            len(self.widths) == len(self.blocks_per_stage),
            f"widths and blocks_per_stage need one number per stage, got {self.widths} and {self.blocks_per_stage}",
        )
        require(self.projection_scale <= 1e9, f"projection_scale must be at most 1e9, got {self.projection_scale}")
        is_growing = list(self.widths) == sorted(self.widths) and self.stem_width <= self.widths[0]
        require(
            not self.shortcut or is_growing or self.network != "all_conv_resnet",
            f"shortcuts pad with zero channels, so widths must not decrease, got {(self.stem_width,) + self.widths}",
        )
        require(
            self.shortcut or self.residual_initializer in ("small", "standard"),
            f"without shortcuts the initializer {self.residual_initializer!r} makes every gradient 0; choose small or "
            "standard",
        )
        require(
            len(self.image_shape) == 3 and min(self.image_shape) >= 1,
            f"image_shape must be (height, width, channels), got {self.image_shape}",
        )


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One training run; the defaults are the paper's CIFAR-10 run (Hardt & Ma §4.1).

    Attributes:
      model: The network.
      dataset: mnist_sample (5,000 real digits, embedded), or any TFDS image-classification set.
      data_dir: Where TFDS keeps prepared data sets (empty: TFDS's default).
      npz: A file of your own data in place of a dataset: train_images, train_labels, test_images, test_labels; images
        [n,h,w] or [n,h,w,c], integers in 0–255, booleans, or floats in 0–1 or 0–255.
      images: A folder of your own images in place of a dataset: PNG or JPEG files in a folder for each class, these in
        train/ and test/, or, with test_share, in the folder itself. Images of several sizes need image_size.
      test_share: Of images without train/ and test/: test on this share of them, chosen by their names, so that further
        images move no others.
      train_split: Of images or a dataset, the split to train on, by name (empty: train).
      test_split: Of images or a dataset, the split to evaluate on, by name (empty: test, or what the dataset has).
      download: Let TFDS download and prepare a data set that is not under data_dir.
      image_size: Resize every image to this many pixels a side (0: as in the data set).
      num_classes: Number of classes of npz, where the training labels lack the last ones (0: their largest + 1).
      train_examples: Train on the first N examples (0: all).
      validation_examples: Keep the last N training examples out of training and evaluate on them in place of the
        test examples, to choose settings by (0: evaluate on the test examples).
      crop_padding: Zero-pad training images by N pixels on each side, then crop at random. Sets whose images vary in
        size are cropped as ImageNet is, and ignore this.
      random_flip: Mirror half of the training images, left to right.
      train_steps: Gradient updates in all.
      batch_size: Examples per update.
      optimizer: momentum: SGD with momentum; nesterov: the same with Nesterov's; muon: Nesterov's momentum,
        orthogonalised for each convolution kernel, plain for other variables.
      keras_optimizer: What `train` was given in place of the optimiser or the schedule, as keras.saving writes it.
      learning_rate: Initial learning rate.
      momentum: Momentum of the optimiser.
      newton_schulz_steps: muon: steps of the iteration that orthogonalises.
      decoupled_weight_decay: λ of w ← (1 − rate·λ) w for each convolution kernel, outside the loss; to be given with
        muon in place of weight_decay, which orthogonalised steps hardly feel.
      schedule: piecewise: multiply the rate by decay_factor at each of decay_steps; exponential: every decay_steps
        steps; constant; linear, cosine: down to 0 at train_steps.
      decay_steps: piecewise: the steps of the drops; exponential: one number, the interval.
      decay_factor: What the learning rate is multiplied by at a drop.
      warmup_steps: Raise the rate linearly over the first N steps (0: off).
      clip_norm: Largest global norm of a gradient; longer ones are scaled down (0: off).
      init_from: Begin with the weights of another network, as far as names and shapes are the same: the directory of a
        run, a model.keras, or the name of a network that ships with the package (empty: with random weights).
      freeze: Do not train the layers whose names begin with one of these, e.g. stem,stage1 (empty: train all).
      seed: Seed of the initial weights, the order of the examples and their augmentation.
      eval_every: Evaluate every N steps, and after the last.
      eval_examples: Evaluate on the first N test examples (0: all).
      checkpoint_every: Save a checkpoint every N steps, and after the last.
      jit_compile: Compile with XLA: auto is on for JAX and off for TensorFlow, under which on is refused: Keras leaves
        XLA off where runs are deterministic, and on a CPU it is slower.
      steps_per_execution: Steps per call into the compiled program; saves overhead on an accelerator.
      strategy: How several workers train: synchronous: all of them on shares of each batch; parameter_server: each on
        batches of its own, without waiting for the others.
    """

    model: ModelConfig = ModelConfig()
    dataset: str = "cifar10"
    data_dir: str = ""
    npz: str = ""
    images: str = ""
    test_share: float = 0.0
    train_split: str = ""
    test_split: str = ""
    download: bool = False
    image_size: int = 0
    num_classes: int = 0
    train_examples: int = 0
    validation_examples: int = 0
    crop_padding: int = 2
    random_flip: bool = True
    train_steps: int = 50_000
    batch_size: int = 128
    optimizer: Literal["momentum", "nesterov", "muon"] = "momentum"
    keras_optimizer: str = dataclasses.field(default="", metadata={"flag": False})
    learning_rate: float = 0.05
    momentum: float = 0.9
    newton_schulz_steps: int = 5
    decoupled_weight_decay: float = 0.0
    schedule: Literal["piecewise", "exponential", "constant", "linear", "cosine"] = "piecewise"
    decay_steps: tuple[int, ...] = (30_000,)
    decay_factor: float = 0.1
    warmup_steps: int = 0
    clip_norm: float = 0.0
    init_from: str = ""
    freeze: str = ""
    seed: int = 0
    eval_every: int = 1_000
    eval_examples: int = 0
    checkpoint_every: int = 1_000
    jit_compile: Literal["auto", "on", "off"] = "auto"
    steps_per_execution: int = 1
    strategy: Literal["synchronous", "parameter_server"] = "synchronous"

    def __post_init__(self) -> None:
        check_fields(
            self,
            at_least_1=(
                "train_steps", "batch_size", "eval_every", "checkpoint_every", "steps_per_execution",
                "newton_schulz_steps",
            ),
            at_least_0=(
                "image_size", "num_classes", "train_examples", "validation_examples", "crop_padding", "clip_norm",
                "seed", "eval_examples", "warmup_steps", "decoupled_weight_decay", "test_share",
            ),
            above_0=("learning_rate", "decay_factor"),
            at_most={
                "batch_size": 2**20, "image_size": 2**13, "num_classes": MAX_CLASSES, "crop_padding": 2**13,
                "newton_schulz_steps": 100,
            },
        )  # fmt: skip
        require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), got {self.momentum}")
        require(
            all(a < b for a, b in zip((0,) + self.decay_steps, self.decay_steps)),
            f"decay_steps must be positive and increase, got {self.decay_steps}",
        )
        require(
            self.schedule != "exponential" or len(self.decay_steps) == 1,
            f"the exponential schedule takes one number of decay_steps, got {self.decay_steps}",
        )
        self._check_data()
        self._check_strategy()
        self._check_steps()

    def continued(self, fields: dict[str, Any]) -> tuple[str, ...]:
        """Returns the fields in which a run may differ from an earlier one of these fields and yet go on with it.

        A longer run makes the same updates as far as the earlier one came, unless its schedule ends with it.
        """
        try:
            old = from_json(TrainConfig(), fields)
        except UserError:  # it is of another version, or damaged
            return ()
        if self.train_steps <= old.train_steps or self.schedule in ("linear", "cosine"):
            return ()
        drops = [[step for step in steps if step < old.train_steps] for steps in (old.decay_steps, self.decay_steps)]
        return ("train_steps", "decay_steps") if drops[0] == drops[1] else ("train_steps",)

    def _check_data(self) -> None:
        require(not (self.npz and self.images), "npz and images are both given; give one of them")
        require(self.test_share < 1, f"test_share must be below 1, got {self.test_share:g}")
        require(not self.test_share or bool(self.images), f"test_share {self.test_share:g} needs images, a folder")
        name = self.train_split
        require(not name or name != self.test_split, f"train_split and test_split are both {name!r}; name two")
        for field in ("train_split", "test_split"):
            word = getattr(self, field)
            require(re.fullmatch(r"[\w.-]*", word) is not None, f"{field} must be the name of a split, got {word!r}")
        splits = self.train_split or self.test_split
        require(not (self.npz and splits), f"an npz has no splits by name, got {splits!r}; leave that out")

    def _check_strategy(self) -> None:
        if self.strategy == "synchronous":
            return
        require(
            self.optimizer != "muon" and not self.decoupled_weight_decay and not self.keras_optimizer,
            f"strategy {self.strategy} applies each gradient where the weights are, by SGD with momentum: "
            "optimizer muon, decoupled_weight_decay and an optimiser of Keras's cannot be used with it",
        )
        require(
            self.steps_per_execution == 1,
            f"strategy {self.strategy} hands out one step at a time: steps_per_execution must be 1, "
            f"got {self.steps_per_execution}",
        )

    def _check_steps(self) -> None:
        require(
            self.warmup_steps < self.train_steps or not self.warmup_steps,
            f"warmup_steps must be below train_steps = {self.train_steps:,}, got {self.warmup_steps:,}",
        )
        for name in ("train_steps", "eval_every", "checkpoint_every"):
            require(
                getattr(self, name) % self.steps_per_execution == 0,
                f"{name} must be a multiple of steps_per_execution = {self.steps_per_execution}, "
                f"got {getattr(self, name)}",
            )


# Fields that are read whatever the network; the others describe all_conv_resnet alone.
_READ_BY_EVERY_NETWORK = {"image_shape", "num_classes", "network", "weight_decay", "mixed_precision"}


def ignored_fields(config: TrainConfig) -> dict[str, str]:
    """Returns the fields of a run and of its network that are not read, and why.

    >>> ignored_fields(TrainConfig(schedule="cosine", decay_steps=()))["decay_factor"]
    'schedule is cosine'
    """
    ignored: dict[str, str] = {}
    if config.schedule not in ("piecewise", "exponential"):
        ignored |= dict.fromkeys(("decay_steps", "decay_factor"), f"schedule is {config.schedule}")
    if config.optimizer != "muon":
        ignored["newton_schulz_steps"] = f"optimizer is {config.optimizer}"
    if config.npz:
        ignored |= dict.fromkeys(("dataset", "data_dir", "download"), "npz has the data")
    elif config.images:
        ignored |= dict.fromkeys(("dataset", "data_dir", "download"), "images has the data")
    elif config.dataset == "mnist_sample":
        ignored |= dict.fromkeys(("train_split", "test_split"), "dataset is mnist_sample, which has two splits")
        ignored["download"] = "dataset is mnist_sample, which comes with a package"
    if config.model.residual_initializer == "fixup" and config.model.train_projection:
        ignored["projection_scale"] = "residual_initializer is fixup, which starts a trained projection at 0"
    if config.model.network != "all_conv_resnet":
        names = {field.name for field in dataclasses.fields(ModelConfig)} - _READ_BY_EVERY_NETWORK
        ignored |= dict.fromkeys(sorted(names), f"network is {config.model.network}")
    return ignored
