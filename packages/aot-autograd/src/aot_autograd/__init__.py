"""Ahead-of-time autograd: functionalisation, joint graphs and partitioners for PyTorch."""

__version__ = "0.1.0"
