//! A folder of entries, found again by all that they depend on: what was compiled before need not be compiled again.
//!
//! Nothing here may fail a command. What is damaged, of another version or cannot be read is not there; what cannot be
//! written is not kept. Entries are written beside their place and renamed, so readers see whole ones alone. When all
//! together are too large, those that were used longest ago go.

use crate::runtime::checkpoint::bytes_fingerprint;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// Most bytes of all entries together.
const MOST_BYTES: u64 = 512 << 20;
/// What a process that has ended left half written is removed after this time.
const FORGOTTEN: Duration = Duration::from_secs(3600);

const MAGIC: &[u8; 8] = b"ptacache";
const EXTENSION: &str = "compiled";
const UNFINISHED: &str = "tmp";
/// Magic, length of the key, length and checksum of the content.
const HEADER: usize = 8 + 8 + 8 + 4;

/// The folder; there may be none yet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cache {
    folder: PathBuf,
    most: u64,
}

/// What a cache holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    pub entries: usize,
    pub bytes: u64,
}

/// An entry of the folder.
struct Entry {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
    finished: bool,
}

impl Cache {
    pub fn at(folder: impl Into<PathBuf>) -> Cache {
        Cache { folder: folder.into(), most: MOST_BYTES }
    }

    /// The same with another limit to all entries together.
    pub fn with_most(self, most: u64) -> Cache {
        Cache { most, ..self }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The content that was put under this key.
    pub fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        if self.is_open_to_all() {
            return None;
        }
        let mut file = File::open(self.path(key)).ok()?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).ok()?;
        let content = content(&bytes, key)?;
        // Entries go in the order of their last use; where that cannot be noted, of their making.
        let _ = file.set_modified(SystemTime::now());
        bytes.drain(..content);
        Some(bytes)
    }

    /// Keeps a content; says why if it cannot.
    pub fn put(&self, key: &[u8], content: &[u8]) -> io::Result<()> {
        if content.len() as u64 > self.most {
            return Err(io::Error::other("it is larger than the cache"));
        }
        self.make_folder()?;
        if self.is_open_to_all() {
            return Err(io::Error::other("others may write to the folder"));
        }
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let unfinished = self.folder.join(format!("{}-{number}.{UNFINISHED}", std::process::id()));
        let written = File::create(&unfinished).and_then(|mut f| {
            f.write_all(MAGIC)?;
            f.write_all(&(key.len() as u64).to_le_bytes())?;
            f.write_all(&(content.len() as u64).to_le_bytes())?;
            f.write_all(&crc32fast::hash(content).to_le_bytes())?;
            f.write_all(key)?;
            f.write_all(content)
        });
        let placed = written.and_then(|()| fs::rename(&unfinished, self.path(key)));
        if placed.is_err() {
            let _ = fs::remove_file(&unfinished);
        }
        placed?;
        self.make_room();
        Ok(())
    }

    /// What there is; an error says why the folder cannot be used.
    pub fn held(&self) -> io::Result<Held> {
        if self.is_open_to_all() {
            return Err(io::Error::other("others may write to the folder"));
        }
        let all = match fs::read_dir(&self.folder) {
            Ok(_) => self.entries(),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(e) => return Err(e),
        };
        Ok(Held { entries: all.iter().filter(|e| e.finished).count(), bytes: all.iter().map(|e| e.bytes).sum() })
    }

    /// Two keys of one name are told apart by the entry itself.
    fn path(&self, key: &[u8]) -> PathBuf {
        self.folder.join(format!("{}.{EXTENSION}", bytes_fingerprint(key)))
    }

    #[cfg(unix)]
    fn make_folder(&self) -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)
    }

    #[cfg(not(unix))]
    fn make_folder(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)
    }

    /// Whether anybody may put entries there, whose machine code would then be run.
    #[cfg(unix)]
    fn is_open_to_all(&self) -> bool {
        use std::os::unix::fs::MetadataExt;
        fs::metadata(&self.folder).is_ok_and(|m| m.mode() & 0o002 != 0)
    }

    #[cfg(not(unix))]
    fn is_open_to_all(&self) -> bool {
        false
    }

    fn entries(&self) -> Vec<Entry> {
        let Ok(list) = fs::read_dir(&self.folder) else { return Vec::new() };
        let entry = |path: PathBuf| {
            let finished = match path.extension()?.to_str()? {
                EXTENSION => true,
                UNFINISHED => false,
                _ => return None,
            };
            let facts = fs::metadata(&path).ok().filter(fs::Metadata::is_file)?;
            Some(Entry { bytes: facts.len(), used: facts.modified().ok()?, finished, path })
        };
        list.flatten().filter_map(|e| entry(e.path())).collect()
    }

    fn make_room(&self) {
        let now = SystemTime::now();
        let age = |e: &Entry| now.duration_since(e.used).unwrap_or_default();
        let (mut finished, unfinished): (Vec<Entry>, Vec<Entry>) = self.entries().into_iter().partition(|e| e.finished);
        for e in unfinished.iter().filter(|e| age(e) > FORGOTTEN) {
            let _ = fs::remove_file(&e.path);
        }
        finished.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        let mut bytes: u64 = finished.iter().map(|e| e.bytes).sum();
        for e in finished {
            if bytes <= self.most {
                break;
            }
            // Another process may have been faster.
            let _ = fs::remove_file(&e.path);
            bytes -= e.bytes;
        }
    }
}

