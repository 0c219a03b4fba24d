"""Order, launches and memory of kernels: pure functions of what they read and write."""
