//! Data files as random-access bytes: mapped into memory where possible, so that a file of any size costs nothing and is
//! read without copies, or unpacked into memory.
//!
//! A page of a map that its file no longer reaches ends the process by SIGBUS. So the file's length is asked before each
//! window or sample is read, and one that became shorter is an error; only a file that is cut in the microseconds
//! between the question and the read still ends the process.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use crate::runtime::error::{Result, RuntimeError};

/// The most that is held in memory of one compressed or parsed file.
pub const MEMORY_LIMIT: u64 = 16 << 30;

/// A readable file.
#[derive(Debug)]
pub struct DataFile {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped { file: File, map: Mmap },
    Memory(Vec<u8>),
}

impl DataFile {
    /// Opens a file; `.gz` is unpacked, and what has no length (a pipe) is read to its end.
    pub fn open(path: &Path) -> Result<DataFile> {
        let file = File::open(path).map_err(|e| cannot_read(path, &e))?;
        let meta = file.metadata().map_err(|e| cannot_read(path, &e))?;
        let bytes = if meta.is_dir() {
            return Err(RuntimeError::new("E0801", format!("data file `{}` is a directory", path.display()))
                .place(path.display())
                .help("name a file in it"));
        } else if endless(&file, &meta) {
            return Err(RuntimeError::new(
                "E0801",
                format!("data file `{}` is a device without an end", path.display()),
            )
            .place(path.display())
            .help("write what is wanted of it to a file, and name that"));
        } else if path.extension().is_some_and(|e| e == "gz") {
            Bytes::Memory(read_limited(&mut flate2::read::MultiGzDecoder::new(file), path, MEMORY_LIMIT).map_err(
                |mut e| {
                    if e.code == "E0801" {
                        e.message = e.message.replace("cannot read", "cannot unpack");
                        e.code = "E0802";
                        e.help = Some("the file is truncated or no gzip file: fetch it again".into());
                    }
                    e
                },
            )?)
        } else if meta.is_file() && meta.len() > 0 {
            let map = map(&file).map_err(|e| {
                RuntimeError::new("E0801", format!("cannot map data file `{}`: {}", path.display(), reason(&e)))
                    .place(path.display())
                    .help("copy it to a local disk, or allow more address space (`ulimit -v`)")
            })?;
            Bytes::Mapped { file, map }
        } else {
            Bytes::Memory(read_limited(&mut &file, path, MEMORY_LIMIT)?)
        };
        Ok(DataFile { path: path.to_path_buf(), bytes })
    }

    /// Bytes that stand for the file: what a parser made of it.
    pub fn memory(path: &Path, bytes: Vec<u8>) -> DataFile {
        DataFile { path: path.to_path_buf(), bytes: Bytes::Memory(bytes) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn len(&self) -> u64 {
        self.all().len() as u64
    }

    fn all(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped { map, .. } => map,
            Bytes::Memory(v) => v,
        }
    }

    /// `len` bytes from position `at`, which must lie in the file as it was opened.
    pub fn slice(&self, at: u64, len: usize) -> Result<&[u8]> {
        let from = usize::try_from(at).ok().and_then(|a| self.all().get(a..a.checked_add(len)?));
        let bytes = from.ok_or_else(|| RuntimeError::internal("a read past the end of a data file"))?;
        if let Bytes::Mapped { file, .. } = &self.bytes {
            let now = file.metadata().map_err(|e| cannot_read(&self.path, &e))?.len();
            if now < at + len as u64 {
                return Err(RuntimeError::new(
                    "E0801",
                    format!("data file `{}` became shorter meanwhile", self.path.display()),
                )
                .place(self.path.display())
                .note(format!("it had {} bytes when it was opened, now it has {now}", self.len()))
                .help("let no other program write to it during the run"));
            }
        }
        Ok(bytes)
    }

    /// The whole content.
    pub fn into_bytes(self) -> Result<Vec<u8>> {
        match self.bytes {
            Bytes::Mapped { file, .. } => read_limited(&mut &file, &self.path, MEMORY_LIMIT),
            Bytes::Memory(v) => Ok(v),
        }
    }
}

/// Devices such as `/dev/zero`. A terminal has an end, and so has `/dev/null`.
fn endless(file: &File, meta: &std::fs::Metadata) -> bool {
    use std::io::IsTerminal;
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let null = || std::fs::metadata("/dev/null").is_ok_and(|n| n.rdev() == meta.rdev());
    meta.file_type().is_char_device() && !file.is_terminal() && !null()
}

fn map(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is only read. Another process may write to the file meanwhile: every value is copied out of the map
    // before it is checked and used, so it is then the old one or the new one. A file cut short is dealt with in `slice`.
    unsafe { Mmap::map(file) }
}

/// A pipe gives its bytes once: naming it twice is an error, where opening it again would wait for ever.
pub fn pipes_once(paths: &[PathBuf]) -> Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let is_pipe = |p: &&PathBuf| std::fs::metadata(p).is_ok_and(|m| m.file_type().is_fifo());
    let twice = paths.iter().enumerate().filter(|(i, p)| paths[..*i].contains(p)).map(|(_, p)| p).find(is_pipe);
    match twice {
        None => Ok(()),
        Some(path) => {
            let message =
                format!("data file `{}` is a pipe, which can be read once, but is named twice", path.display());
            Err(RuntimeError::new("E0801", message)
                .place(path.display())
                .help("write its content to a file, and name that"))
        }
    }
}

