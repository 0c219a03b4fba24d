"""Everything that capture knows of Python and torch: importing this module makes translation complete.

It is imported when the first frame is interpreted, so that a program which is found in a store never pays for it.
"""

from __future__ import annotations

from dynamo_capture.translate import Translation, translate
from dynamo_capture.values import (  # noqa: F401  (register what calls mean)
    accumulated,
    autograd_functions,
    checkpoints,
    collectives,
    compiler_names,
    control_flow,
    derivatives,
    drawn,
    flex_attention,
    frame_functions,
    function_facts,
    imports,
    inference,
    local_classes,
    optimizers,
    overrides,
    parallel,
    profiled,
    scaled_steps,
    spectra,
    stand_ins,
    triangles,
    vmapped,
    warned,
    written,
)

__all__ = ["Translation", "translate"]
