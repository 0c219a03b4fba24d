"""Exported programs as ONNX models.

    model         `to_onnx`: inputs, outputs, weights, the file            model.py
    builder       nodes, constants, conversions                            builder.py
    sizes         size expressions as arithmetic on `Shape`                sizes.py
    elementwise, structure, indexing, reduction, composites                the rows
    table         the target: rows, what does not map and why              table.py
"""
