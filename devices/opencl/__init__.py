"""The OpenCL device: GPUs and processors of any maker, through pyopencl."""
