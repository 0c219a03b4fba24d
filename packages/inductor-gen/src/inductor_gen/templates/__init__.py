"""Templates, tilings and library kernels chosen by measurement (``Options.max_autotune``).

A graph is lowered as usual; then problems are found in it: on a GPU :mod:`products` (a matrix product, and the
pointwise kernel that reads it, as one :mod:`matmul` kernel in one of several :mod:`tiles`) and :mod:`tilings` of
generated kernels, on the CPU :mod:`operators`. :mod:`contest` runs the candidates on random data (:mod:`bench`), drops
what computes something else than the usual way, and keeps the fastest (:mod:`decisions`).
"""
