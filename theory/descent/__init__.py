"""The targets that descent, momentum and orthogonalised updates reach, and how fast: docs/appendix/descent.md."""
