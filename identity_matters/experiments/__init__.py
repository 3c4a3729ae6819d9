"""Experiments: one choice changed at a time, and other networks on the same images, each at its best learning rate."""
