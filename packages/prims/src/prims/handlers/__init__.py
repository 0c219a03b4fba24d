"""Handlers: interpretations of one program of primitives (see `prims.handlers.base`).

>>> import torch
>>> from prims.handlers import GraphHandler, TorchHandler
>>> from prims.spec import TensorSpec
>>> def softmax(p, x, dim):
...     kept = tuple(d for d in range(x.ndim) if d != dim)
...     def spread(v):
...         return p.broadcast(v, x.shape, kept)
...     e = p.exp(p.sub(x, spread(p.amax(x, (dim,)))))
...     return p.div(e, spread(p.sum(e, (dim,))))
>>> softmax(TorchHandler(), torch.zeros(2, 4), 1)[0].tolist()
[0.25, 0.25, 0.25, 0.25]
>>> p = GraphHandler(torch.fx.Graph())
>>> x = p.placeholder("x", TensorSpec((2, 4), torch.float32, torch.device("cpu")))
>>> softmax(p, x, 1)
%div: float32[2, 4] cpu
>>> len(p.graph.nodes)
8
"""

from prims.handlers.base import BaseHandler, Handler
from prims.handlers.eager import Array, MetaHandler, NumpyHandler, TorchHandler
from prims.handlers.graph import GraphHandler, GraphValue
from prims.handlers.rewrites import REWRITES, Rewrite

__all__ = [
    "REWRITES",
    "Array",
    "BaseHandler",
    "GraphHandler",
    "GraphValue",
    "Handler",
    "MetaHandler",
    "NumpyHandler",
    "Rewrite",
    "TorchHandler",
]
