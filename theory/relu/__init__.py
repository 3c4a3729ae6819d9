"""ReLU networks without biases: bad local minima and linear outputs (Hardt & Ma §5), the weights of Table 1 (§4)."""
