"""Rewrites of the typed graph, before anything is laid out."""
