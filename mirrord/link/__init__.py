"""Sessions over byte streams, and drivers at their other end."""
