//! System calls that std does not offer. The only unsafe code of this crate but for `executor/ring.rs`.
//!
//! Invariant: each call gets a descriptor that the borrowed file or socket keeps open, and pointers into
//! slices or structures that outlive the call, with their own lengths.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;

fn check(result: libc::c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn count(result: libc::ssize_t) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::last_os_error())
}

fn flags(may_wait: bool) -> libc::c_int {
    if may_wait {
        0
    } else {
        libc::RWF_NOWAIT
    }
}

/// Reads once; if it may not wait, only what is in memory already.
pub fn read_some(file: &File, offset: u64, into: &mut [u8], may_wait: bool) -> io::Result<usize> {
    let (at, flags) = (offset as libc::off_t, flags(may_wait));
    let vector = libc::iovec {
        iov_base: into.as_mut_ptr().cast(),
        iov_len: into.len(),
    };
    count(unsafe { libc::preadv2(file.as_raw_fd(), &vector, 1, at, flags) })
}

/// Writes once; if it may not wait, only what needs neither a disk nor a lock that is taken.
pub fn write_some(file: &File, offset: u64, data: &[u8], may_wait: bool) -> io::Result<usize> {
    let (at, flags) = (offset as libc::off_t, flags(may_wait));
    let vector = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    count(unsafe { libc::pwritev2(file.as_raw_fd(), &vector, 1, at, flags) })
}

/// Who has the bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// tmpfs.
    Memory,
    /// A file system on a disk here, or a disk.
    Disk,
    /// Another program or host, or something that is not known.
    Other,
}

/// Where the file system of a file has its bytes.
pub fn kind_of(file: &File) -> Kind {
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    let result = unsafe { libc::fstatfs(file.as_raw_fd(), &mut found) };
    let is_device = file
        .metadata()
        .is_ok_and(|it| it.file_type().is_block_device());
    match found.f_type {
        _ if result != 0 => Kind::Other,
        _ if is_device => Kind::Disk,
        libc::TMPFS_MAGIC => Kind::Memory,
        libc::EXT4_SUPER_MAGIC | libc::XFS_SUPER_MAGIC | libc::BTRFS_SUPER_MAGIC | ZFS_MAGIC => {
            Kind::Disk
        }
        _ => Kind::Other,
    }
}

/// Of OpenZFS; it stands in no header of the kernel.
const ZFS_MAGIC: libc::c_long = 0x2fc1_2fc1;

/// Drops what is cached of a file and not dirty.
pub fn forget_cached(file: &File) {
    // Advice: without effect where the kernel cannot.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Frees a range, which reads as zeros from then on.
pub fn punch_hole(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    check(unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            mode,
            offset as libc::off_t,
            length as libc::off_t,
        )
    })
}

/// Makes a range read as zeros and keeps it allocated.
pub fn zero_range(file: &File, offset: u64, length: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
    check(unsafe {
        libc::fallocate(
            file.as_raw_fd(),
            mode,
            offset as libc::off_t,
            length as libc::off_t,
        )
    })
}

pub fn allocate(file: &File, length: u64) -> io::Result<()> {
    check(unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length as libc::off_t) })
}

/// Where data, or with `hole` a hole, begins at or after `offset`. None if there is none.
pub fn seek(file: &File, offset: u64, hole: bool) -> io::Result<Option<u64>> {
    let whence = if hole {
        libc::SEEK_HOLE
    } else {
        libc::SEEK_DATA
    };
    let found = unsafe { libc::lseek(file.as_raw_fd(), offset as libc::off_t, whence) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}

fn one_byte(kind: libc::c_int, at: i64) -> libc::flock {
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = at;
    lock.l_len = 1;
    lock
}

/// Lets the kernel find out that the other host is gone: after a minute of silence it asks six
/// times, every ten seconds.
pub fn keep_alive(socket: &impl AsRawFd) -> io::Result<()> {
    for (level, option, value) in [
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE, 60),
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL, 10),
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT, 6),
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1),
    ] {
        let value: libc::c_int = value;
        let size = std::mem::size_of_val(&value) as libc::socklen_t;
        let pointer = std::ptr::from_ref(&value).cast();
        check(unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, pointer, size) })?;
    }
    Ok(())
}

/// Takes a shared lock on one byte, for this open file.
pub fn lock_byte(file: &File, at: i64) -> io::Result<()> {
    let lock = one_byte(libc::F_RDLCK, at);
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) })
}

/// True if somebody else holds a lock on one byte.
pub fn is_byte_locked(file: &File, at: i64) -> io::Result<bool> {
    let mut lock = one_byte(libc::F_WRLCK, at);
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) })?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}
