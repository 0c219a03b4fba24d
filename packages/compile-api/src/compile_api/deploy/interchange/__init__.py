"""Exported programs in forms that other runtimes read.

    program     what goes in and out, by name, and the graph in primitives between     program.py
    walk        a graph's nodes through a target's table; what does not map, listed    walk.py
    calls       which calls may stay whole                                             calls.py
    onnx        an ONNX model                                                          onnx/
    stablehlo   StableHLO text                                                         stablehlo/

A target is a table, primitive -> function that writes it, with the primitives that do not map and why.
"""
