//! Exported packages, run and damaged.

mod archive;
mod compiled;
mod cublaslt;
mod cuda;
mod damage;
mod runs;
mod scaled;
mod state;
mod stored;
mod support;
