"""The compiled device: like `cpu`, with convolutions and what follows them compiled by Numba."""
