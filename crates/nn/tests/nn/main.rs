//! What layers and models promise.

mod adaptive_softmax;
mod attention;
mod cells;
mod checkpoint;
mod convolutions;
mod ctc;
mod described;
mod errors;
mod fractional_pool;
mod hooks;
mod images;
mod init;
mod layers;
mod lazy;
mod making;
mod module_hooks;
mod more;
mod pytorch;
mod rnn;
mod running_norm;
mod state;
mod support;
mod torch_schedules;
mod training;
mod tree;
mod update_bn;
