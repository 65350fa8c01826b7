//! Printed sources, compiled by the system's C compiler if there is one.

mod cc;
mod convolutions;
mod models;
mod primitives;
mod random;
mod scaled;
mod training;
