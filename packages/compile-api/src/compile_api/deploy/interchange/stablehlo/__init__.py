"""Exported programs as StableHLO text.

    text          `to_stablehlo`: the module and its function                    text.py
    builder       operations line by line, constants, conversions                builder.py
    sizes         size expressions as arithmetic on `get_dimension_size`         sizes.py
    elementwise, structure, indexing, reduction, composites                      the rows
    table         the target: rows, what does not map and why                    table.py
"""
