"""n-shortcut networks: exact Hessians, batched dynamics, and the figures of Li et al., *Demystifying ResNet*."""

import identity_matters  # noqa: F401, it keeps TensorFlow's import quiet
