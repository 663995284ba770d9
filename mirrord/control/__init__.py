"""The API of mirrord: what the CLI calls. In this process or through the daemon."""
