//! TensorBoard's event files: a sequence of records (length, checksum, bytes, checksum; TensorFlow's TFRecord framing), each
//! a protocol buffer `Event` with scalar summaries.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use super::{Record, cannot_write};
use crate::runtime::error::Result;

/// How the names of event files begin.
pub const EVENTS: &str = "events.out.tfevents.";

/// An open event file.
#[derive(Debug)]
pub struct EventFile {
    path: PathBuf,
    file: File,
}

impl EventFile {
    /// A new file in a directory, which is made if need be.
    pub fn create(dir: &Path) -> Result<EventFile> {
        let fail = |e: std::io::Error| cannot_write(dir, &e);
        std::fs::create_dir_all(dir).map_err(fail)?;
        let seconds = now() as u64;
        let process = std::process::id();
        // several runs of one second and process, as in tests, get a number
        let mut number = 0;
        let (path, file) = loop {
            let path = dir.join(format!("{EVENTS}{seconds:010}.partita.{process}.{number}"));
            match File::create_new(&path) {
                Ok(file) => break (path, file),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => return Err(fail(e)),
            }
        };
        let mut out = EventFile { path, file };
        let mut event = event(now(), 0);
        put_bytes(&mut event, 3, b"brain.Event:2");
        out.put(&event)?;
        Ok(out)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write(&mut self, record: &Record) -> Result<()> {
        self.write_at(now(), record)
    }

    fn write_at(&mut self, wall_time: f64, record: &Record) -> Result<()> {
        let mut summary = vec![];
        for (name, value) in record.values() {
            let mut entry = vec![];
            put_bytes(&mut entry, 1, name.as_bytes());
            put_key(&mut entry, 2, FIXED32);
            entry.extend((value as f32).to_le_bytes());
            put_bytes(&mut summary, 1, &entry);
        }
        let mut event = event(wall_time, record.step);
        put_bytes(&mut event, 5, &summary);
        self.put(&event)
    }

    fn put(&mut self, event: &[u8]) -> Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        let mut out = Vec::with_capacity(event.len() + 16);
        out.extend(length);
        out.extend(masked_crc(&length).to_le_bytes());
        out.extend(event);
        out.extend(masked_crc(event).to_le_bytes());
        self.file.write_all(&out).map_err(|e| cannot_write(&self.path, &e))
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
}

/// Wire types of protocol buffers.
const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const LENGTH: u64 = 2;
const FIXED32: u64 = 5;

/// The fields that every event has: wall time and step.
fn event(wall_time: f64, step: u64) -> Vec<u8> {
    let mut out = vec![];
    put_key(&mut out, 1, FIXED64);
    out.extend(wall_time.to_le_bytes());
    put_key(&mut out, 2, VARINT);
    put_varint(&mut out, step);
    out
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_key(out: &mut Vec<u8>, field: u64, wire: u64) {
    put_varint(out, field << 3 | wire);
}

fn put_bytes(out: &mut Vec<u8>, field: u64, bytes: &[u8]) {
    put_key(out, field, LENGTH);
    put_varint(out, bytes.len() as u64);
    out.extend(bytes);
}

/// CRC-32C (Castagnoli, reflected), masked as TFRecord wants: rotated and shifted by a constant.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0; 256];
        let mut i = 0;
        while i < 256 {
            let mut c = i as u32;
            let mut bit = 0;
            while bit < 8 {
                c = if c & 1 == 1 { c >> 1 ^ 0x82f6_3b78 } else { c >> 1 };
                bit += 1;
            }
            table[i] = c;
            i += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |c, &b| c >> 8 ^ TABLE[(c as u8 ^ b) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq)]
    enum Value<'a> {
        Int(u64),
        Bytes(&'a [u8]),
    }

    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let b = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(b & 0x7f) << shift;
            shift += 7;
            if b < 0x80 {
                return value;
            }
        }
    }

    /// Field numbers and values of a message.
    fn decode(mut bytes: &[u8]) -> Vec<(u64, Value<'_>)> {
        let mut out = vec![];
        while !bytes.is_empty() {
            let key = varint(&mut bytes);
            let size = match key & 7 {
                VARINT => {
                    out.push((key >> 3, Value::Int(varint(&mut bytes))));
                    continue;
                }
                FIXED64 => 8,
                FIXED32 => 4,
                LENGTH => varint(&mut bytes) as usize,
                wire => panic!("wire type {wire}"),
            };
            let (value, rest) = bytes.split_at(size);
            out.push((key >> 3, Value::Bytes(value)));
            bytes = rest;
        }
        out
    }

    fn records(mut bytes: &[u8]) -> Vec<&[u8]> {
        let mut out = vec![];
        while !bytes.is_empty() {
            let length = u64::from_le_bytes(bytes[..8].try_into().unwrap());
            assert_eq!(bytes[8..12], masked_crc(&bytes[..8]).to_le_bytes());
            let end = 12 + length as usize;
            assert_eq!(bytes[end..end + 4], masked_crc(&bytes[12..end]).to_le_bytes());
            out.push(&bytes[12..end]);
            bytes = &bytes[end + 4..];
        }
        out
    }

    #[test]
    fn checksums_match_published_values() {
        // the check value of CRC-32C, and two vectors of RFC 3720, appendix B.4
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        // the first length of every event file (a version record of 24 bytes) is followed by these bytes
        assert_eq!(masked_crc(&24u64.to_le_bytes()).to_le_bytes(), [0xa3, 0x7f, 0x4b, 0x22]);
    }

    #[test]
    fn events_decode_to_what_was_written() {
        let dir = tempfile::tempdir().unwrap();
        let mut out = EventFile::create(&dir.path().join("tb")).unwrap();
        let record = Record {
            step: 300,
            loss: Some(1.5),
            grad_norm: Some(f64::INFINITY),
            others: vec![("balance".into(), -2.0)],
            ..Record::default()
        };
        out.write_at(12.25, &record).unwrap();
        let name = out.path().file_name().unwrap().to_str().unwrap().to_string();
        assert!(name.starts_with("events.out.tfevents."), "{name}");

        let bytes = std::fs::read(out.path()).unwrap();
        let all = records(&bytes);
        assert_eq!(all.len(), 2);
        assert_eq!(decode(all[0])[2], (3, Value::Bytes(b"brain.Event:2")));
        let event = decode(all[1]);
        assert_eq!(event[0], (1, Value::Bytes(&12.25f64.to_le_bytes())));
        assert_eq!(event[1], (2, Value::Int(300)));
        let (5, Value::Bytes(summary)) = event[2] else { panic!("{event:?}") };
        let scalars: Vec<(String, f32)> = decode(summary)
            .into_iter()
            .map(|(field, value)| {
                let (1, Value::Bytes(entry)) = (field, value) else { panic!("no value") };
                let entry = decode(entry);
                let [(1, Value::Bytes(tag)), (2, Value::Bytes(v))] = entry[..] else { panic!("{entry:?}") };
                (String::from_utf8(tag.to_vec()).unwrap(), f32::from_le_bytes(v.try_into().unwrap()))
            })
            .collect();
        let expected = [("loss", 1.5), ("grad_norm", f32::INFINITY), ("balance", -2.0)];
        assert!(scalars.iter().map(|(t, v)| (t.as_str(), *v)).eq(expected), "{scalars:?}");
    }

    #[test]
    fn runs_of_one_second_get_files_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        let a = EventFile::create(dir.path()).unwrap();
        let b = EventFile::create(dir.path()).unwrap();
        assert_ne!(a.path(), b.path());
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert_eq!(EventFile::create(&file).unwrap_err().code, "E0813");
    }
}
