"""Fusion: which nodes share a loop nest."""
