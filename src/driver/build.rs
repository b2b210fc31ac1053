//! Programs that carry all they need: the runtime's own executable with a compiled program at its end.
//!
//! Layout of such a file: an executable, a program (see `program`), the length of the program in eight bytes, [`MARK`].

use super::findings::Outcome;
use super::overwrite;
use super::passes::internal;
use super::recipe::Recipe;
use super::sample::{SampleRecipe, TextForm};
use crate::program::{CarriedFile, FileError, Program};
use crate::runtime::RuntimeError;
use crate::runtime::data::Source;
use crate::runtime::tokenizer::{Tokenizer, TokenizerFile};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The last bytes of an executable that carries a program.
const MARK: &[u8; 8] = b"pta-prog";

/// Whether an executable should carry a program: its last byte is 1 then. It lies within the executable, so that one whose
/// end was cut off or altered is not taken for the compiler.
#[repr(align(32))]
struct Slot([u8; 32]);

#[used]
static SLOT: Slot = Slot(*b"partita: carries a program here\0");

/// The slot as it is in the file of this process, which the compiler of this source cannot know.
fn slot() -> &'static [u8; 32] {
    &std::hint::black_box(&SLOT).0
}

/// What a program is for; its `settings`.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Bundle {
    pub recipe: Recipe,
    pub sample: Option<SampleRecipe>,
}

impl Bundle {
    /// Makes paths absolute, so that the program may be run from anywhere, and takes the tokenizers' files into the program.
    /// Files of data and of weights stay outside, for they may be large, and others may be given.
    pub fn settle(&mut self, program: &mut Program) -> Result<(), RuntimeError> {
        self.recipe.sources_mut().into_iter().for_each(|s| absolute(&mut s.path));
        self.recipe.loads.iter_mut().for_each(|l| absolute(&mut l.path));
        // Settings are text.
        if let Some(path) = self.read_paths().iter().find(|p| p.to_str().is_none()) {
            let message = format!("the path `{}` is not UTF-8, so a program cannot carry it", path.display());
            return Err(RuntimeError::new("E0813", message).help("rename the file, or the folder that it is in"));
        }
        for file in self.tokenizers_mut() {
            let path = file.path.to_string_lossy().into_owned();
            if program.files.iter().any(|f| f.path == path) {
                continue;
            }
            // One that is no tokenizer is found here rather than by those who get the program.
            Tokenizer::open(file).map_err(|e| e.note("a built program carries its tokenizers"))?;
            program.files.push(CarriedFile { path, content: file.bytes()?.to_vec() });
        }
        Ok(())
    }

    /// Every file that building or running reads.
    pub fn read_paths(&self) -> Vec<PathBuf> {
        let mut own = self.clone();
        let tokenizers = own.tokenizers_mut().into_iter().map(|t| t.path.clone());
        self.recipe.data_paths().into_iter().chain(tokenizers).chain(self.recipe.load_paths()).collect()
    }

    /// Gives the tokenizers what the program carries.
    fn unpack(&mut self, program: &mut Program) {
        let files: Vec<(String, Arc<[u8]>)> = program.files.drain(..).map(|f| (f.path, f.content.into())).collect();
        for file in self.tokenizers_mut() {
            let path = file.path.to_string_lossy();
            file.content = files.iter().find(|f| f.0 == path).map(|f| f.1.clone());
        }
    }

    fn tokenizers_mut(&mut self) -> Vec<&mut TokenizerFile> {
        let data = self.recipe.sources_mut().into_iter().filter_map(Source::tokenizer_mut);
        let text = self.sample.as_mut().and_then(|s| s.text.as_mut()).and_then(|t| match t {
            TextForm::Tokenizer(file) => Some(file),
            TextForm::Bytes | TextForm::Chars | TextForm::Ids => None,
        });
        data.chain(text).collect()
    }
}

/// Links on the way are followed, but the file itself may be one that changes, or stand for standard input.
fn absolute(path: &mut PathBuf) {
    let folder = path.parent().map(|p| if p.as_os_str().is_empty() { Path::new(".") } else { p });
    let there = match (folder.map(std::fs::canonicalize), path.file_name()) {
        (Some(Ok(folder)), Some(name)) => Ok(folder.join(name)),
        _ => std::path::absolute(&*path),
    };
    if let Ok(there) = there {
        *path = there;
    }
}

