//! Confines this process to the folders that it is given, before it reads a byte of the stream.
//!
//! What remains is an empty root, the folders as detached mounts (without devices, set-uid programs
//! or symbolic links; the base read-only), eight capabilities and the system calls listed here.

use std::ffi::CString;
use std::fs;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::mount::{
    mount, mount_change, unmount, MountFlags, MountPropagationFlags, UnmountFlags,
};
use rustix::process::{chdir, pivot_root, umask};
use rustix::thread::{set_no_new_privs, UnshareFlags};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

use crate::failure::{Failure, Kind, Result};
use crate::sys;
use crate::tree::open_beneath;

const CHOWN: u32 = 0;
const DAC_OVERRIDE: u32 = 1;
const FOWNER: u32 = 3;
const FSETID: u32 = 4;
const LINUX_IMMUTABLE: u32 = 9;
const SYS_ADMIN: u32 = 21;
const MKNOD: u32 = 27;
const SETFCAP: u32 = 31;
/// What each is needed for is in docs/btrfs-receiver.md.
const KEPT: [u32; 7] = [
    CHOWN,
    DAC_OVERRIDE,
    FOWNER,
    FSETID,
    SYS_ADMIN,
    MKNOD,
    SETFCAP,
];
/// Not every container has it, and few volumes need it.
const KEPT_IF_HELD: u32 = LINUX_IMMUTABLE;

const OPEN_FILES: u64 = 1024;
const ADDRESS_SPACE: u64 = 1 << 30;

/// The folders, as mounts that lead nowhere else.
pub struct Folders {
    pub target: OwnedFd,
    pub base: Option<OwnedFd>,
    pub checkpoints: Option<OwnedFd>,
}

fn unsupported(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::new(
        Kind::Unsupported,
        format!("{what}: {error}; that needs Linux 5.14, root, and a mount namespace"),
    )
}

fn detached(path: &Path, read_only: bool) -> Result<OwnedFd> {
    let attributes = sys::MOUNT_NO_SUID
        | sys::MOUNT_NO_DEVICES
        | sys::MOUNT_NO_PROGRAMS
        | sys::MOUNT_NO_LINKS
        | if read_only { sys::MOUNT_READ_ONLY } else { 0 };
    let name = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Failure::new(Kind::Usage, "a path contains a zero byte"))?;
    let failed = |error| unsupported(&format!("{} cannot be mounted", path.display()), error);
    let mount = sys::detached_mount(&name, attributes).map_err(failed)?;
    // The mount's own descriptor takes no ioctl. An open file keeps the mount alive.
    open_beneath(mount, b".", OFlags::RDONLY | OFlags::DIRECTORY)
        .map_err(|error| failed(error.into()))
}

/// Enter an empty file tree that contains nothing but the given folders, by descriptor.
pub fn enter(target: &Path, base: Option<&Path>, checkpoints: Option<&Path>) -> Result<Folders> {
    let folders = Folders {
        target: detached(target, false)?,
        base: base.map(|path| detached(path, true)).transpose()?,
        checkpoints: checkpoints.map(|path| detached(path, false)).transpose()?,
    };
    enter_empty_root(target).map_err(|error| unsupported("the root cannot be left", error))?;
    umask(rustix::fs::Mode::empty());
    Ok(folders)
}

fn enter_empty_root(anywhere: &Path) -> rustix::io::Result<()> {
    // The mount namespace is of this thread, and there is only one.
    #[allow(unsafe_code)]
    unsafe {
        rustix::thread::unshare_unsafe(UnshareFlags::NEWNS)?;
    }
    mount_change(
        "/",
        MountPropagationFlags::PRIVATE | MountPropagationFlags::REC,
    )?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::RDONLY;
    mount("none", anywhere, "tmpfs", flags, c"size=4k,mode=0")?;
    chdir(anywhere)?;
    pivot_root(".", ".")?;
    // The old root is now mounted over the new one. With it all other file systems go.
    unmount(".", UnmountFlags::DETACH)?;
    chdir("/")
}

/// Give up the capabilities and resources that are not needed. Threads started later inherit it.
pub fn drop_privileges() -> Result<()> {
    let limits = [
        (libc::RLIMIT_NOFILE, OPEN_FILES),
        (libc::RLIMIT_AS, ADDRESS_SPACE),
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_MEMLOCK, 0),
        (libc::RLIMIT_MSGQUEUE, 0),
    ];
    for (resource, value) in limits {
        sys::limit(resource, value).map_err(|error| unsupported("a limit cannot be set", error))?;
    }
    sys::keep_capabilities(&KEPT, KEPT_IF_HELD)
        .map_err(|error| unsupported("capabilities cannot be dropped", error))?;
    set_no_new_privs(true).map_err(|error| unsupported("no_new_privs cannot be set", error))
}

