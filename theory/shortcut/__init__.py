"""n-shortcut networks: loss, and Hessian and order of the stationary point zero (Li et al.)."""
