"""Devices: what the decisions of the other stages read about them."""
