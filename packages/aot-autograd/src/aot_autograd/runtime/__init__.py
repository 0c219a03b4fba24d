"""What runs at every call around the compiled graphs."""
