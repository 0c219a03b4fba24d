"""The closed primitive operator set, abstract tensors and the IR contract of the Quintet compiler."""

__version__ = "0.1.0"
