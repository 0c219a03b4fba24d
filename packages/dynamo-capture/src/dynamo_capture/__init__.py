"""Graph capture from Python bytecode (PEP 523) for PyTorch."""

__version__ = "0.1.0"