/// Writes `program` with `bundle` behind a copy of the executable of this process; gives the file's size.
pub fn write(to: &Path, mut program: Program, bundle: &Bundle) -> Outcome<u64> {
    program.settings = serde_json::to_string(bundle).map_err(|e| internal("build", &e.to_string()))?;
    let cannot = |e: std::io::Error| overwrite::unwritten(to, &e);
    let mut bytes = own_executable().map_err(cannot)?;
    let (words, _) = slot().split_at(31);
    for place in bytes.chunks_exact_mut(32).filter(|c| c.starts_with(words)) {
        place[31] = 1;
    }
    let program = program.to_bytes();
    bytes.extend_from_slice(&program);
    bytes.extend_from_slice(&(program.len() as u64).to_le_bytes());
    bytes.extend_from_slice(MARK);
    let name = to.file_name().unwrap_or_default().to_string_lossy();
    let temporary = to.with_file_name(format!(".{name}.tmp"));
    let written = File::create(&temporary)
        .and_then(|mut f| f.write_all(&bytes).and_then(|()| f.sync_all()))
        .and_then(|()| executable(&temporary))
        .and_then(|()| std::fs::rename(&temporary, to));
    if let Err(e) = written {
        let _ = std::fs::remove_file(&temporary);
        return Err(cannot(e));
    }
    Ok(bytes.len() as u64)
}

/// The runtime alone: a program at the end of this executable is left out.
fn own_executable() -> std::io::Result<Vec<u8>> {
    let mut bytes = std::fs::read(std::env::current_exe()?)?;
    if let Some(n) = carried(bytes.last_chunk::<TAIL>()) {
        let rest = (bytes.len() - TAIL).saturating_sub(n as usize);
        bytes.truncate(rest);
    }
    Ok(bytes)
}

#[cfg(unix)]
fn executable(path: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755))
}

#[cfg(not(unix))]
fn executable(_: &Path) -> std::io::Result<()> {
    Ok(())
}

/// Length and mark.
const TAIL: usize = 16;

/// The length of the program before these last bytes, if there is one.
fn carried(tail: Option<&[u8; TAIL]>) -> Option<u64> {
    let (length, mark) = tail?.split_first_chunk::<8>()?;
    (mark == MARK).then(|| u64::from_le_bytes(*length))
}

/// The program at the end of the executable of this process, if it carries one.
pub fn carried_program() -> Result<Option<(Program, Bundle)>, RuntimeError> {
    let unusable = |why: String| {
        RuntimeError::new("E0812", format!("the program in this executable {why}")).help("build it again")
    };
    // An executable that cannot be read carries nothing that could be run.
    let Some(bytes) = std::env::current_exe().ok().and_then(|exe| last_part(&exe).ok().flatten()) else {
        return if slot()[31] == 1 { Err(unusable("is damaged: its end is missing".into())) } else { Ok(None) };
    };
    let mut program = Program::from_bytes(&bytes).map_err(|e| {
        unusable(match e {
            FileError::NotAProgram | FileError::Damaged => "is damaged".to_string(),
            FileError::Version(v) => format!("has version {v}, which this runtime does not read"),
        })
    })?;
    let mut bundle: Bundle =
        serde_json::from_str(&program.settings).map_err(|e| unusable(format!("has bad settings: {e}")))?;
    bundle.unpack(&mut program);
    Ok(Some((program, bundle)))
}

fn last_part(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let mut file = File::open(path)?;
    let size = file.metadata()?.len();
    if size < TAIL as u64 {
        return Ok(None);
    }
    file.seek(SeekFrom::End(-(TAIL as i64)))?;
    let mut tail = [0; TAIL];
    file.read_exact(&mut tail)?;
    let Some(n) = carried(Some(&tail)).filter(|n| *n <= size - TAIL as u64) else { return Ok(None) };
    file.seek(SeekFrom::Start(size - TAIL as u64 - n))?;
    let mut bytes = Vec::new();
    file.take(n).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}
