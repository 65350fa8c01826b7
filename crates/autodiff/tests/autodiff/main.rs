//! Every derivative against central differences, once and twice.

mod adjoint;
mod differences;
mod kinks;
mod ops;
mod rows;
mod singular;
