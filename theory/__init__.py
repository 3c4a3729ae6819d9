"""Every numbered claim of both papers as a checked function: NumPy and SciPy in float64, without TensorFlow."""
