//! What layers and models promise.

mod support;
mod tree;
