"""Experiments: one choice changed at a time, rivals on the same images, each at its own learning rate."""
