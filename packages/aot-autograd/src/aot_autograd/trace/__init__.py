"""From a torch-dialect module to a functional ATen graph."""
