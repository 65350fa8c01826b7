//! Lowered programs, run by interpreters, equal the reference.

mod cuda;
mod device;
mod fuzz;
mod numbers;
mod points;
mod run;
mod snapshots;
mod speed;
mod symbolic;
mod tiles;
mod transposed;
