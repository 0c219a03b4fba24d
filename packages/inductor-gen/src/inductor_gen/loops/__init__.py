"""The graph as seen by the code generator, index arithmetic and loop bodies."""
