//! Bytes of a program: `PARTITA` and a version, the length and checksum of the body, the body in postcard.

use super::{Program, VERSION};

/// The first bytes of a stored program.
pub const MAGIC: &[u8; 8] = b"PARTITA\0";

const HEADER: usize = 8 + 4 + 8 + 4;

/// Why bytes are not a program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileError {
    /// No program starts here.
    NotAProgram,
    /// Written by another version of Partita.
    Version(u32),
    /// Cut off or altered.
    Damaged,
}

impl Program {
    pub fn to_bytes(&self) -> Vec<u8> {
        let body = postcard::to_stdvec(self).expect("a program holds nothing that postcard cannot write");
        let mut out = Vec::with_capacity(HEADER + body.len());
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&(body.len() as u64).to_le_bytes());
        out.extend_from_slice(&crc32fast::hash(&body).to_le_bytes());
        out.extend_from_slice(&body);
        out
    }

    /// Reads a program at the start of `bytes`; what follows it is ignored.
    pub fn from_bytes(bytes: &[u8]) -> Result<Program, FileError> {
        let header = bytes.get(..HEADER).ok_or(FileError::NotAProgram)?;
        if &header[..8] != MAGIC {
            return Err(FileError::NotAProgram);
        }
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        if word(8) != VERSION {
            return Err(FileError::Version(word(8)));
        }
        let length = u64::from_le_bytes(header[12..20].try_into().expect("eight bytes"));
        let end = usize::try_from(length).ok().and_then(|n| n.checked_add(HEADER)).ok_or(FileError::Damaged)?;
        let body = bytes.get(HEADER..end).ok_or(FileError::Damaged)?;
        if crc32fast::hash(body) != word(20) {
            return Err(FileError::Damaged);
        }
        postcard::from_bytes(body).map_err(|_| FileError::Damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Routine, Source};

    fn sample() -> Program {
        Program {
            version: VERSION,
            constants: vec![1, 2, 3],
            routines: vec![Routine { name: "train".into(), arena: 640, ..Routine::default() }],
            sources: vec![Source::default()],
            settings: "{\"steps\":3}".into(),
            ..Program::default()
        }
    }

    #[test]
    fn a_program_survives_its_bytes() {
        let mut bytes = sample().to_bytes();
        bytes.extend_from_slice(b"what follows");
        assert_eq!(Program::from_bytes(&bytes), Ok(sample()));
    }

    #[test]
    fn damage_is_found() {
        let good = sample().to_bytes();
        assert_eq!(Program::from_bytes(b"PART"), Err(FileError::NotAProgram));
        assert_eq!(Program::from_bytes(&good[..good.len() - 1]), Err(FileError::Damaged));
        let mut flipped = good.clone();
        *flipped.last_mut().expect("not empty") ^= 1;
        assert_eq!(Program::from_bytes(&flipped), Err(FileError::Damaged));
        let mut newer = good.clone();
        newer[8] = 99;
        assert_eq!(Program::from_bytes(&newer), Err(FileError::Version(99)));
        let mut long = good;
        long[12..20].fill(0xFF);
        assert_eq!(Program::from_bytes(&long), Err(FileError::Damaged));
    }
}
