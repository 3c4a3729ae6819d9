"""The configs of a network, its data and a training run: frozen dataclasses, whose rules stand beside their fields.

They are kept apart from model.py and training.py, which export them, because the launchers build
their flags from them, and `--help` must not wait until TensorFlow is imported.
"""

import dataclasses
import re
from typing import Any, Literal

from identity_matters.errors import UserError
from identity_matters.fields import check_fields, from_json, option, require

MAX_CLASSES = 100_000  # a label above is taken for a mistake: the last layer has a row for each class


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The all-convolutional residual network; the defaults are Hardt & Ma's Table 1.

    Attributes:
      image_shape: (height, width, channels) of the input. Set from the data by train and by a launcher; only then, or
        where the network is built, must the strides divide it.
      num_classes: Number of logits. Set from the data set by a launcher.
      network: Architecture: all_conv_resnet is the paper's; the others are networks that one of the papers compares
        with (identity_matters.comparators). They use only the fields weight_decay and mixed_precision.
      stem_width: Output channels of the first convolution.
      stem_kernel_size: Kernel size of the first convolution, in pixels.
      stem_stride: Stride of the first convolution.
      stem_pool: Size of the average pooling after the first convolution, in pixels (1: none).
      widths: Output channels of each stage; every stage after the first halves the resolution.
      blocks_per_stage: Number of residual blocks in each stage.
      convs_per_block: Number of convolutions in each residual block, with a ReLU between them; the paper has two.
      residual_initializer: Initial values of the residual convolutions. small: Gaussian, σ = 1/(k²c), the paper's;
        standard: σ = 1/(k√c); zero: standard, but the last convolution of each block is 0, so each block starts as its
        shortcut; rezero: standard, with each branch multiplied by a trained number that starts at 0, as in ReZero and
        SkipInit; fixup: zero, with the scale, the biases and the multiplier of Fixup. model.residual_block says which
        parts of these papers are used.
      train_projection: Train the last layer; the paper keeps its random initial values.
      projection_scale: Factor on the initial values of the last layer, and so on the logits.
      shortcut: Add shortcuts; without them the network is plain, with a ReLU in place of each addition.
      use_batch_norm: Add batch normalisation after each convolution; the paper's network has none.
      weight_decay: λ of the penalty (λ/2)·‖w‖² that each convolution kernel adds to the loss.
      mixed_precision: Compute the convolutions in bfloat16; weights, sums, averages and dense layers stay in float32.
        Faster on a GPU. On a CPU it depends: some with avx512_bf16 in /proc/cpuinfo are 1.6 times as fast, others
        slower; python -m benchmarks.train_step measures it.
    """

    image_shape: tuple[int, int, int] = option((32, 32, 3), at_least=1, flag=False)
    num_classes: int = option(10, at_least=1, flag=False)
    network: Literal[
        "all_conv_resnet", "all_cnn_c", "resnet_20", "resnet_32", "resnet_44", "resnet_56", "resnet_110",
        "preact_resnet_8", "preact_resnet_14", "preact_resnet_20", "preact_resnet_32", "densenet_100_24",
        "densenet_bc_100_12",
    ] = "all_conv_resnet"  # fmt: skip
    stem_width: int = option(16, at_least=1, at_most=2**20)
    stem_kernel_size: int = option(3, at_least=1)
    stem_stride: int = option(1, at_least=1)
    stem_pool: int = option(1, at_least=1)
    widths: tuple[int, ...] = option((64, 128, 256), at_least=1, at_most=2**20)
    blocks_per_stage: tuple[int, ...] = option((9, 9, 9), at_least=1, at_most=10_000)
    convs_per_block: int = option(2, at_least=1, at_most=1_000)
    residual_initializer: Literal["small", "standard", "zero", "fixup", "rezero"] = "small"
    train_projection: bool = False
    projection_scale: float = option(1.0, above=0, at_most=1e9)
    shortcut: bool = True
    use_batch_norm: bool = False
    weight_decay: float = option(1e-4, at_least=0)
    mixed_precision: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        require(
            len(self.widths) == len(self.blocks_per_stage),
            f"widths and blocks_per_stage need one number per stage, got {self.widths} and {self.blocks_per_stage}",
        )
        is_growing = list(self.widths) == sorted(self.widths) and self.stem_width <= self.widths[0]
        require(
            not self.shortcut or is_growing or self.network != "all_conv_resnet",
            "shortcuts pad with zero channels, so widths must not decrease or begin below stem_width, got "
            f"{self.widths} and stem_width {self.stem_width}",
        )
        require(
            self.shortcut or self.residual_initializer in ("small", "standard"),
            f"without shortcuts the initializer {self.residual_initializer!r} makes every gradient 0; choose small or "
            "standard",
        )
        shape = f"image_shape must be (height, width, channels), got {self.image_shape}"
        require(len(self.image_shape) == 3, shape)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which images to train and to evaluate on; identity_matters.data.source opens them.

    Attributes:
      dataset: mnist_sample (5,000 real digits that come with a package), or the name of any TFDS image-classification
        data set.
      data_dir: Where TFDS keeps prepared data sets (empty: TFDS's default).
      npz: An .npz file of your own data in place of a dataset: train_images, train_labels, test_images, test_labels;
        images [n,h,w] or [n,h,w,c], integers in 0–255, booleans, or floats in 0–1 or 0–255.
      images: A folder of your own images in place of a dataset: PNG or JPEG files, with one folder for each class. The
        class folders are in train/ and test/ or, with test_share, in the folder itself. Images of several sizes need
        image_size.
      test_share: With images that have no train/ and test/: the share of them to test on. It is chosen by file name, so
        that adding images moves no others from one split to the other.
      train_split: Name of the split to train on, of a dataset or of images (empty: train).
      test_split: Name of the split to evaluate on, of a dataset or of images (empty: test, or what the dataset has).
      download: Let TFDS download and prepare a data set that is not under data_dir.
      image_size: Resize every image to this many pixels a side (0: as in the data set).
      num_classes: Number of classes of npz, needed if the training labels lack the last ones (0: their largest + 1).
      train_examples: Train on the first N training examples (0: all).
      validation_examples: Hold out the last N training examples and evaluate on them in place of the test examples, to
        choose settings by (0: evaluate on the test examples).
      eval_examples: Evaluate on the first N test examples (0: all).
    """

    dataset: str = "cifar10"
    data_dir: str = option("", path=True, compared=False)
    npz: str = option("", path=True)
    images: str = option("", path=True)
    test_share: float = option(0.0, at_least=0, at_most=1)
    train_split: str = ""
    test_split: str = ""
    download: bool = option(False, compared=False)
    image_size: int = option(0, at_least=0, at_most=2**13)
    num_classes: int = option(0, at_least=0, at_most=MAX_CLASSES)
    train_examples: int = option(0, at_least=0)
    validation_examples: int = option(0, at_least=0)
    eval_examples: int = option(0, at_least=0)

    def __post_init__(self) -> None:
        check_fields(self)
        require(not (self.npz and self.images), "npz and images are both given; give one of them")
        require(not self.test_share or bool(self.images), f"test_share {self.test_share:g} needs images, a folder")
        name = self.train_split
        require(not name or name != self.test_split, f"train_split and test_split are both {name!r}; name two splits")
        for field in ("train_split", "test_split"):
            word = getattr(self, field)
            require(re.fullmatch(r"[\w.-]*", word) is not None, f"{field} must be the name of a split, got {word!r}")
        splits = self.train_split or self.test_split
        require(not (self.npz and splits), f"an npz has no named splits, got {splits!r}; leave it out")