/// Descriptors that the caller left open, a lock for example: no path may start there.
pub fn inherited() -> Vec<RawFd> {
    let Ok(entries) = fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    let numbers = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let found: Vec<RawFd> = numbers.filter(|fd| *fd > 2).collect();
    // The descriptor of the listing itself is closed by now.
    found
        .into_iter()
        .filter(|fd| fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok())
        .collect()
}

/// Allow only the listed system calls, for all threads of this process. Any other one kills it.
/// barred: descriptors that no path may start at.
pub fn filter_calls(barred: &[RawFd]) -> Result<()> {
    for program in [without_files(), filter(barred)] {
        let program = program.map_err(|error| unsupported("no filter can be made", error))?;
        seccompiler::apply_filter_all_threads(&program)
            .map_err(|error| unsupported("the filter of system calls is refused", error))?;
    }
    Ok(())
}

/// The C library may look for files of its own, for example when it shrinks a heap: there are none.
fn without_files() -> std::result::Result<BpfProgram, seccompiler::BackendError> {
    let rules = [(libc::SYS_openat, Vec::new())].into_iter().collect();
    let missing = SeccompAction::Errno(libc::ENOENT as u32);
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, missing, arch)?.try_into()
}

/// Without paths.
const PLAIN: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_getdents64,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fchown,
    libc::SYS_fchmod,
    libc::SYS_fgetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_fremovexattr,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_syncfs,
    libc::SYS_ppoll,
    libc::SYS_openat, // fails: `without_files`
    // Memory, threads that exist already, and the end
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_clock_gettime,
    libc::SYS_getrandom,
    libc::SYS_sigaltstack,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_tgkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// With paths that start at the descriptors in these arguments.
const AT: &[(libc::c_long, &[u8])] = &[
    (libc::SYS_openat2, &[0]),
    (libc::SYS_mknodat, &[0]),
    (libc::SYS_mkdirat, &[0]),
    (libc::SYS_unlinkat, &[0]),
    (libc::SYS_symlinkat, &[1]),
    (libc::SYS_linkat, &[0, 2]),
    (libc::SYS_renameat2, &[0, 2]),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_renameat, &[0, 2]),
    (libc::SYS_fchownat, &[0]),
    (libc::SYS_fchmodat, &[0]),
    (libc::SYS_utimensat, &[0]),
    (libc::SYS_newfstatat, &[0]),
    (libc::SYS_statx, &[0]),
    (libc::SYS_fchdir, &[0]),
];

/// In the working folder, which is the empty root or a folder of the snapshot.
const IN_FOLDER: &[libc::c_long] = &[libc::SYS_lsetxattr, libc::SYS_lremovexattr];

fn filter(barred: &[RawFd]) -> std::result::Result<BpfProgram, seccompiler::BackendError> {
    let equal = |argument, value: u64| {
        SeccompCondition::new(argument, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value)
    };
    let mut rules: std::collections::BTreeMap<i64, Vec<SeccompRule>> = PLAIN
        .iter()
        .chain(IN_FOLDER)
        .map(|call| (*call, Vec::new()))
        .collect();
    for (call, arguments) in AT {
        let mut conditions = Vec::new();
        for &argument in *arguments {
            for fd in barred {
                let (length, other) = (SeccompCmpArgLen::Dword, SeccompCmpOp::Ne);
                let fd = *fd as u32 as u64;
                conditions.push(SeccompCondition::new(argument, length, other, fd)?);
            }
        }
        let rules_of_it = if conditions.is_empty() {
            Vec::new()
        } else {
            vec![SeccompRule::new(conditions)?]
        };
        rules.insert(*call, rules_of_it);
    }
    let requests = sys::IOCTLS
        .iter()
        .map(|request| SeccompRule::new(vec![equal(1, u64::from(*request))?]))
        .collect::<std::result::Result<Vec<_>, _>>()?;
    rules.insert(libc::SYS_ioctl, requests);
    // The standard library asks whether a descriptor is open when it is built with debug checks.
    let queries = vec![SeccompRule::new(vec![equal(1, libc::F_GETFD as u64)?])?];
    rules.insert(libc::SYS_fcntl, queries);
    let arch = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(
        rules,
        SeccompAction::KillProcess,
        SeccompAction::Allow,
        arch,
    )?
    .try_into()
}
