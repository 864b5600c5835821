"""cvm's model format: a graph in JSON, its parameters in a binary file."""

from .load import CvmModel, Source, load_cvm, load_symbol
from .writer import dump_cvm

__all__ = ["CvmModel", "Source", "dump_cvm", "load_cvm", "load_symbol"]
