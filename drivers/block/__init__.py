"""The block volume: the paper's volume in a plain directory, without privileges.

Where each thing lives: `format` the words of the disk format, `store` the data files, `tree` the
radix trees, `activemap` which blocks are in use, `allocator` which may be used, `image` the live
content and how it reaches the disk, `volume` what owners call, `driver` what the engine calls.
"""
