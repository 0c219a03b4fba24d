"""The conformance kit for hardware backends, and the frozen text of one instance per primitive."""

from prims.conformance.compiled import check_compiler, instance, symbolic_instance
from prims.conformance.judge import judge
from prims.conformance.kit import ConformanceReport, Failure, check_backend, dtypes_of, samples_of

__all__ = [
    "ConformanceReport",
    "Failure",
    "check_backend",
    "check_compiler",
    "dtypes_of",
    "instance",
    "judge",
    "samples_of",
    "symbolic_instance",
]
