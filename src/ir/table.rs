//! Tables that graphs share: those of parts of a program are the program's own, and what they add is beside it.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::ops::{Index, IndexMut};
use std::sync::Arc;

/// A list that is copied when one of those who share it changes it; its elements stay shared then.
#[derive(PartialEq, Debug)]
pub struct Table<T>(Arc<Vec<Arc<T>>>);

impl<T> Table<T> {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> Iter<'_, T> {
        self.into_iter()
    }

    pub fn get(&self, at: usize) -> Option<&T> {
        self.0.get(at).map(|t| &**t)
    }

    pub fn push(&mut self, element: T) {
        Arc::make_mut(&mut self.0).push(Arc::new(element));
    }

    /// Whether both have the very same element there: one of a copy that nobody has changed.
    pub fn shares(&self, other: &Table<T>, at: usize) -> bool {
        matches!((self.0.get(at), other.0.get(at)), (Some(a), Some(b)) if Arc::ptr_eq(a, b))
    }
}

impl<T: Clone> Table<T> {
    pub fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut T> {
        Arc::make_mut(&mut self.0).iter_mut().map(Arc::make_mut)
    }
}

impl<T> Clone for Table<T> {
    fn clone(&self) -> Table<T> {
        Table(self.0.clone())
    }
}

impl<T> Index<usize> for Table<T> {
    type Output = T;

    fn index(&self, at: usize) -> &T {
        &self.0[at]
    }
}

impl<T: Clone> IndexMut<usize> for Table<T> {
    fn index_mut(&mut self, at: usize) -> &mut T {
        Arc::make_mut(&mut Arc::make_mut(&mut self.0)[at])
    }
}

impl<T: Serialize> Serialize for Table<T> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self)
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

impl<T> From<Vec<T>> for Table<T> {
    fn from(list: Vec<T>) -> Table<T> {
        list.into_iter().collect()
    }
}

impl<T> FromIterator<T> for Table<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Table<T> {
        Table(Arc::new(all.into_iter().map(Arc::new).collect()))
    }
}

/// The elements in order.
pub type Iter<'a, T> = std::iter::Map<std::slice::Iter<'a, Arc<T>>, fn(&'a Arc<T>) -> &'a T>;

impl<'a, T> IntoIterator for &'a Table<T> {
    type Item = &'a T;
    type IntoIter = Iter<'a, T>;

    fn into_iter(self) -> Iter<'a, T> {
        self.0.iter().map(|t| &**t)
    }
}
