"""compile() for PyTorch: the Quintet stages composed into one line."""

__version__ = "0.1.0"
