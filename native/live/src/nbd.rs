//! The server's side of the NBD protocol: fixed newstyle, structured replies, block status.
//!
//! Without I/O: bytes in, requests and bytes out. github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md

use mirrord_live_core::types::Failure;

const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_MAGIC: u32 = 0x668e_33ef;

/// The longest data of an option; names and contexts are short.
const OPTION_MAX: usize = 16 << 10;
pub const PAYLOAD_MAX: u32 = 32 << 20;
/// Flags, FLUSH, FUA, TRIM, WRITE_ZEROES, several connections, CACHE.
const EXPORT_FLAGS: u16 = 1 | 4 | 8 | 32 | 64 | 256 | 1024;
const CONTEXT: &str = "base:allocation";
const CONTEXT_ID: u32 = 1;

const ACK: u32 = 1;
const SERVER: u32 = 2;
const INFO: u32 = 3;
const META_CONTEXT: u32 = 4;
const ERR_UNSUPPORTED: u32 = 1 << 31 | 1;
const ERR_INVALID: u32 = 1 << 31 | 3;
const ERR_TLS_REQUIRED: u32 = 1 << 31 | 5;
const ERR_UNKNOWN: u32 = 1 << 31 | 6;

/// Whether the connection is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Security {
    /// It need not be, and can't.
    Plain,
    /// The client has to start TLS before it is told anything.
    Required,
    Encrypted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub kind: Kind,
    pub cookie: u64,
    pub offset: u64,
    pub length: u32,
    pub fua: bool,
    pub no_hole: bool,
    /// Block status: one extent is enough.
    pub one: bool,
    pub data: Vec<u8>,
}

/// What the bytes received so far amount to.
#[derive(Debug, PartialEq, Eq)]
pub enum Parsed {
    /// More bytes are needed.
    Incomplete,
    /// So many bytes are consumed; nothing to execute.
    Consumed(usize),
    Request(usize, Request),
    /// From here on the connection is encrypted.
    StartTls(usize),
    /// The client asked for something that is answered with an error.
    Refused(usize, u64, Failure),
    /// The client closes the connection.
    Close,
    /// What was received is not NBD.
    Broken(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    ClientFlags,
    Options,
    Transmission,
}

/// One client's connection.
pub struct Session {
    size: u64,
    export: String,
    security: Security,
    phase: Phase,
    no_zeroes: bool,
    pub structured: bool,
    context: bool,
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2))
}

fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

