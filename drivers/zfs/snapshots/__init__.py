"""The snapshots of a dataset: listing, taking, marking, comparing and deleting them."""
