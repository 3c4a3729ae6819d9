"""Curvature of any Keras model on TensorFlow: exact Hessian products, spectra, traces, diagonals."""
