"""OpenVINO, on Intel's CPUs, GPUs and NPUs."""
