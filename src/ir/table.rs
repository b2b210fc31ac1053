//! Tables that graphs share: those of parts of a program are the program's own.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

/// A list that is copied when one of those who share it changes it.
#[derive(Clone, PartialEq, Debug)]
pub struct Table<T>(Arc<Vec<T>>);

impl<T: Serialize> Serialize for Table<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.0.as_slice().serialize(to)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Table<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Table<T>, D::Error> {
        Vec::deserialize(from).map(Table::from)
    }
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table(Arc::default())
    }
}

impl<T> Deref for Table<T> {
    type Target = Vec<T>;

    fn deref(&self) -> &Vec<T> {
        &self.0
    }
}

impl<T: Clone> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut Vec<T> {
        Arc::make_mut(&mut self.0)
    }
}

impl<T> From<Vec<T>> for Table<T> {
    fn from(list: Vec<T>) -> Table<T> {
        Table(Arc::new(list))
    }
}

impl<T> FromIterator<T> for Table<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Table<T> {
        all.into_iter().collect::<Vec<T>>().into()
    }
}

impl<'a, T> IntoIterator for &'a Table<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'a, T: Clone> IntoIterator for &'a mut Table<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        Arc::make_mut(&mut self.0).iter_mut()
    }
}
