"""The API of mirrord: what the CLI may ask. In-process for now; a daemon will serve the same."""
