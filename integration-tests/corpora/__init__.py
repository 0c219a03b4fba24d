"""Whole corpora of programs through ``compile()``, beside eager: see README.md."""
