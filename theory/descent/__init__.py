"""What gradient descent, momentum and orthogonalised updates find from zero, and how fast: docs/appendix/descent.md."""
