//! The numbering of characters: the distinct ones of a text in code point order.

use serde::{Deserialize, Serialize};

/// Ids are ranks in the sorted list. Saved with checkpoints, so that sampling reads and writes the same ids.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct CharTable {
    /// Ascending, distinct.
    chars: Vec<char>,
}

impl From<String> for CharTable {
    fn from(text: String) -> CharTable {
        CharTable::of(&text)
    }
}

impl From<CharTable> for String {
    fn from(table: CharTable) -> String {
        table.chars.into_iter().collect()
    }
}

impl CharTable {
    /// The distinct characters of a text.
    pub fn of(text: &str) -> CharTable {
        let mut seen_ascii = [false; 128];
        let mut others = std::collections::BTreeSet::new();
        for c in text.chars() {
            match seen_ascii.get_mut(c as usize) {
                Some(seen) => *seen = true,
                None => {
                    others.insert(c);
                }
            }
        }
        let ascii = (0u8..128).filter(|&b| seen_ascii[b as usize]).map(char::from);
        CharTable { chars: ascii.chain(others).collect() }
    }

    pub fn len(&self) -> usize {
        self.chars.len()
    }

    pub fn is_empty(&self) -> bool {
        self.chars.is_empty()
    }

    pub fn id(&self, c: char) -> Option<u32> {
        self.chars.binary_search(&c).ok().map(|i| i as u32)
    }

    pub fn char(&self, id: u32) -> Option<char> {
        self.chars.get(id as usize).copied()
    }

    /// The characters in order of their ids.
    pub fn chars(&self) -> &[char] {
        &self.chars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_code_points_and_survive_json() {
        let table = CharTable::of("hé\nello 🎵 Z");
        assert_eq!(table.chars(), ['\n', ' ', 'Z', 'e', 'h', 'l', 'o', 'é', '🎵']);
        assert_eq!((table.id('e'), table.id('x'), table.char(8), table.char(9)), (Some(3), None, Some('🎵'), None));
        let json = serde_json::to_string(&table).unwrap();
        assert_eq!(json, "\"\\n Zehloé🎵\"");
        assert_eq!(serde_json::from_str::<CharTable>(&json).unwrap(), table);
    }
}
