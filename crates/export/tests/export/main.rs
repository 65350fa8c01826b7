//! Packages that functions were exported into, run and damaged.

mod archive;
mod damage;
mod runs;
mod scaled;
mod state;
mod stored;
mod support;