/// The whole content as text; errors name the first bad byte.
pub fn read_text(path: &Path) -> Result<String> {
    let bytes = DataFile::open(path)?.into_bytes()?;
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        let bytes = e.as_bytes();
        let line = 1 + bytes[..at].iter().filter(|&&b| b == b'\n').count();
        malformed(path, format!("is not UTF-8 text: byte 0x{:02x} at position {at}, line {line}", bytes[at]))
            .place(format!("{}:{line}", path.display()))
            .help("convert the file to UTF-8, or read it as `bytes`")
    })
}

pub fn cannot_read(path: &Path, e: &std::io::Error) -> RuntimeError {
    let error = RuntimeError::new("E0801", format!("cannot read data file `{}`: {}", path.display(), reason(e)))
        .place(path.display());
    match e.kind() {
        std::io::ErrorKind::NotFound => error.help("check the path in `data`, or give another with `--data FILE`"),
        std::io::ErrorKind::PermissionDenied => error.help("make the file readable for this user"),
        _ => error.help("see that the disk is sound, or use a copy of the file"),
    }
}

/// `detail` goes on from "data file `x`".
pub fn malformed(path: &Path, detail: impl std::fmt::Display) -> RuntimeError {
    RuntimeError::new("E0802", format!("data file `{}` {detail}", path.display())).place(path.display())
}

/// A system message without the number that Rust appends.
pub fn reason(e: &std::io::Error) -> String {
    let text = e.to_string();
    match text.find(" (os error") {
        Some(i) => text[..i].to_string(),
        None => text,
    }
}

