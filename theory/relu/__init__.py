"""Networks with ReLU and no biases: bad local minima, a linear output (Hardt & Ma §5), Table 1 (§4)."""
