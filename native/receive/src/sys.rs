//! The system calls that no crate wraps.
//!
//! Invariant of every function: a pointer that is passed to the kernel is to a live local value of
//! the type, and at least the size, that the call documents, and the kernel does not keep it.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;
use std::mem::{size_of, size_of_val, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

const NAME_BYTES: usize = 4040;
const SUBVOLUME_RDONLY: u64 = 1 << 1;

const fn ioctl_number(direction: u32, kind: u8, number: u8, size: usize) -> u32 {
    direction << 30 | (size as u32) << 16 | (kind as u32) << 8 | number as u32
}
const BTRFS: u8 = 0x94;
const WRITE: u32 = 1;
const READ: u32 = 2;

pub const CLONE_RANGE: u32 = ioctl_number(WRITE, BTRFS, 13, size_of::<CloneRange>());
pub const SNAPSHOT_DESTROY: u32 = ioctl_number(WRITE, BTRFS, 15, 4096);
pub const SNAPSHOT_CREATE: u32 = ioctl_number(WRITE, BTRFS, 23, size_of::<VolumeArguments>());
pub const SUBVOLUME_CREATE: u32 = ioctl_number(WRITE, BTRFS, 24, size_of::<VolumeArguments>());
pub const GET_FLAGS: u32 = ioctl_number(READ, BTRFS, 25, 8);
pub const SET_FLAGS: u32 = ioctl_number(WRITE, BTRFS, 26, 8);
pub const SET_RECEIVED: u32 = ioctl_number(READ | WRITE, BTRFS, 37, size_of::<ReceivedArguments>());
pub const SUBVOLUME_INFO: u32 = ioctl_number(READ, BTRFS, 60, size_of::<SubvolumeInfo>());
pub const ENCODED_WRITE: u32 = ioctl_number(WRITE, BTRFS, 64, size_of::<EncodedArguments>());
pub const GET_ATTRIBUTES: u32 = ioctl_number(READ, b'f', 1, size_of::<libc::c_long>());
pub const SET_ATTRIBUTES: u32 = ioctl_number(WRITE, b'f', 2, size_of::<libc::c_long>());
pub const ENABLE_VERITY: u32 = ioctl_number(WRITE, b'f', 133, size_of::<VerityArguments>());
/// All of them: nothing else passes the filter.
pub const IOCTLS: [u32; 12] = [
    CLONE_RANGE,
    SNAPSHOT_DESTROY,
    SNAPSHOT_CREATE,
    SUBVOLUME_CREATE,
    GET_FLAGS,
    SET_FLAGS,
    SET_RECEIVED,
    SUBVOLUME_INFO,
    ENCODED_WRITE,
    GET_ATTRIBUTES,
    SET_ATTRIBUTES,
    ENABLE_VERITY,
];

#[repr(C)]
struct CloneRange {
    source: i64,
    source_offset: u64,
    length: u64,
    offset: u64,
}

#[repr(C)]
struct VolumeArguments {
    fd: i64,
    transid: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; NAME_BYTES],
}

#[repr(C)]
struct ReceivedArguments {
    uuid: [u8; 16],
    stransid: u64,
    rtransid: u64,
    times: [u64; 4],
    flags: u64,
    reserved: [u64; 16],
}

#[repr(C)]
struct SubvolumeInfo {
    treeid: u64,
    name: [u8; 256],
    parent_id: u64,
    dirid: u64,
    generation: u64,
    flags: u64,
    uuid: [u8; 16],
    rest: [u64; 24],
}

#[repr(C)]
struct EncodedArguments {
    vectors: *const libc::iovec,
    count: u64,
    offset: i64,
    flags: u64,
    length: u64,
    unencoded_length: u64,
    unencoded_offset: u64,
    compression: u32,
    encryption: u32,
    reserved: [u8; 64],
}

#[repr(C)]
struct VerityArguments {
    version: u32,
    hash_algorithm: u32,
    block_size: u32,
    salt_size: u32,
    salt: u64,
    signature_size: u32,
    reserved1: u32,
    signature: u64,
    reserved2: [u64; 11],
}

const _: () = assert!(size_of::<VolumeArguments>() == 4096);
const _: () = assert!(size_of::<ReceivedArguments>() == 200);
const _: () = assert!(size_of::<SubvolumeInfo>() == 504);
const _: () = assert!(size_of::<EncodedArguments>() == 128);
const _: () = assert!(size_of::<VerityArguments>() == 128);

fn checked(result: impl Into<i64>) -> io::Result<i64> {
    let result = result.into();
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result)
}

fn call<T>(fd: BorrowedFd, request: u32, argument: &mut T) -> io::Result<i64> {
    let pointer: *mut T = argument;
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), request as libc::Ioctl, pointer) })
}

fn volume_arguments(name: &[u8]) -> io::Result<VolumeArguments> {
    let mut arguments: VolumeArguments = unsafe { zeroed() };
    // One byte stays zero.
    if name.len() >= NAME_BYTES {
        return Err(io::Error::from_raw_os_error(libc::ENAMETOOLONG));
    }
    arguments.name[..name.len()].copy_from_slice(name);
    Ok(arguments)
}

