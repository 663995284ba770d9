"""What exists at a location: the dataset, its properties and records, and where it is mounted."""
