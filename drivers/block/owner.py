"""What the owner of a block volume can do with it: the names that `mirrord volume` uses."""

from mirrord.drivers.block.check import check_volume
from mirrord.drivers.block.transfer import (
    export_image,
    export_tar,
    import_folder,
    import_image,
    import_stream,
    import_tar,
)
from mirrord.drivers.block.volume import Volume, find_snapshot

__all__ = [
    "Volume",
    "check_volume",
    "export_image",
    "export_tar",
    "find_snapshot",
    "import_folder",
    "import_image",
    "import_stream",
    "import_tar",
]
