//! Which files a btrfs send stream changes, read from a stream without data.
//!
//! The kernel creates new files under temporary names and renames them later, and renames what it
//! deletes before that: so names are followed to their final value.

use crate::btrfs_stream::{attribute, command, Command};
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Only times were set: of a folder, because something in it changed; of a file, by `touch`.
    Times,
    Metadata,
    Renamed,
    Modified,
    Deleted,
    Added,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Times => "times",
            Self::Metadata => "metadata",
            Self::Renamed => "renamed",
            Self::Modified => "modified",
            Self::Deleted => "deleted",
            Self::Added => "added",
        }
    }
}

/// Offset and length of data.
type Ranges = Vec<(u64, u64)>;

#[derive(Clone, Debug)]
struct Entry {
    /// Its path in the base; None: it is new.
    origin: Option<Vec<u8>>,
    /// The changes to it at its current path.
    kind: Kind,
    data_bytes: u64,
    /// Where its data changed, as (offset, length).
    ranges: Ranges,
}

/// Collects the changes command by command.
#[derive(Default)]
pub struct Changes {
    now: BTreeMap<Vec<u8>, Entry>,
    deleted: Vec<Vec<u8>>,
    /// From a name to the newest link with that name.
    links: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Changes {
    pub fn take(&mut self, command: &Command) {
        let Some(path) = command.attribute(attribute::PATH) else {
            return;
        };
        match command.kind {
            command::SUBVOL | command::SNAPSHOT | command::END => {}
            command::MKFILE..=command::SYMLINK => self.add(path),
            command::LINK => {
                self.add(path);
                if let Some(from) = command.attribute(attribute::PATH_LINK) {
                    self.links.insert(from.to_vec(), path.to_vec());
                }
            }
            command::RENAME => {
                if let Some(to) = command.attribute(attribute::PATH_TO) {
                    self.rename(path, to);
                }
            }
            command::UNLINK | command::RMDIR => self.remove(path),
            command::UPDATE_EXTENT | command::TRUNCATE | command::FALLOCATE => {
                let bytes = match command.kind {
                    command::UPDATE_EXTENT => command.number(attribute::SIZE).unwrap_or(0),
                    _ => 0,
                };
                self.touch(path, Kind::Modified, bytes);
                self.range(path, command);
            }
            command::WRITE | command::ENCODED_WRITE => {
                let bytes = command.attribute(attribute::DATA).map_or(0, <[u8]>::len);
                self.touch(path, Kind::Modified, bytes as u64);
            }
            command::CLONE => {
                let bytes = command.number(attribute::CLONE_LEN).unwrap_or(0);
                self.touch(path, Kind::Modified, bytes);
            }
            command::UTIMES => self.touch(path, Kind::Times, 0),
            _ => self.touch(path, Kind::Metadata, 0),
        }
    }

    fn add(&mut self, path: &[u8]) {
        let entry = Entry {
            origin: None,
            kind: Kind::Times,
            data_bytes: 0,
            ranges: Vec::new(),
        };
        self.now.insert(path.to_vec(), entry);
    }

    fn touch(&mut self, path: &[u8], kind: Kind, data_bytes: u64) {
        if path.is_empty() && kind == Kind::Times {
            return;
        }
        let entry = self.now.entry(path.to_vec()).or_insert_with(|| Entry {
            origin: Some(path.to_vec()),
            kind,
            data_bytes: 0,
            ranges: Vec::new(),
        });
        entry.kind = entry.kind.max(kind);
        entry.data_bytes = entry.data_bytes.saturating_add(data_bytes);
    }

    /// Note where a command of a stream without data changes a file.
    fn range(&mut self, path: &[u8], command: &Command) {
        let Some(entry) = self.now.get_mut(path) else {
            return;
        };
        let at = command.number(attribute::FILE_OFFSET).unwrap_or(0);
        let size = command.number(attribute::SIZE).unwrap_or(0);
        entry.ranges.push(match command.kind {
            command::TRUNCATE => (size, u64::MAX - size),
            _ => (at, size),
        });
    }

    /// The changed paths that exist now, folders of which only the times changed among them, each
    /// with the ranges of its data that changed. New files have no origin to compare with.
    pub fn ranges(self) -> Vec<(Vec<u8>, Ranges)> {
        let now = self.now.into_iter();
        now.map(|(path, entry)| (path, entry.ranges)).collect()
    }

    /// The path in the base of a name that has no change of its own except, perhaps, that a parent
    /// folder was renamed: the kernel renames a folder before it deletes its content.
    fn origin_of(&self, path: &[u8]) -> Vec<u8> {
        let slashes = path.iter().enumerate().filter(|(_, &byte)| byte == b'/');
        for (at, _) in slashes.rev() {
            if let Some(Entry {
                origin: Some(origin),
                ..
            }) = self.now.get(&path[..at])
            {
                return [origin, &path[at..]].concat();
            }
        }
        path.to_vec()
    }

    fn rename(&mut self, path: &[u8], to: &[u8]) {
        let entry = self.now.remove(path).unwrap_or_else(|| Entry {
            origin: Some(self.origin_of(path)),
            kind: Kind::Times,
            data_bytes: 0,
            ranges: Vec::new(),
        });
        // Known entries below a folder move with it, without being renamed themselves.
        let mut prefix = path.to_vec();
        prefix.push(b'/');
        let below: Vec<Vec<u8>> = self
            .now
            .range(prefix.clone()..)
            .take_while(|(name, _)| name.starts_with(&prefix))
            .map(|(name, _)| name.clone())
            .collect();
        for old in below {
            if let Some(mut moved) = self.now.remove(&old) {
                let new = [to, &old[path.len()..]].concat();
                if moved.origin.as_ref() == Some(&old) {
                    moved.origin = Some(new.clone());
                }
                self.now.insert(new, moved);
            }
        }
        self.now.insert(to.to_vec(), entry);
    }

    fn remove(&mut self, path: &[u8]) {
        let old = self.now.remove(path);
        let origin = match &old {
            Some(entry) if entry.origin.as_deref() != Some(path) => entry.origin.clone(),
            _ => Some(self.origin_of(path)),
        };
        // A rename is often sent as a new link and the removal of the old one.
        let moved = self
            .links
            .remove(path)
            .and_then(|link| self.now.get_mut(&link));
        match moved {
            Some(entry) if entry.origin.is_none() => {
                entry.origin = origin;
                if let Some(old) = old {
                    entry.kind = entry.kind.max(old.kind);
                    entry.data_bytes = entry.data_bytes.saturating_add(old.data_bytes);
                    entry.ranges.extend(old.ranges);
                }
            }
            _ => self.deleted.extend(origin),
        }
    }

    /// The changes, ordered by path: (path, kind, bytes of data).
    pub fn finish(mut self) -> Vec<(Vec<u8>, Kind, u64)> {
        let mut found: BTreeMap<Vec<u8>, (Kind, u64)> = BTreeMap::new();
        for path in std::mem::take(&mut self.deleted) {
            found.insert(path, (Kind::Deleted, 0));
        }
        for (path, entry) in &self.now {
            let kind = match (&entry.origin, entry.kind) {
                (None, _) => Kind::Added,
                (Some(origin), Kind::Times | Kind::Metadata) if origin != path => Kind::Renamed,
                (_, kind) => kind,
            };
            // Replaced by another file of the same name: reported as a change of that file.
            let replaced = found.contains_key(path);
            let kind = if replaced { Kind::Modified } else { kind };
            found.insert(path.clone(), (kind, entry.data_bytes));
        }
        drop_parents(&mut found);
        found
            .into_iter()
            .map(|(path, (kind, bytes))| (path, kind, bytes))
            .collect()
    }
}

/// Drop folders of which only the times changed, because of changes to their content.
fn drop_parents(found: &mut BTreeMap<Vec<u8>, (Kind, u64)>) {
    let mut parents = std::collections::BTreeSet::new();
    for path in found.keys() {
        for (at, _) in path.iter().enumerate().filter(|(_, &byte)| byte == b'/') {
            parents.insert(path[..at].to_vec());
        }
    }
    found.retain(|path, (kind, _)| *kind != Kind::Times || !parents.contains(path));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btrfs_stream::tests::{begin, encode};
    use crate::btrfs_stream::Scanner;

    fn changes(commands: &[Vec<u8>]) -> Vec<(String, &'static str, u64)> {
        let mut changes = Changes::default();
        let mut scanner = Scanner::default();
        let mut take = |command: &Command| changes.take(command);
        scanner.feed(&begin(), &mut take).unwrap();
        for command in commands {
            scanner.feed(command, &mut take).unwrap();
        }
        changes
            .finish()
            .into_iter()
            .map(|(path, kind, bytes)| (String::from_utf8(path).unwrap(), kind.name(), bytes))
            .collect()
    }

    fn one(kind: u16, path: &str) -> Vec<u8> {
        encode(kind, &[(attribute::PATH, path.as_bytes())])
    }

    fn two(kind: u16, path: &str, to: &str) -> Vec<u8> {
        encode(
            kind,
            &[
                (attribute::PATH, path.as_bytes()),
                (attribute::PATH_TO, to.as_bytes()),
            ],
        )
    }

    fn extent(path: &str, bytes: u64) -> Vec<u8> {
        encode(
            command::UPDATE_EXTENT,
            &[
                (attribute::PATH, path.as_bytes()),
                (attribute::SIZE, &bytes.to_le_bytes()),
            ],
        )
    }

    #[test]
    fn new_files_have_their_last_name_and_folders_are_no_noise() {
        let found = changes(&[
            one(command::MKFILE, "o1-2-0"),
            two(command::RENAME, "o1-2-0", "dir/new"),
            one(command::UTIMES, "dir"),
            extent("dir/new", 10),
            extent("dir/old", 5),
            one(command::UTIMES, "touched"),
        ]);
        assert_eq!(
            found,
            [
                ("dir/new".to_string(), "added", 10),
                ("dir/old".to_string(), "modified", 5),
                ("touched".to_string(), "times", 0),
            ]
        );
    }

    #[test]
    fn ranges_follow_renames_and_include_what_a_truncation_cuts() {
        let mut changes = Changes::default();
        let mut scanner = Scanner::default();
        let at = |path: &str, at: u64, bytes: u64| {
            encode(
                command::UPDATE_EXTENT,
                &[
                    (attribute::PATH, path.as_bytes()),
                    (attribute::FILE_OFFSET, &at.to_le_bytes()),
                    (attribute::SIZE, &bytes.to_le_bytes()),
                ],
            )
        };
        let cut = [
            (attribute::PATH, &b"dir/x"[..]),
            (attribute::SIZE, &7u64.to_le_bytes()),
        ];
        for command in [
            begin(),
            at("dir/x", 4096, 10),
            encode(command::TRUNCATE, &cut),
            two(command::RENAME, "dir", "other"),
            one(command::UTIMES, "y"),
        ] {
            scanner.feed(&command, &mut |c| changes.take(c)).unwrap();
        }
        let found = changes.ranges();
        assert_eq!(
            found,
            [
                (b"other".to_vec(), vec![]),
                (b"other/x".to_vec(), vec![(4096, 10), (7, u64::MAX - 7)]),
                (b"y".to_vec(), vec![]),
            ]
        );
    }

    #[test]
    fn what_is_deleted_with_its_folder_has_the_name_it_had() {
        let found = changes(&[
            two(command::RENAME, "docs", "o257-7-0"),
            two(command::RENAME, "o257-7-0/sub", "o258-7-0"),
            one(command::UTIMES, "o257-7-0/touched"),
            one(command::UNLINK, "o257-7-0/touched"),
            one(command::UNLINK, "o257-7-0/a"),
            one(command::UNLINK, "o258-7-0/b"),
            one(command::RMDIR, "o258-7-0"),
            one(command::RMDIR, "o257-7-0"),
        ]);
        let names = ["docs", "docs/a", "docs/sub", "docs/sub/b", "docs/touched"];
        let expected: Vec<_> = names.map(|n| (n.to_string(), "deleted", 0)).to_vec();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_link_made_before_the_old_name_goes_is_a_rename() {
        let link = |path: &str, from: &str| {
            encode(
                command::LINK,
                &[
                    (attribute::PATH, path.as_bytes()),
                    (attribute::PATH_LINK, from.as_bytes()),
                ],
            )
        };
        let found = changes(&[
            link("new", "old"),
            one(command::UNLINK, "old"),
            one(command::UTIMES, "new"),
            link("second name", "kept"),
        ]);
        assert_eq!(
            found,
            [
                ("new".to_string(), "renamed", 0),
                ("second name".to_string(), "added", 0),
            ]
        );
    }

    #[test]
    fn renames_deletions_and_replacements_are_told_apart() {
        let found = changes(&[
            two(command::RENAME, "a", "b"),
            extent("b/inside", 3),
            two(command::RENAME, "gone", "o3-4-0"),
            one(command::RMDIR, "o3-4-0"),
            one(command::MKFILE, "o5-6-0"),
            one(command::UNLINK, "replaced"),
            two(command::RENAME, "o5-6-0", "replaced"),
            one(command::MKFILE, "brief"),
            one(command::UNLINK, "brief"),
        ]);
        assert_eq!(
            found,
            [
                ("b".to_string(), "renamed", 0),
                ("b/inside".to_string(), "modified", 3),
                ("gone".to_string(), "deleted", 0),
                ("replaced".to_string(), "modified", 0),
            ]
        );
    }
}
