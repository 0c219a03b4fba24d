"""From the graph to an ordered list of kernels and extern calls, and to buffers."""
