//! Between text and ids: bytes, characters, and Hugging Face `tokenizer.json` files, behind one trait.
//!
//! `Codec::encode` turns text into ids. For output as it is generated, `codec.decoder()` gives a `Decoder`: `push(id)` returns
//! the text that is certain by now, never a part of a character, and `finish()` what is left.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::data::{CharTable, reason};
use super::error::{Result, RuntimeError};

/// A way of writing text as ids.
pub trait Codec {
    fn encode(&self, text: &str) -> Result<Vec<u32>>;

    /// Number of ids: they are `0..size`.
    fn size(&self) -> usize;

    /// The id that begins a text, where the codec has one.
    fn begin(&self) -> Option<u32> {
        None
    }

    /// The id of a token such as `<|endoftext|>` that decodes to no text.
    fn special(&self, _token: &str) -> Option<u32> {
        None
    }

    /// Decodes ids one after another.
    fn decoder(&self) -> Box<dyn Decoder + '_>;

    /// The text of all of `ids`.
    fn decode(&self, ids: &[u32]) -> Result<String> {
        let mut decoder = self.decoder();
        let mut text = String::new();
        for &id in ids {
            text += &decoder.push(id)?;
        }
        text += &decoder.finish();
        Ok(text)
    }
}

/// The state of decoding.
pub trait Decoder {
    /// The text that has become certain with this id; may be empty.
    fn push(&mut self, id: u32) -> Result<String>;

    /// The rest, with the replacement character for an incomplete one.
    fn finish(&mut self) -> String;
}

/// Ids are the bytes of UTF-8.
#[derive(Clone, Copy, Debug)]
pub struct Bytes;

/// Ids are those of a table of characters.
#[derive(Clone, Debug)]
pub struct Chars(pub CharTable);

/// Ids are written as numbers with spaces between them.
#[derive(Clone, Copy, Debug)]
pub struct Ids;

/// Which `tokenizer.json` to use. A built program carries its content, which then stands for the file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TokenizerFile {
    pub path: PathBuf,
    /// Kept apart from the description, since it is large and several descriptions share it.
    #[serde(skip)]
    pub content: Option<Arc<[u8]>>,
}

impl TokenizerFile {
    pub fn at(path: impl Into<PathBuf>) -> TokenizerFile {
        TokenizerFile { path: path.into(), content: None }
    }

    /// The bytes that it carries, or those of its file.
    pub fn bytes(&self) -> Result<Arc<[u8]>> {
        if let Some(content) = &self.content {
            return Ok(content.clone());
        }
        let name = self.path.display();
        std::fs::read(&self.path).map(Arc::from).map_err(|e| {
            RuntimeError::new("E0801", format!("cannot read tokenizer `{name}`: {}", reason(&e)))
                .place(name)
                .help("give the path of a `tokenizer.json` file")
        })
    }
}

/// A `tokenizer.json`.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// For messages.
    name: String,
}

fn no_such_id(id: u32, size: usize) -> RuntimeError {
    RuntimeError::new("E0803", format!("id {id} has no text: the vocabulary has {size} entries"))
        .help("sample with the tokenizer that the model was trained with")
}

impl Codec for Ids {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let id = |word: &str| {
            let id = word.parse::<u32>().ok().filter(|id| i32::try_from(*id).is_ok());
            id.ok_or_else(|| {
                RuntimeError::new("E0902", format!("`{word}` is no id"))
                    .help("this model's text is ids: `--prompt \"17 4 256\"`; `text` in the sample item says otherwise")
            })
        };
        text.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty()).map(id).collect()
    }

    fn size(&self) -> usize {
        i32::MAX as usize
    }

    fn begin(&self) -> Option<u32> {
        Some(0)
    }

    fn decoder(&self) -> Box<dyn Decoder + '_> {
        Box::new(IdDecoder { first: true })
    }
}

struct IdDecoder {
    first: bool,
}

