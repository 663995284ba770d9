//! A read-only mount that only the holder of its descriptor can reach.

use pyo3::prelude::*;
use rustix::mount::{self, FsMountFlags, FsOpenFlags, MountAttrFlags};
use std::os::fd::IntoRawFd;

/// Mount `source` read-only without a mountpoint; a descriptor of its root. No mount namespace has
/// it, and it ends with the last descriptor of anything in it, however that is closed.
#[pyfunction]
pub fn mount_detached(py: Python<'_>, kind: &str, source: &str) -> PyResult<i32> {
    let mounted = py.detach(|| {
        let context = mount::fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
        mount::fsconfig_set_string(&context, "source", source)?;
        mount::fsconfig_set_flag(&context, "ro")?;
        mount::fsconfig_create(&context)?;
        let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
            | MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOEXEC
            | MountAttrFlags::MOUNT_ATTR_NOATIME;
        mount::fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
    });
    Ok(mounted.map_err(std::io::Error::from)?.into_raw_fd())
}
