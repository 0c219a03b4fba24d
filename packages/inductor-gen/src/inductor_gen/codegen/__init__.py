"""Kernel source text: one :class:`Renderer` interface, a C and a Triton implementation."""
