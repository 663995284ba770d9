"""Images: a regular file, a zvol or another block device, mirrored live."""
