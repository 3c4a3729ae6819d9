"""Linear residual networks: their risk and critical points, and factorisations near the identity (Hardt & Ma §2)."""
