"""The Kernel IR: each kernel as one record, before an order, a memory or a language is chosen for it."""
