"""The presets of launch.train: networks and runs of Hardt & Ma §4, and smaller ones that are not in the paper."""

import dataclasses

from identity_matters.config import DataConfig, ModelConfig, TrainConfig

_CIFAR = ModelConfig()
_RESNET34 = ModelConfig(
    image_shape=(224, 224, 3),
    num_classes=1000,
    stem_width=64,
    stem_kernel_size=7,
    stem_stride=2,
    stem_pool=2,
    widths=(64, 128, 256, 512),
    blocks_per_stage=(3, 4, 6, 3),
)

MODEL_PRESETS = {
    # Not in the paper. The standard initialiser leaves the saddle at zero sooner than the small one.
    "mnist": ModelConfig(
        image_shape=(28, 28, 1), widths=(16, 32, 64), blocks_per_stage=(2, 2, 2), residual_initializer="standard"
    ),
    "cifar10": _CIFAR,
    # Not in the paper, but of its rules: for two cores, see docs/appendix/runs.md.
    "cifar10_fast": ModelConfig(
        stem_width=48, stem_pool=2, widths=(48, 96, 192), blocks_per_stage=(2, 2, 2), weight_decay=0.0
    ),
    "cifar10_wide": ModelConfig(
        stem_width=24, widths=(24, 96, 192, 384), blocks_per_stage=(1, 2, 2, 2), weight_decay=0.0
    ),
    "cifar100": dataclasses.replace(_CIFAR, num_classes=100),
    # 35.7 million weights, which the paper states without widths: ResNet-34's, times 1.3.
    "imagenet": dataclasses.replace(_RESNET34, stem_width=83, widths=(83, 166, 333, 666)),
    "imagenet_narrow": _RESNET34,  # 21.1 million
}

_CIFAR10_FAST = TrainConfig(
    model=MODEL_PRESETS["cifar10_fast"],
    crop_padding=4,
    train_steps=4_300,
    batch_size=256,
    optimizer="muon",
    learning_rate=0.03,
    newton_schulz_steps=3,
    decoupled_weight_decay=0.1,
    schedule="linear",
    decay_steps=(),
    eval_every=400,
    checkpoint_every=200,
)

_IMAGENET = TrainConfig(
    model=MODEL_PRESETS["imagenet"],
    data=DataConfig("imagenet2012", image_size=224),
    train_steps=700_000,
    batch_size=256,
    learning_rate=0.1,
    schedule="exponential",
    decay_steps=(10_009,),  # two epochs: 2 · 1,281,167 / 256
    decay_factor=0.94,
    eval_every=10_000,
    checkpoint_every=2_000,
)

TRAIN_PRESETS = {
    # Not in the paper: what trains for every seed tried, see docs/appendix/runs.md.
    "mnist": TrainConfig(
        model=MODEL_PRESETS["mnist"],
        data=DataConfig("mnist_sample"),
        crop_padding=2,
        random_flip=False,
        train_steps=1_200,
        batch_size=32,
        learning_rate=0.1,
        decay_steps=(700, 1_000),
        clip_norm=0.5,
        eval_every=100,
        checkpoint_every=100,
    ),
    "cifar10": TrainConfig(),
    # Not in the paper, but of its rules; docs/appendix/runs.md says how they were chosen.
    "cifar10_fast": _CIFAR10_FAST,
    "cifar10_wide": dataclasses.replace(
        _CIFAR10_FAST, model=MODEL_PRESETS["cifar10_wide"], train_steps=4_550, eval_every=455, checkpoint_every=91
    ),
    "cifar100": TrainConfig(model=MODEL_PRESETS["cifar100"], data=DataConfig("cifar100")),
    "imagenet": _IMAGENET,
    "imagenet_narrow": dataclasses.replace(_IMAGENET, model=MODEL_PRESETS["imagenet_narrow"]),
}
