//! Figures of a run: files that tools read, and text.
