//! The recorder: values are recorded, held, differentiated and computed here, without PyTorch's surface.
//!
//! Operations become [`node`]s, grouped into [`recording`]s. A [`Handle`] is one of their outputs, and a [`cell`]
//! holds one and is assigned others. [`recorder`] records, at the user's line ([`caller`]) and within an enclosing
//! recording ([`scope`] for `compile`, [`body`] for loops and branches, [`repeated`] for functions that are recorded
//! once and called often). Recorded graphs are traversed by [`mod@postorder`]. [`grad`] is the graph of gradients and
//! the backward pass. [`run`] computes values, for reads and for compiled functions, and commits assignments. Nothing
//! here knows names of dims, strides, promotion or printing: the crate `tensor` is that surface.

pub mod body;
pub mod caller;
pub mod cell;
pub mod default_device;
pub mod device;
pub mod error;
mod frame;
pub mod given;
pub mod grad;
pub mod label;
pub mod memory;
mod narrow;
pub mod node;
pub mod note;
pub mod postorder;
pub mod random;
pub mod recorder;
pub mod recording;
pub mod repeated;
pub mod run;
pub mod scope;
pub mod symbols;
pub mod warning;
pub mod watch;

pub use device::Device;
pub use error::{Error, ErrorKind, Result};
pub use node::Handle;
pub use recorder::Recorder;

#[cfg(test)]
mod testing {
    //! Values for tests.

    use crate::run::read;
    use crate::{Handle, Recorder};
    use kiln_ir::{Builder, Pw, Role};
    use kiln_runtime::Buffer;
    use std::panic::Location;

    /// A vector of given numbers.
    #[track_caller]
    pub fn vector(values: &[f32]) -> Handle {
        let buffer = Buffer::from_slice(values, &[values.len() as i64]).unwrap();
        Handle::leaf(buffer, Role::Data, None, Location::caller(), "vector")
    }

    /// Applies a pointwise row to `x` and a number.
    #[track_caller]
    pub fn with(x: &Handle, row: Pw, number: f64) -> Handle {
        let mut b = Recorder::new(Location::caller(), row.name(), None);
        let number = b.scalar_like(number, x).unwrap();
        let number = b.broadcast_to(&number, x.dims()).unwrap();
        b.pointwise(row, &[x.clone(), number]).unwrap()
    }

    /// The numbers, computed if necessary.
    #[track_caller]
    pub fn values(x: &Handle) -> crate::Result<Vec<f32>> {
        Ok(read::read(x, Location::caller())?.to_vec().unwrap())
    }
}