impl Session {
    /// A new connection; `out` gets the greeting.
    pub fn new(size: u64, export: &str, security: Security, out: &mut Vec<u8>) -> Session {
        out.extend_from_slice(b"NBDMAGIC");
        out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&3u16.to_be_bytes());
        Session {
            size,
            export: export.into(),
            security,
            phase: Phase::ClientFlags,
            no_zeroes: false,
            structured: false,
            context: false,
        }
    }

    pub fn parse(&mut self, input: &[u8], out: &mut Vec<u8>) -> Parsed {
        match self.phase {
            Phase::ClientFlags => {
                if input.len() < 4 {
                    return Parsed::Incomplete;
                }
                let flags = be32(input, 0);
                if flags & !3 != 0 || flags & 1 == 0 {
                    return Parsed::Broken("unknown client flags");
                }
                self.no_zeroes = flags & 2 != 0;
                self.phase = Phase::Options;
                Parsed::Consumed(4)
            }
            Phase::Options => self.option(input, out),
            Phase::Transmission => self.request(input),
        }
    }

    fn option(&mut self, input: &[u8], out: &mut Vec<u8>) -> Parsed {
        if input.len() < 16 {
            return Parsed::Incomplete;
        }
        if be64(input, 0) != OPTION_MAGIC {
            return Parsed::Broken("an option without its magic");
        }
        let (option, length) = (be32(input, 8), be32(input, 12) as usize);
        if length > OPTION_MAX {
            return Parsed::Broken("an option that is too long");
        }
        if input.len() < 16 + length {
            return Parsed::Incomplete;
        }
        let data = &input[16..16 + length];
        let used = 16 + length;
        if self.security == Security::Required {
            return self.before_tls(option, input.len() - used, used, out);
        }
        match option {
            1 => {
                // NBD_OPT_EXPORT_NAME has no way to refuse.
                if !self.is_export(data) {
                    return Parsed::Close;
                }
                out.extend_from_slice(&self.size.to_be_bytes());
                out.extend_from_slice(&EXPORT_FLAGS.to_be_bytes());
                if !self.no_zeroes {
                    out.extend_from_slice(&[0; 124]);
                }
                self.phase = Phase::Transmission;
            }
            2 => {
                reply(out, option, ACK, &[]);
                return Parsed::Close;
            }
            3 if data.is_empty() => {
                let name = self.export.as_bytes();
                let mut entry = (name.len() as u32).to_be_bytes().to_vec();
                entry.extend_from_slice(name);
                reply(out, option, SERVER, &entry);
                reply(out, option, ACK, &[]);
            }
            6 | 7 => self.info(option, data, out),
            8 if data.is_empty() => {
                self.structured = true;
                reply(out, option, ACK, &[]);
            }
            9 | 10 => self.contexts(option, data, out),
            3 | 8 => reply(out, option, ERR_INVALID, &[]),
            _ => reply(out, option, ERR_UNSUPPORTED, &[]),
        }
        Parsed::Consumed(used)
    }

    /// Options before TLS was started: none tells the client anything. `more`: bytes after it.
    fn before_tls(&mut self, option: u32, more: usize, used: usize, out: &mut Vec<u8>) -> Parsed {
        match option {
            // NBD_OPT_EXPORT_NAME has no way to refuse.
            1 => return Parsed::Close,
            2 => {
                reply(out, option, ACK, &[]);
                return Parsed::Close;
            }
            // What follows unencrypted would count as if it were protected.
            5 if more > 0 => return Parsed::Broken("data before the start of TLS"),
            5 if used == 16 => {
                reply(out, option, ACK, &[]);
                self.security = Security::Encrypted;
                return Parsed::StartTls(used);
            }
            5 => reply(out, option, ERR_INVALID, &[]),
            _ => reply(out, option, ERR_TLS_REQUIRED, b"TLS is required"),
        }
        Parsed::Consumed(used)
    }

    /// The bytes of a write that has not arrived completely, with its header.
    pub fn announced(&self, input: &[u8]) -> Option<usize> {
        let is_write = self.phase == Phase::Transmission
            && input.len() >= 28
            && be32(input, 0) == REQUEST_MAGIC
            && be16(input, 6) == 1
            && be32(input, 24) <= PAYLOAD_MAX;
        is_write.then(|| 28 + be32(input, 24) as usize)
    }

    pub fn is_negotiating(&self) -> bool {
        self.phase != Phase::Transmission
    }

    /// The empty name is the default export, the only one.
    fn is_export(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.export.as_bytes()
    }

    fn info(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        if data.len() < 6 || data.len() < 6 + be32(data, 0) as usize {
            reply(out, option, ERR_INVALID, &[]);
            return;
        }
        let name = &data[4..4 + be32(data, 0) as usize];
        if !self.is_export(name) {
            reply(out, option, ERR_UNKNOWN, b"no such export");
            return;
        }
        let mut export = 0u16.to_be_bytes().to_vec();
        export.extend_from_slice(&self.size.to_be_bytes());
        export.extend_from_slice(&EXPORT_FLAGS.to_be_bytes());
        reply(out, option, INFO, &export);
        let mut sizes = 3u16.to_be_bytes().to_vec();
        for size in [1u32, 4096, PAYLOAD_MAX] {
            sizes.extend_from_slice(&size.to_be_bytes());
        }
        reply(out, option, INFO, &sizes);
        reply(out, option, ACK, &[]);
        if option == 7 {
            self.phase = Phase::Transmission;
        }
    }

    /// NBD_OPT_LIST_META_CONTEXT and NBD_OPT_SET_META_CONTEXT.
    fn contexts(&mut self, option: u32, data: &[u8], out: &mut Vec<u8>) {
        let Some((name, queries)) = queries(data).filter(|_| self.structured) else {
            reply(out, option, ERR_INVALID, &[]);
            return;
        };
        if !self.is_export(name) {
            reply(out, option, ERR_UNKNOWN, b"no such export");
            return;
        }
        let is_wanted = option == 9 && queries.is_empty()
            || queries.iter().any(|query| {
                *query == CONTEXT.as_bytes() || option == 9 && *query == b"base:".as_slice()
            });
        if is_wanted {
            let mut context = CONTEXT_ID.to_be_bytes().to_vec();
            context.extend_from_slice(CONTEXT.as_bytes());
            reply(out, option, META_CONTEXT, &context);
        }
        if option == 10 {
            self.context = is_wanted;
        }
        reply(out, option, ACK, &[]);
    }

    fn request(&mut self, input: &[u8]) -> Parsed {
        if input.len() < 28 {
            return Parsed::Incomplete;
        }
        if be32(input, 0) != REQUEST_MAGIC {
            return Parsed::Broken("a request without its magic");
        }
        let (flags, code) = (be16(input, 4), be16(input, 6));
        let (cookie, offset, length) = (be64(input, 8), be64(input, 16), be32(input, 24));
        let kind = match code {
            0 => Kind::Read,
            1 => Kind::Write,
            2 => Kind::Disconnect,
            3 => Kind::Flush,
            4 => Kind::Trim,
            5 => Kind::Cache,
            6 => Kind::WriteZeroes,
            7 => Kind::BlockStatus,
            _ => return Parsed::Refused(28, cookie, Failure::Invalid),
        };
        if kind == Kind::Disconnect {
            return Parsed::Close;
        }
        let is_transfer = matches!(kind, Kind::Read | Kind::Write);
        if is_transfer && length > PAYLOAD_MAX {
            if kind == Kind::Write {
                return Parsed::Broken("a write that is too long");
            }
            return Parsed::Refused(28, cookie, Failure::Invalid);
        }
        let used = 28
            + if kind == Kind::Write {
                length as usize
            } else {
                0
            };
        if input.len() < used {
            return Parsed::Incomplete;
        }
        let is_inside = offset
            .checked_add(u64::from(length))
            .is_some_and(|end| end <= self.size);
        let is_empty = length == 0 && kind != Kind::Flush;
        // Fast zeros (16) are not offered: what is slow would have to be refused.
        let is_flagged = flags & !0xf != 0;
        let is_unasked = kind == Kind::BlockStatus && !self.context;
        if kind != Kind::Flush && !is_inside || is_empty || is_flagged || is_unasked {
            // Writing past the end is a lack of space, as the specification has it.
            let is_past = matches!(kind, Kind::Write | Kind::WriteZeroes) && !is_inside;
            let failure = if is_past {
                Failure::NoSpace
            } else {
                Failure::Invalid
            };
            return Parsed::Refused(used, cookie, failure);
        }
        let request = Request {
            kind,
            cookie,
            offset,
            length,
            fua: flags & 1 != 0,
            no_hole: flags & 2 != 0,
            one: flags & 8 != 0,
            data: input[28..used].to_vec(),
        };
        Parsed::Request(used, request)
    }

    /// The answer to anything but a successful read or block status.
    pub fn answer(&self, out: &mut Vec<u8>, cookie: u64, result: Result<(), Failure>) {
        let code = result.err().map_or(0, |failure| failure as u32);
        if self.structured && code != 0 {
            // The type of an error, with an empty message.
            chunk(out, cookie, 32769, 6);
            out.extend_from_slice(&code.to_be_bytes());
            out.extend_from_slice(&0u16.to_be_bytes());
        } else {
            simple(out, cookie, code);
        }
    }

    /// What precedes the data of a read.
    pub fn read_header(&self, out: &mut Vec<u8>, cookie: u64, offset: u64, length: u32) {
        if self.structured {
            chunk(out, cookie, 1, length + 8);
            out.extend_from_slice(&offset.to_be_bytes());
        } else {
            simple(out, cookie, 0);
        }
    }

    /// Extents by length, and whether they are holes.
    pub fn block_status(&self, out: &mut Vec<u8>, cookie: u64, extents: &[(u32, bool)]) {
        chunk(out, cookie, 5, 4 + 8 * extents.len() as u32);
        out.extend_from_slice(&CONTEXT_ID.to_be_bytes());
        for (length, is_hole) in extents {
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(&if *is_hole { 3u32 } else { 0 }.to_be_bytes());
        }
    }
}

fn reply(out: &mut Vec<u8>, option: u32, kind: u32, data: &[u8]) {
    out.extend_from_slice(&REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

fn simple(out: &mut Vec<u8>, cookie: u64, code: u32) {
    out.extend_from_slice(&SIMPLE_MAGIC.to_be_bytes());
    out.extend_from_slice(&code.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
}

/// The header of a structured reply of one chunk.
fn chunk(out: &mut Vec<u8>, cookie: u64, kind: u16, length: u32) {
    out.extend_from_slice(&STRUCTURED_MAGIC.to_be_bytes());
    out.extend_from_slice(&1u16.to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&cookie.to_be_bytes());
    out.extend_from_slice(&length.to_be_bytes());
}

/// The export name and the queries of a meta context option.
fn queries(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    fn text<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        let found = after.get(..length)?;
        *rest = &after[length..];
        Some(found)
    }
    let mut rest = data;
    let name = text(&mut rest)?;
    let (count, after) = rest.split_first_chunk::<4>()?;
    rest = after;
    let mut found = Vec::new();
    for _ in 0..u32::from_be_bytes(*count) {
        found.push(text(&mut rest)?);
    }
    Some((name, found))
}

#[cfg(test)]
mod tests;
