"""Whole corpora of programs through ``compile()``, beside eager: see README.md."""

import os

# What capture and the compilers do is looked at, not what another process has kept of it.
os.environ.setdefault("QUINTET_PROGRAM_CACHE", "0")
