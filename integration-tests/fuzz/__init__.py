"""Random programs, compiled and compared with eager: ``python -m fuzz --help``; README.md tells what is compared how."""

import os

# What capture and the compilers do is looked at, not what another process has kept of it.
os.environ.setdefault("QUINTET_PROGRAM_CACHE", "0")
