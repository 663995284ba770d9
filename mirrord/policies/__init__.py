"""What a live mirror should do: policies, which choose and do nothing themselves. Pure."""
