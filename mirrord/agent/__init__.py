"""The other end: serves this host's drivers to a peer that may use them."""