pub fn create_subvolume(folder: impl AsFd, name: &[u8]) -> io::Result<()> {
    call(
        folder.as_fd(),
        SUBVOLUME_CREATE,
        &mut volume_arguments(name)?,
    )
    .map(drop)
}

pub fn create_snapshot(
    folder: impl AsFd,
    name: &[u8],
    source: impl AsFd,
    read_only: bool,
) -> io::Result<()> {
    let mut arguments = volume_arguments(name)?;
    arguments.fd = source.as_fd().as_raw_fd().into();
    arguments.flags = if read_only { SUBVOLUME_RDONLY } else { 0 };
    call(folder.as_fd(), SNAPSHOT_CREATE, &mut arguments).map(drop)
}

pub fn delete_subvolume(folder: impl AsFd, name: &[u8]) -> io::Result<()> {
    let mut arguments = [0u8; 4096];
    let room = arguments[8..4095]
        .get_mut(..name.len())
        .ok_or(io::Error::from_raw_os_error(libc::ENAMETOOLONG))?;
    room.copy_from_slice(name);
    call(folder.as_fd(), SNAPSHOT_DESTROY, &mut arguments).map(drop)
}

pub fn is_read_only(subvolume: impl AsFd) -> io::Result<bool> {
    let mut flags = 0u64;
    call(subvolume.as_fd(), GET_FLAGS, &mut flags)?;
    Ok(flags & SUBVOLUME_RDONLY != 0)
}

pub fn set_read_only(subvolume: impl AsFd) -> io::Result<()> {
    let mut flags = 0u64;
    call(subvolume.as_fd(), GET_FLAGS, &mut flags)?;
    flags |= SUBVOLUME_RDONLY;
    call(subvolume.as_fd(), SET_FLAGS, &mut flags).map(drop)
}

pub fn subvolume_uuid(subvolume: impl AsFd) -> io::Result<[u8; 16]> {
    let mut info: SubvolumeInfo = unsafe { zeroed() };
    call(subvolume.as_fd(), SUBVOLUME_INFO, &mut info)?;
    Ok(info.uuid)
}

pub fn set_received(subvolume: impl AsFd, uuid: &[u8; 16], ctransid: u64) -> io::Result<()> {
    let mut arguments: ReceivedArguments = unsafe { zeroed() };
    arguments.uuid = *uuid;
    arguments.stransid = ctransid;
    call(subvolume.as_fd(), SET_RECEIVED, &mut arguments).map(drop)
}

pub fn clone_range(
    target: impl AsFd,
    offset: u64,
    source: impl AsFd,
    source_offset: u64,
    length: u64,
) -> io::Result<()> {
    let mut arguments = CloneRange {
        source: source.as_fd().as_raw_fd().into(),
        source_offset,
        length,
        offset,
    };
    call(target.as_fd(), CLONE_RANGE, &mut arguments).map(drop)
}

/// What an encoded write says about its data.
#[derive(Clone, Copy, Debug)]
pub struct Encoding {
    pub offset: u64,
    pub file_length: u64,
    pub length: u64,
    pub inner_offset: u64,
    pub compression: u32,
    pub encryption: u32,
}

pub fn encoded_write(file: impl AsFd, encoding: &Encoding, data: &[u8]) -> io::Result<()> {
    let vector = libc::iovec {
        iov_base: data.as_ptr().cast_mut().cast(),
        iov_len: data.len(),
    };
    let mut arguments: EncodedArguments = unsafe { zeroed() };
    arguments.vectors = &vector;
    arguments.count = 1;
    arguments.offset = encoding.offset as i64;
    arguments.length = encoding.file_length;
    arguments.unencoded_length = encoding.length;
    arguments.unencoded_offset = encoding.inner_offset;
    arguments.compression = encoding.compression;
    arguments.encryption = encoding.encryption;
    // The kernel only reads the vector and the data.
    call(file.as_fd(), ENCODED_WRITE, &mut arguments).map(drop)
}

/// The flags that chattr(1) shows.
pub fn file_attributes(file: impl AsFd) -> io::Result<u32> {
    let mut flags: libc::c_long = 0;
    call(file.as_fd(), GET_ATTRIBUTES, &mut flags)?;
    Ok(flags as u32)
}

pub fn set_file_attributes(file: impl AsFd, flags: u32) -> io::Result<()> {
    let mut flags = flags as libc::c_long;
    call(file.as_fd(), SET_ATTRIBUTES, &mut flags).map(drop)
}

pub fn enable_verity(
    file: impl AsFd,
    algorithm: u32,
    block_size: u32,
    salt: &[u8],
    signature: &[u8],
) -> io::Result<()> {
    let mut arguments: VerityArguments = unsafe { zeroed() };
    arguments.version = 1;
    arguments.hash_algorithm = algorithm;
    arguments.block_size = block_size;
    arguments.salt_size = salt.len() as u32;
    arguments.salt = salt.as_ptr() as u64;
    arguments.signature_size = signature.len() as u32;
    arguments.signature = signature.as_ptr() as u64;
    call(file.as_fd(), ENABLE_VERITY, &mut arguments).map(drop)
}

