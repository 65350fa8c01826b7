//! Writes compiled functions, with the values that belong to them, into [packages](kiln_package).

mod builder;
mod exported;
mod names;

pub use builder::Builder;
