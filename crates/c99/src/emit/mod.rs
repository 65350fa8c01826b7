//! Kernels as C.

mod attention;
mod contraction;
mod control;
mod conv;
mod dialect;
mod images;
mod kernel;
mod lanes;
mod numbers;
mod ordered;
mod product;
mod program;
mod rows;
mod stage;
mod text;
mod tile;
mod weights;

pub(crate) use dialect::memory;
pub(crate) use numbers::{elements, number};
pub(crate) use program::{Memory, ProgramEmitter};
pub(crate) use text::{Text, identifier};

/// The functions that all sources use.
pub(crate) const SHARED: [(&str, &str); 2] = [
    ("kiln_c99.h", include_str!("kiln_c99.h")),
    ("kiln_c99.c", include_str!("kiln_c99.c")),
];
