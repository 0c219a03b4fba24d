"""Control flow inside graphs: branches and loops whose bodies are graphs of their own, and attention with such a body.

In the torch dialect a node's target is a :class:`ControlFlow`, which holds the bodies as modules and runs as plain
Python. In the aten and prim dialects it is an operator of its own (:func:`control_operator`), whose bodies are
envelopes (:func:`control_of`).
"""

from prims.control.form import Form, run
from prims.control.operators import Control, control_of, control_operator
from prims.control.program import Body, ControlFlow
from prims.control.scored import ScoredAttention

__all__ = ["Body", "Control", "ControlFlow", "Form", "ScoredAttention", "control_of", "control_operator", "run"]
