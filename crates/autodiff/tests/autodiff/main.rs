//! Every first and second derivative, compared with central differences.

mod adjoint;
mod differences;
mod kinks;
mod ops;
mod rows;
mod singular;
