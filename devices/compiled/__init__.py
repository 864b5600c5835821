"""The compiled device: the `cpu` device with convolutions and their epilogues compiled by Numba."""
