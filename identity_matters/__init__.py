"""The all-convolutional residual network of Hardt & Ma, *Identity Matters in Deep Learning*, §4."""

import os
import sys

from identity_matters.silence_tensorflow import SilentTensorFlow

# TensorFlow turns its oneDNN kernels on by itself only on CPUs with AVX-512; on others our convolutions take 1.9 times
# as long without them (benchmarks/train_step.py). It reads this once, when it is imported.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# What its C++ code has to say to those who build it.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "tensorflow" not in sys.modules:
    sys.meta_path.insert(0, SilentTensorFlow())