impl Decoder for IdDecoder {
    fn push(&mut self, id: u32) -> Result<String> {
        let space = if std::mem::replace(&mut self.first, false) { "" } else { " " };
        Ok(format!("{space}{id}"))
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

impl Codec for Bytes {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        Ok(text.bytes().map(u32::from).collect())
    }

    fn size(&self) -> usize {
        256
    }

    fn decoder(&self) -> Box<dyn Decoder + '_> {
        Box::new(ByteDecoder { pending: vec![] })
    }
}

struct ByteDecoder {
    /// The beginning of one character.
    pending: Vec<u8>,
}

impl Decoder for ByteDecoder {
    fn push(&mut self, id: u32) -> Result<String> {
        self.pending.push(u8::try_from(id).map_err(|_| no_such_id(id, 256))?);
        let mut out = String::new();
        let mut certain = 0;
        loop {
            match std::str::from_utf8(&self.pending[certain..]) {
                Ok(text) => {
                    out += text;
                    certain = self.pending.len();
                    break;
                }
                Err(e) => {
                    let valid = certain + e.valid_up_to();
                    out += &String::from_utf8_lossy(&self.pending[certain..valid]);
                    certain = valid;
                    // a wrong byte, or the beginning of a character that may go on
                    let Some(wrong) = e.error_len() else { break };
                    out.push(char::REPLACEMENT_CHARACTER);
                    certain += wrong;
                }
            }
        }
        self.pending.drain(..certain);
        Ok(out)
    }

    fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

impl Codec for Chars {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        text.chars()
            .map(|c| {
                self.0.id(c).ok_or_else(|| {
                    RuntimeError::new("E0803", format!("character {c:?} is not among those the model was trained on"))
                        .note(format!("they are {:?}", self.0.chars().iter().collect::<String>()))
                        .help("leave it out")
                })
            })
            .collect()
    }

    fn size(&self) -> usize {
        self.0.len()
    }

    fn decoder(&self) -> Box<dyn Decoder + '_> {
        Box::new(CharDecoder(&self.0))
    }
}

struct CharDecoder<'a>(&'a CharTable);

impl Decoder for CharDecoder<'_> {
    fn push(&mut self, id: u32) -> Result<String> {
        // a vocabulary dim may be larger than the table, and an untrained model may draw beyond it
        Ok(self.0.char(id).unwrap_or(char::REPLACEMENT_CHARACTER).to_string())
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}

impl Tokenizer {
    pub fn open(file: &TokenizerFile) -> Result<Tokenizer> {
        let name = file.path.display().to_string();
        let inner = tokenizers::Tokenizer::from_bytes(file.bytes()?).map_err(|e| {
            RuntimeError::new("E0802", format!("`{name}` is no `tokenizer.json`: {e}"))
                .place(&name)
                .help("give the file of that name which comes with the model")
        })?;
        Ok(Tokenizer { inner, name })
    }

    fn encode_in_pieces(&self, text: &str, size: usize) -> Result<Vec<u32>> {
        let mut ids = vec![];
        for piece in pieces(text, size) {
            let encoding = self.inner.encode_fast(piece, false).map_err(|e| {
                RuntimeError::new("E0803", format!("tokenizer `{}` cannot encode the text: {e}", self.name))
            })?;
            ids.extend_from_slice(encoding.get_ids());
        }
        Ok(ids)
    }

    fn token_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The id of a token such as `<|endoftext|>`, which must be there.
    pub fn known_token(&self, token: &str) -> Result<u32> {
        self.token_id(token).ok_or_else(|| {
            let added = self.inner.get_added_tokens_decoder();
            let mut names: Vec<(u32, &str)> = added.iter().map(|(id, t)| (*id, t.content.as_str())).collect();
            names.sort_unstable();
            let names: Vec<&str> = names.into_iter().take(8).map(|n| n.1).collect();
            let error = RuntimeError::new("E0803", format!("tokenizer `{}` has no token `{token}`", self.name));
            if names.is_empty() {
                return error.help("it has no special tokens: name one of its vocabulary");
            }
            error.help(format!("its special tokens begin with {}", names.join(", ")))
        })
    }
}

