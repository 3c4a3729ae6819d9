"""The run directory: config.json, checkpoints, CSV tables, TensorBoard events, progress, figures, errors."""
