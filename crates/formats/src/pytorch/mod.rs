//! PyTorch's checkpoints, as `torch.save` writes them.
//!
//! There are three forms, recognised by content: a zip archive (`zip`, since 1.6), a sequence of pickles with the
//! storages' bytes at the end (`legacy`), and a tar archive of pickles (before 0.1.10, `legacy` too). In each a
//! pickle describes the object, and its tensors are views of storages.
//!
//! `pickle` parses the pickle without running code, and `names` lists the names that it may use. `build` turns its
//! calls into storages and views, `fill` reads the storages, and `tree` builds the value. `plain` reads other pickles.

mod arrays;
mod build;
mod fill;
mod legacy;
mod names;
mod pickle;
mod plain;
mod tree;
mod write;
mod zip;

pub(crate) use legacy::{open as open_legacy, open_tar};
pub use plain::read_pickle;
pub use write::{save, save_legacy};
pub(crate) use zip::open as open_zip;

use crate::Value;
use crate::fault::Fault;
use build::Storages;
use fill::Container;
use kiln_tensor::Device;
use pickle::{Graph, Id};

/// A parsed checkpoint: its pickle, the storages of its tensors, and the file that holds their bytes.
pub(crate) struct Contents {
    graph: Graph,
    root: Id,
    storages: Storages,
    container: Container,
}

/// Reads the tensors of a checkpoint, and builds its value.
pub(crate) fn load(contents: Contents, device: Device) -> Result<Value, Fault> {
    let Contents {
        graph,
        root,
        storages,
        mut container,
    } = contents;
    let walk = tree::Walk::new(&graph, root)?;
    let tensors = fill::tensors(&mut container, &storages.list, &walk, device)?;
    tree::Values::new(&graph, &tensors).value(root)
}
