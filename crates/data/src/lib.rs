//! Datasets, samplers and loaders, under PyTorch's names.
