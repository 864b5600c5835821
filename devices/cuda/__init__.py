"""The CUDA device: NVIDIA GPUs, through CuPy."""