# Fields that every network uses; the others describe only all_conv_resnet.
_READ_BY_EVERY_NETWORK = {"image_shape", "num_classes", "network", "weight_decay", "mixed_precision"}


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """One training run; the defaults are the paper's CIFAR-10 run (Hardt & Ma §4.1).

    Attributes:
      model: The network.
      data: The images.
      crop_padding: Pad training images with N pixels of zeros on each side, then crop at random. Data sets whose images
        vary in size are cropped as ImageNet is, and ignore this.
      random_flip: Mirror half of the training images, chosen at random, left to right.
      train_steps: Number of gradient updates in all.
      batch_size: Examples per gradient update.
      optimizer: momentum: SGD with momentum as in the original TensorFlow code, v ← μv + g, w ← w − ηv, which applies
        the present learning rate to all of v; keras_momentum: as in Keras's SGD, v ← μv − ηg, w ← w + v, which differs
        after a drop of η (the runs of docs/runs used it); nesterov: Keras's SGD with Nesterov's momentum; muon:
        Nesterov's momentum, orthogonalised for each convolution kernel and unchanged for other variables.
      keras_optimizer: The Keras optimiser or schedule that `train` was given, as keras.saving writes it.
      learning_rate: Initial learning rate.
      momentum: Momentum of the optimiser.
      newton_schulz_steps: With muon: number of Newton–Schulz steps that orthogonalise an update.
      decoupled_weight_decay: λ of w ← (1 − rate·λ) w for each convolution kernel, outside the loss. Use it with muon in
        place of weight_decay, which has little effect there.
      schedule: piecewise: multiply the learning rate by decay_factor at each of decay_steps; exponential: every
        decay_steps steps; constant: keep it; linear, cosine: reduce it to 0 at train_steps.
      decay_steps: With piecewise, the steps at which the learning rate drops; with exponential, one number, the steps
        between drops.
      decay_factor: Factor by which the learning rate is multiplied at each drop.
      warmup_steps: Increase the learning rate linearly over the first N steps (0: off).
      clip_norm: Scale gradients down to this global norm if theirs is larger (0: off).
      init_from: Start with the weights of another network, for all variables whose name and shape agree: the directory
        of a run, a model.keras, or the name of a network that ships with the package (empty: random weights).
      fresh: With init_from: layers whose names begin with one of these prefixes keep their own initial weights, e.g.
        projection, the last layer: other classes, even if there are as many, begin anew.
      freeze: Do not train layers whose names begin with one of these prefixes, e.g. stem,stage1 (empty: train all).
      seed: Seed of the initial weights, the order of the examples and the augmentation.
      eval_every: Evaluate every N steps, and after the last step.
      checkpoint_every: Save a checkpoint every N steps, and after the last step.
      log_every: Write loss, errors, learning rate, gradient norm and speed to TensorBoard every N steps, or after each
        call of the compiled program if that makes more.
      jit_compile: Compile with XLA. auto: on with JAX, off with TensorFlow; on is refused with TensorFlow, because
        Keras does not use XLA in deterministic runs, and XLA is slower on a CPU.
      steps_per_execution: Training steps per call of the compiled program; more of them save overhead on an
        accelerator.
      strategy: How several workers train. synchronous: each batch is shared among all of them; parameter_server: each
        worker trains on batches of its own, without waiting for the others.
    """

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    crop_padding: int = option(2, at_least=0, at_most=2**13)
    random_flip: bool = True
    train_steps: int = option(50_000, at_least=1)
    batch_size: int = option(128, at_least=1, at_most=2**20)
    optimizer: Literal["momentum", "keras_momentum", "nesterov", "muon"] = "momentum"
    keras_optimizer: str = option("", flag=False)
    learning_rate: float = option(0.05, above=0)
    momentum: float = 0.9
    newton_schulz_steps: int = option(5, at_least=1, at_most=100)
    decoupled_weight_decay: float = option(0.0, at_least=0)
    schedule: Literal["piecewise", "exponential", "constant", "linear", "cosine"] = "piecewise"
    decay_steps: tuple[int, ...] = (30_000,)
    decay_factor: float = option(0.1, above=0)
    warmup_steps: int = option(0, at_least=0)
    clip_norm: float = option(0.0, at_least=0)
    init_from: str = option("", path=True)
    fresh: str = ""
    freeze: str = ""
    seed: int = option(0, at_least=0)
    eval_every: int = option(1_000, at_least=1)
    checkpoint_every: int = option(1_000, at_least=1)
    log_every: int = option(100, at_least=1, compared=False)
    jit_compile: Literal["auto", "on", "off"] = "auto"
    steps_per_execution: int = option(1, at_least=1)
    strategy: Literal["synchronous", "parameter_server"] = "synchronous"

    def __post_init__(self) -> None:
        check_fields(self)
        require(0 <= self.momentum < 1, f"momentum must lie in [0, 1), got {self.momentum}")
        require(
            all(a < b for a, b in zip((0,) + self.decay_steps, self.decay_steps)),
            f"decay_steps must be positive and increase, got {self.decay_steps}",
        )
        require(
            self.schedule != "exponential" or len(self.decay_steps) == 1,
            f"the exponential schedule takes one number of decay_steps, got {self.decay_steps}",
        )
        if self.strategy != "synchronous":
            require(
                self.optimizer != "muon" and not self.decoupled_weight_decay and not self.keras_optimizer,
                f"strategy {self.strategy} applies each gradient on a server, by SGD with momentum: "
                "optimizer muon, decoupled_weight_decay and Keras optimisers cannot be used with it",
            )
            require(
                self.steps_per_execution == 1,
                f"strategy {self.strategy} runs one step at a time: steps_per_execution must be 1, "
                f"got {self.steps_per_execution}",
            )
        self._check_steps()

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

    def resumable_changes(self, fields: dict[str, Any]) -> tuple[str, ...]:
        """Returns the fields in which a run may differ from an earlier run with these fields and still continue it.

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

    def unused_fields(self) -> dict[str, str]:
        """Returns the fields that nothing reads beside the others, of its model and data too, and why.

        >>> TrainConfig(schedule="cosine", decay_steps=()).unused_fields()["decay_factor"]
        'schedule is cosine'
        """
        unused: dict[str, str] = {}
        if self.schedule not in ("piecewise", "exponential"):
            unused |= dict.fromkeys(("decay_steps", "decay_factor"), f"schedule is {self.schedule}")
        if self.optimizer != "muon":
            unused["newton_schulz_steps"] = f"optimizer is {self.optimizer}"
        if not self.init_from:
            unused["fresh"] = "without init_from all weights are new"
        data = self.data
        if data.npz or data.images:
            unused |= dict.fromkeys(
                ("dataset", "data_dir", "download"), f"{'npz' if data.npz else 'images'} has the data"
            )
        elif data.dataset == "mnist_sample":
            unused |= dict.fromkeys(("train_split", "test_split"), "dataset is mnist_sample, which has two splits")
            unused["download"] = "dataset is mnist_sample, which comes with a package"
        if self.model.residual_initializer == "fixup" and self.model.train_projection:
            unused["projection_scale"] = "residual_initializer is fixup, which starts a trained projection at 0"
        if self.model.network != "all_conv_resnet":
            names = {field.name for field in dataclasses.fields(ModelConfig)} - _READ_BY_EVERY_NETWORK
            unused |= dict.fromkeys(sorted(names), f"network is {self.model.network}")
        return unused
