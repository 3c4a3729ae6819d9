"""The all-convolutional residual network of Hardt & Ma, *Identity Matters in Deep Learning*, §4."""

import os

# TensorFlow turns its oneDNN kernels on by itself only on CPUs with AVX-512; on others our
# convolutions take 1.9 times as long without them (benchmarks/train_step.py). It reads
# this once, when it is imported.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