/// Where the content of an entry begins, if it is whole and of this key.
fn content(bytes: &[u8], key: &[u8]) -> Option<usize> {
    let header = bytes.get(..HEADER)?;
    let long = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
    let sum = u32::from_le_bytes(header[24..28].try_into().expect("four bytes"));
    let begin = HEADER + key.len();
    let whole = &header[..8] == MAGIC
        && long(8) == key.len() as u64
        && bytes.get(HEADER..begin)? == key
        && long(16) == (bytes.len() - begin) as u64
        && crc32fast::hash(&bytes[begin..]) == sum;
    whole.then_some(begin)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(most: u64) -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache::at(folder.path().join("deep/cache")).with_most(most);
        (folder, cache)
    }

    #[test]
    fn what_was_put_is_found_by_its_key_alone() {
        let (_folder, cache) = cache(1 << 20);
        assert_eq!((cache.get(b"a"), cache.held().expect("no folder is no error")), (None, Held::default()));
        cache.put(b"a", b"one").expect("it can be written");
        cache.put(b"b", b"").expect("it can be written");
        assert_eq!((cache.get(b"a"), cache.get(b"b")), (Some(b"one".to_vec()), Some(vec![])));
        assert_eq!((cache.get(b""), cache.get(b"ab")), (None, None));
        cache.put(b"a", b"two").expect("it can be written");
        assert_eq!(cache.get(b"a"), Some(b"two".to_vec()));
        assert_eq!(cache.held().expect("readable").entries, 2);
    }

    #[test]
    fn an_entry_of_another_key_under_this_name_is_not_taken() {
        let (_folder, cache) = cache(1 << 20);
        cache.put(b"a", b"one").expect("it can be written");
        fs::rename(cache.path(b"a"), cache.path(b"c")).expect("it can be renamed");
        assert_eq!(cache.get(b"c"), None);
    }

    #[test]
    fn damage_anywhere_is_a_miss() {
        let (_folder, cache) = cache(1 << 20);
        cache.put(b"key", b"content").expect("it can be written");
        let path = cache.path(b"key");
        let good = fs::read(&path).expect("it is there");
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            fs::write(&path, &bad).expect("it can be written");
            assert_eq!(cache.get(b"key"), None, "byte {at}");
            fs::write(&path, &good[..at]).expect("it can be written");
            assert_eq!(cache.get(b"key"), None, "cut at {at}");
        }
        fs::write(&path, [&good[..], b"x"].concat()).expect("it can be written");
        assert_eq!(cache.get(b"key"), None);
        fs::write(&path, &good).expect("it can be written");
        assert_eq!(cache.get(b"key"), Some(b"content".to_vec()));
    }

    #[test]
    fn the_entries_used_longest_ago_make_room() {
        let (_folder, cache) = cache(350);
        let long_ago = SystemTime::now() - Duration::from_secs(100);
        for (n, key) in [b"a", b"b", b"c"].into_iter().enumerate() {
            cache.put(key, &[7; 60]).expect("it can be written");
            let file = File::options().write(true).open(cache.path(key)).expect("it is there");
            file.set_modified(long_ago + Duration::from_secs(n as u64)).expect("its time can be set");
        }
        assert!(cache.get(b"a").is_some(), "used now");
        cache.put(b"d", &[7; 60]).expect("it can be written");
        cache.put(b"e", &[7; 60]).expect("it can be written");
        // Three of them fit.
        let found = [b"a", b"b", b"c", b"d", b"e"].map(|key| cache.get(key).is_some());
        assert_eq!(found, [true, false, false, true, true]);
        assert!(cache.put(b"f", &[7; 400]).is_err(), "larger than all");
        assert!(cache.held().expect("readable").bytes <= 350);
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_that_anybody_may_write_to_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let (_folder, cache) = cache(1 << 20);
        cache.put(b"a", b"one").expect("it can be written");
        fs::set_permissions(cache.folder(), fs::Permissions::from_mode(0o777)).expect("it is ours");
        assert!(cache.get(b"a").is_none() && cache.put(b"b", b"").is_err() && cache.held().is_err());
    }
}
