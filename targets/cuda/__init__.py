"""NVIDIA's GPUs, through kernels that TVM makes."""
