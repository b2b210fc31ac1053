//! Placeholder, written by the IR room.
