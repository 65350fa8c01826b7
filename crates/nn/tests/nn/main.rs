//! What layers and models promise.

mod attention;
mod errors;
mod init;
mod layers;
mod rnn;
mod running_norm;
mod state;
mod support;
mod training;
mod tree;
