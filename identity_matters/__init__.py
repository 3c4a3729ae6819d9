"""The all-convolutional residual network of Hardt & Ma, *Identity Matters in Deep Learning*, §4."""

import os

# TensorFlow reads both once, when it is imported.
# By itself it turns its oneDNN kernels on only on CPUs with AVX-512; without them our convolutions take 1.9 times as
# long on other CPUs (benchmarks/train_step.py).
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
# Its C++ code logs what only its developers need.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
