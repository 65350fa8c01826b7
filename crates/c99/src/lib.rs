//! Packages emitted as C99, for machines where nothing else runs.
//!
//! [`Export`] takes entries of a package, with sizes for their symbols, and writes sources for any compiler of C99.
//! They compile with `-Wall -Wextra -pedantic -Werror`, and need no library but `libm`. Each entry is a function that
//! allocates nothing and keeps nothing. Its temporaries are in memory from the caller, whose size is a macro; weights
//! are arrays, or a file to map.
//!
//! ```no_run
//! use kiln_c99::Export;
//! use kiln_package::Package;
//!
//! let package = Package::open("digits.kiln")?;
//! Export::new("digits").size("batch", 1).write(&package, "generated")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! ```c
//! #include "digits.h"
//!
//! static double memory[DIGITS_FORWARD_ARENA / sizeof(double) + 1];
//!
//! int classify(const float image[64], float scores[10]) {
//!   return digits_forward(image, scores, memory);
//! }
//! ```
//!
//! The emitted program follows the plan that the runtime runs. Kernels are emitted from their descriptions as loops
//! over known sizes that compilers vectorise. Tile programs are loops whose innermost loop runs over neighbouring
//! elements. Products and convolutions share one function, which sums over blocks that stay in the cache. *prepare*
//! runs when the sources are written, and weights are laid out as the loops read them.
//!
//! If an entry changes states, as a training step does, all states that the emitted entries read or change are
//! members of a struct, `digits_state`. The caller holds it and `digits_begin` fills it. A call that returns an error
//! leaves it unchanged.
//!
//! Random bits are exactly the runtime's; random numbers that `libm` computes from them are as exact as `libm`. The
//! generator is a state, which a successful call advances.
//!
//! Kernels that can't be expressed in C are refused: gradients of attention, products, convolutions and attention of
//! f16 and bf16, users' operators, and special functions that `libm` lacks.

mod emit;
mod error;
mod export;
mod prepare;
mod sources;
mod state;

pub use error::{Error, Result};
pub use export::Export;
pub use sources::{Draws, Input, Output, Program, Sources, Weights, emit};
