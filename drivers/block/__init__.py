"""The block volume: the volume of the paper in a plain directory, without privileges.

Modules: `format` the disk format, `store` the data files, `tree` the radix trees, `activemap` the
blocks in use, `allocator` the free blocks, `image` the live content and how it is written to disk,
`volume` the interface for users, `driver` the interface for the engine.
"""