/// Make everything in the file system durable. Fails when any data could not be written since `fd`
/// was opened: of that the kernel tells each open descriptor once, and later ones perhaps not.
pub fn sync_filesystem(fd: impl AsFd) -> io::Result<()> {
    checked(unsafe { libc::syncfs(fd.as_fd().as_raw_fd()) }).map(drop)
}

/// Start writing the data of a file to the disk without waiting for it.
pub fn start_writeback(file: impl AsFd, offset: u64, length: u64) {
    let fd = file.as_fd().as_raw_fd();
    // Only advice: a failure shows again when the data is made durable.
    unsafe {
        libc::sync_file_range(
            fd,
            offset as i64,
            length as i64,
            libc::SYNC_FILE_RANGE_WRITE,
        );
    }
}

/// A mount of its own, attached nowhere, of the folder `path`: '..' does not lead out of it.
pub fn detached_mount(path: &CStr, attributes: u64) -> io::Result<OwnedFd> {
    const OPEN_TREE_CLONE: libc::c_long = 1;
    let flags = OPEN_TREE_CLONE | libc::c_long::from(libc::O_CLOEXEC);
    let fd = checked(unsafe {
        libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags)
    })?;
    let tree = unsafe { OwnedFd::from_raw_fd(fd as RawFd) };
    let wanted: [u64; 4] = [attributes, 0, 0, 0];
    checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            wanted.as_ptr(),
            size_of_val(&wanted),
        )
    })?;
    Ok(tree)
}

pub const MOUNT_READ_ONLY: u64 = 0x1;
pub const MOUNT_NO_SUID: u64 = 0x2;
pub const MOUNT_NO_DEVICES: u64 = 0x4;
pub const MOUNT_NO_PROGRAMS: u64 = 0x8;
pub const MOUNT_NO_LINKS: u64 = 0x20_0000;

/// Make these capabilities the only ones of this thread, and another one if it has that; none can
/// come back.
pub fn keep_capabilities(kept: &[u32], if_held: u32) -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let header: [u32; 2] = [VERSION_3, 0];
    // effective, permitted, inheritable, for the low and the high half
    let mut data = [0u32; 6];
    checked(unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) })?;
    let held = u64::from(data[1]) | u64::from(data[4]) << 32;
    let bits = kept
        .iter()
        .fold(held & 1 << if_held, |bits, one| bits | 1 << one);
    for capability in 0..64 {
        if bits & 1 << capability == 0 {
            // EINVAL: this kernel has fewer.
            let _ = checked(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) });
        }
    }
    checked(unsafe {
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        )
    })?;
    let (low, high) = (bits as u32, (bits >> 32) as u32);
    data = [low, low, 0, high, high, 0];
    checked(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) })?;
    Ok(())
}

pub fn limit(resource: u32, value: u64) -> io::Result<()> {
    let limit = libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    checked(unsafe { libc::setrlimit(resource as _, &limit) }).map(drop)
}

static TERMINATED: AtomicBool = AtomicBool::new(false);

extern "C" fn note_termination(_signal: libc::c_int) {
    TERMINATED.store(true, Ordering::Relaxed);
}

/// From now on SIGTERM only ends `wait_readable`.
pub fn catch_termination() -> io::Result<()> {
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = note_termination as extern "C" fn(libc::c_int) as usize;
    checked(unsafe { libc::sigaction(libc::SIGTERM, &action, std::ptr::null_mut()) })?;
    let mut set: libc::sigset_t = unsafe { zeroed() };
    unsafe {
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
    }
    let result = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
    checked(-result).map(drop)
}

/// Whether SIGTERM came. It is only delivered to a waiting call that finds nothing ready, so this
/// is one.
pub fn is_terminated() -> bool {
    let mut set: libc::sigset_t = unsafe { zeroed() };
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    unsafe {
        libc::sigemptyset(&mut set);
        libc::ppoll(std::ptr::null_mut(), 0, &now, &set);
    }
    TERMINATED.load(Ordering::Relaxed)
}

/// Wait until `fd` has data or ended; false: SIGTERM came, and nothing is there.
pub fn wait_readable(fd: impl AsFd) -> io::Result<bool> {
    let mut polled = libc::pollfd {
        fd: fd.as_fd().as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut set: libc::sigset_t = unsafe { zeroed() };
    unsafe { libc::sigemptyset(&mut set) };
    let now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    loop {
        let terminated = TERMINATED.load(Ordering::Relaxed);
        let timeout = if terminated { &now } else { std::ptr::null() };
        match checked(unsafe { libc::ppoll(&mut polled, 1, timeout, &set) }) {
            Ok(count) => return Ok(count > 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted && !terminated => {}
            Err(error) => return Err(error),
        }
    }
}
