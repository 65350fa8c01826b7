//! Layers, initialisers, optimisers and schedules, under PyTorch's names.

pub mod optim;