impl Codec for Tokenizer {
    /// Without the special tokens that a post-processor would add. Long texts are cut into pieces after line ends, so that
    /// memory stays small.
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        self.encode_in_pieces(text, 1 << 20)
    }

    fn size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    fn special(&self, token: &str) -> Option<u32> {
        let id = self.token_id(token)?;
        self.inner.get_added_tokens_decoder().get(&id).is_some_and(|t| t.special).then_some(id)
    }

    /// The marks that begin texts in common vocabularies (T5's decoder begins with padding).
    fn begin(&self) -> Option<u32> {
        ["<s>", "<|begin_of_text|>", "<bos>", "<|endoftext|>", "[CLS]", "<pad>"].iter().find_map(|t| self.token_id(t))
    }

    fn decoder(&self) -> Box<dyn Decoder + '_> {
        Box::new(TokenDecoder { tokenizer: self, ids: vec![], shown: 0 })
    }
}

/// Decodes from a little before what is new, since many tokenizers write a token differently at the beginning of text.
struct TokenDecoder<'a> {
    tokenizer: &'a Tokenizer,
    ids: Vec<u32>,
    /// How many of `ids` are shown already: context for the rest.
    shown: usize,
}

impl TokenDecoder<'_> {
    fn text(&self, ids: &[u32]) -> Result<String> {
        self.tokenizer
            .inner
            .decode(ids, true)
            .map_err(|e| RuntimeError::new("E0803", format!("tokenizer `{}` cannot decode: {e}", self.tokenizer.name)))
    }
}

impl Decoder for TokenDecoder<'_> {
    fn push(&mut self, id: u32) -> Result<String> {
        /// A character takes at most four byte tokens; whatever is still broken after that stays so.
        const MOST_PENDING: usize = 4;
        if self.tokenizer.inner.id_to_token(id).is_none() {
            return Err(no_such_id(id, self.tokenizer.size()));
        }
        self.ids.push(id);
        let before = self.text(&self.ids[..self.shown])?;
        let all = self.text(&self.ids)?;
        let new = all.get(before.len()..).unwrap_or("").to_string();
        if new.ends_with(char::REPLACEMENT_CHARACTER) && self.ids.len() - self.shown < MOST_PENDING {
            return Ok(String::new());
        }
        self.ids.drain(..self.shown);
        self.shown = self.ids.len();
        Ok(new)
    }

    fn finish(&mut self) -> String {
        let before = self.text(&self.ids[..self.shown]).unwrap_or_default();
        let all = self.text(&self.ids).unwrap_or_default();
        self.shown = self.ids.len();
        all.get(before.len()..).unwrap_or("").to_string()
    }
}

