"""Kernels written per node, in a C that both CUDA and OpenCL compile.

Shapes, strides and attributes are literals in the source, so a kernel has buffers for parameters
and nothing else.
"""
