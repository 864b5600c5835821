"""The name and version of the distribution, which hints, workers and users ask for."""

DISTRIBUTION = "plait-dataflow"
"""The name on package indices, where `plait` is another project; the import is `plait`."""

VERSION = "0.1.0"
