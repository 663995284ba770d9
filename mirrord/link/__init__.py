"""Sessions over byte streams, and remote drivers that use them."""
