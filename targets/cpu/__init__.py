"""Any CPU, through edgedec's own kernels."""
