"""One module for each command; `mirrord.cli.table` lists them."""
