//! PyTorch's checkpoints, as `torch.save` writes them.
//!
//! There are three forms, recognised by content: a zip archive (`zip`, since 1.6), a sequence of pickles with the
//! storages' bytes at the end (`legacy`), and a tar archive of pickles (before 0.1.10, `legacy` too). In each a
//! pickle describes the object, and its tensors are views of storages.
//!
//! `pickle` parses the pickle without running code, and `names` lists the names that it may use. `build` turns its
//! calls into storages and views, `fill` reads the storages, and `tree` builds the value. `plain` reads other pickles.

mod build;
mod fill;
mod legacy;
mod names;
mod pickle;
mod plain;
mod tree;
mod write;
mod zip;

pub use plain::read_pickle;
pub use write::{save, save_legacy};

use crate::Value;
use crate::fault::Fault;
use build::Storages;
use fill::Container;
use kiln_tensor::Device;
use pickle::{Graph, Id};
use std::fs::File;

/// A parsed checkpoint: its pickle, the storages of its tensors, and the file that holds their bytes.
struct Contents {
    graph: Graph,
    root: Id,
    storages: Storages,
    container: Container,
}

/// Reads a checkpoint in a zip archive.
pub(crate) fn read_zip(file: File, device: Device) -> Result<Value, Fault> {
    load(zip::open(file)?, device)
}

/// Reads a checkpoint that is a sequence of pickles.
pub(crate) fn read_legacy(file: File, device: Device) -> Result<Value, Fault> {
    load(legacy::open(file)?, device)
}

/// Reads a checkpoint in a tar archive.
pub(crate) fn read_tar(file: File, device: Device) -> Result<Value, Fault> {
    load(legacy::open_tar(file)?, device)
}

fn load(contents: Contents, device: Device) -> Result<Value, Fault> {
    let Contents {
        graph,
        root,
        storages,
        mut container,
    } = contents;
    let walk = tree::Walk::over(&graph, root)?;
    let tensors = fill::tensors(&mut container, &storages.list, &walk, device)?;
    tree::Values::new(&graph, &tensors).of(root)
}