/// Cuts after the first line end beyond each `size` bytes.
fn pieces(text: &str, size: usize) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = rest.as_bytes().iter().skip(size).position(|&b| b == b'\n').map_or(rest.len(), |i| size + i + 1);
        let (piece, after) = rest.split_at(end);
        rest = after;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_never_split_a_character() {
        let text = "aé漢🎵!";
        let ids = Bytes.encode(text).unwrap();
        let mut decoder = Bytes.decoder();
        let parts: Vec<String> = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
        assert_eq!(parts, ["a", "", "é", "", "", "漢", "", "", "", "🎵", "!"]);
        assert_eq!(decoder.finish(), "");
    }

    #[test]
    fn broken_bytes_become_replacement_characters() {
        assert_eq!(Bytes.decode(&[0xff, 97, 0xe6, 97, 0xe6, 0xbc]).unwrap(), "\u{fffd}a\u{fffd}a\u{fffd}");
        assert_eq!(Bytes.decode(&[256]).unwrap_err().code, "E0803");
        // as the whole would be decoded at once, for any bytes
        let mut x = 1u32;
        let noise: Vec<u32> = (0..5000)
            .map(|_| {
                x = x.wrapping_mul(1664525).wrapping_add(1013904223);
                (x >> 24) | if x & 1 << 20 != 0 { 0x80 } else { 0 }
            })
            .collect();
        let raw: Vec<u8> = noise.iter().map(|&id| id as u8).collect();
        assert_eq!(Bytes.decode(&noise).unwrap(), String::from_utf8_lossy(&raw));
    }

    #[test]
    fn characters_round_trip_and_refuse_others() {
        let codec = Chars(CharTable::of("hello wörld"));
        let ids = codec.encode("world".replace('o', "ö").as_str()).unwrap();
        assert_eq!(codec.decode(&ids).unwrap(), "wörld");
        assert!(codec.encode("x").unwrap_err().message.contains("'x'"));
        assert_eq!(codec.decode(&[99]).unwrap(), "\u{fffd}");
    }

    /// A byte-level tokenizer of a few merges, in GPT-2's style.
    const SMALL: &str = r#"{"version":"1.0","truncation":null,"padding":null,
        "added_tokens":[{"id":7,"content":"<|end|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],
        "normalizer":null,"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true},
        "post_processor":null,"decoder":{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true},
        "model":{"type":"BPE","dropout":null,"unk_token":null,"continuing_subword_prefix":null,"end_of_word_suffix":null,
        "fuse_unk":false,"byte_fallback":false,"vocab":{"a":0,"b":1,"ab":2,"Ġ":3,"Ã":4,"©":5,"Ċ":6},"merges":["a b"]}}"#;

    fn small() -> Tokenizer {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        std::fs::write(&path, SMALL).unwrap();
        Tokenizer::open(&TokenizerFile::at(&path)).unwrap()
    }

    #[test]
    fn a_tokenizer_file_encodes_and_streams() {
        let t = small();
        assert_eq!((t.size(), t.token_id("<|end|>")), (8, Some(7)));
        assert_eq!((t.special("<|end|>"), t.special("ab"), t.special("<s>")), (Some(7), None, None));
        let e = t.known_token("<|END|>").unwrap_err();
        assert!(e.code == "E0803" && e.help.is_some_and(|h| h.contains("<|end|>")));
        let ids = t.encode("ab aé<|end|>").unwrap();
        assert_eq!(ids, [2, 3, 0, 4, 5, 7]);
        let mut decoder = t.decoder();
        let parts: Vec<String> = ids.iter().map(|&id| decoder.push(id).unwrap()).collect();
        assert_eq!(parts, ["ab", " ", "a", "", "é", ""]);
        assert_eq!(decoder.finish(), "");
        assert_eq!(t.decode(&[0, 4]).unwrap(), "a\u{fffd}");
        assert_eq!(t.decode(&[0, 77]).unwrap_err().code, "E0803");
    }

    #[test]
    fn what_is_carried_stands_for_the_file() {
        let carried = TokenizerFile { content: Some(SMALL.as_bytes().into()), ..TokenizerFile::at("/no/such/file") };
        assert_eq!(Tokenizer::open(&carried).unwrap().encode("ab").unwrap(), [2]);
        let described: TokenizerFile = serde_json::from_str(&serde_json::to_string(&carried).unwrap()).unwrap();
        let e = Tokenizer::open(&described).unwrap_err();
        assert!(e.code == "E0801" && e.message.contains("`/no/such/file`: No such file"), "{e}");
    }

    #[test]
    fn pieces_cover_the_text_and_end_at_lines() {
        let text = "one\ntwo\nthree";
        assert_eq!(pieces(text, 2).collect::<Vec<_>>(), ["one\n", "two\n", "three"]);
        assert_eq!(pieces(text, 100).collect::<Vec<_>>(), [text]);
        assert_eq!(pieces("é\né", 1).collect::<Vec<_>>(), ["é\n", "é"]);
        let long = "ab ab\n".repeat(100);
        let t = small();
        assert_eq!(t.encode_in_pieces(&long, 40).unwrap(), t.encode("ab ab\n").unwrap().repeat(100));
    }

    #[test]
    fn bad_tokenizer_files_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        assert_eq!(Tokenizer::open(&TokenizerFile::at(&path)).unwrap_err().code, "E0801");
        for cut in [0, 1, 50, SMALL.len() / 2, SMALL.len() - 1] {
            std::fs::write(&path, &SMALL[..cut]).unwrap();
            assert_eq!(Tokenizer::open(&TokenizerFile::at(&path)).unwrap_err().code, "E0802");
        }
    }
}
