"""Making a dataset live, and rolling it back without losing anything."""
