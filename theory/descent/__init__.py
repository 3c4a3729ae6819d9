"""What gradient descent, momentum and orthogonalised updates find from zero, and how fast (docs/descent.md)."""