fn read_limited(from: &mut dyn Read, path: &Path, limit: u64) -> Result<Vec<u8>> {
    const CHUNK: usize = 1 << 20;
    let mut out = vec![];
    loop {
        let before = out.len();
        if before as u64 > limit || out.try_reserve(CHUNK).is_err() {
            return Err(RuntimeError::new("E0801", format!("data file `{}` is too large for memory", path.display()))
                .place(path.display())
                .note(format!("compressed and parsed files are held in memory, at most {} GiB", limit >> 30))
                .help("unpack it, or convert it to a `tokens` or `npy` file, which are read in place"));
        }
        from.take(CHUNK as u64).read_to_end(&mut out).map_err(|e| cannot_read(path, &e))?;
        if out.len() == before {
            return Ok(out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn missing_directory_and_broken_gz_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let e = DataFile::open(&dir.path().join("no.txt")).unwrap_err();
        assert_eq!((e.code, e.message.contains("No such file")), ("E0801", true), "{e}");
        assert_eq!(DataFile::open(dir.path()).unwrap_err().code, "E0801");

        let mut gz = flate2::write::GzEncoder::new(vec![], flate2::Compression::default());
        gz.write_all(&[7u8; 10_000]).unwrap();
        let packed = gz.finish().unwrap();
        let path = dir.path().join("a.gz");
        std::fs::write(&path, &packed).unwrap();
        assert_eq!(DataFile::open(&path).unwrap().into_bytes().unwrap(), vec![7u8; 10_000]);
        for cut in 0..packed.len() {
            std::fs::write(&path, &packed[..cut]).unwrap();
            match DataFile::open(&path) {
                Err(e) => assert_eq!(e.code, "E0802", "{e}"),
                Ok(file) => assert_eq!(file.len(), 0, "cut at {cut}"),
            }
        }
    }

    #[test]
    fn reads_are_checked_against_the_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, b"0123456789").unwrap();
        let file = DataFile::open(&path).unwrap();
        assert_eq!(file.slice(4, 2).unwrap(), b"45");
        assert_eq!(file.slice(9, 2).unwrap_err().code, "E0901");
        assert_eq!(file.slice(u64::MAX, 2).unwrap_err().code, "E0901");
        // Longer is no matter; shorter is told before the map is touched.
        std::fs::write(&path, b"abcdefghijkl").unwrap();
        assert_eq!(file.slice(4, 2).unwrap(), b"ef");
        // a page that is gone, and the rest of one that is left
        let path = dir.path().join("b");
        std::fs::write(&path, vec![7; 20_000]).unwrap();
        let file = DataFile::open(&path).unwrap();
        std::fs::write(&path, vec![8; 5_000]).unwrap();
        for at in [5_000, 4_999, 16_384] {
            let e = file.slice(at, 2).unwrap_err();
            assert!(e.code == "E0801" && e.message.contains("became shorter"), "{e}");
        }
        assert_eq!(file.slice(4_998, 2).unwrap(), [8; 2]);
    }

    #[test]
    fn a_plain_file_is_mapped_and_a_file_without_a_length_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, vec![7; 5000]).unwrap();
        assert!(matches!(DataFile::open(&path).unwrap().bytes, Bytes::Mapped { .. }));
        std::fs::write(&path, b"").unwrap();
        assert_eq!(DataFile::open(&path).unwrap().len(), 0);
        assert_eq!(DataFile::open(Path::new("/dev/null")).unwrap().len(), 0);
        // the system says 0 bytes of its own files
        #[cfg(target_os = "linux")]
        assert!(DataFile::open(Path::new("/proc/self/status")).unwrap().len() > 100);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_device_without_an_end_is_refused() {
        for path in ["/dev/zero", "/dev/urandom"] {
            let e = DataFile::open(Path::new(path)).unwrap_err();
            assert!(e.code == "E0801" && e.message.contains("without an end"), "{e}");
        }
    }

    #[test]
    fn a_pipe_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let plain = dir.path().join("plain");
        std::fs::write(&plain, b"12345").unwrap();
        let writer = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::write(pipe, b"12345").unwrap()
        });
        assert_eq!(DataFile::open(&pipe).unwrap().slice(1, 3).unwrap(), b"234");
        writer.join().unwrap();
        pipes_once(&[plain.clone(), pipe.clone(), plain.clone()]).unwrap();
        let e = pipes_once(&[pipe.clone(), plain, pipe]).unwrap_err();
        assert!(e.code == "E0801" && e.message.contains("is a pipe"), "{e}");
    }

    #[test]
    fn over_the_memory_limit_is_an_error() {
        let e = read_limited(&mut std::io::repeat(0), Path::new("zero"), 3 << 20).unwrap_err();
        assert!(e.message.contains("too large"), "{e}");
    }

    #[test]
    fn text_errors_name_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        std::fs::write(&path, b"ab\ncd\xff\n").unwrap();
        let e = read_text(&path).unwrap_err();
        assert_eq!(e.code, "E0802");
        assert!(e.message.contains("byte 0xff at position 5, line 2"), "{e}");
    }
}
