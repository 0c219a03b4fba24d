"""What is saved between the forward and the backward graph."""
