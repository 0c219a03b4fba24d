"""Where values lie in memory, and in which strides."""
