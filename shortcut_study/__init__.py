"""n-shortcut networks: exact Hessians, batched dynamics, and the figures of Li et al., *Demystifying ResNet*."""

import identity_matters  # noqa: F401, it silences TensorFlow's import
