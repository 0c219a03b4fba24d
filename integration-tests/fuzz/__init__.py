"""Random programs, compiled and compared with eager: ``python -m fuzz --help``; README.md tells what is compared how."""
