//! Packages, made and read with nothing above the runtime linked.

mod format;
mod made;
mod packed;
