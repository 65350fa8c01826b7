//! Files that hold tensors.
//!
//! [`load`] reads PyTorch's checkpoints, safetensors files and sharded ones, and tells them apart by content; `save`
//! writes a checkpoint that `torch.load` opens. A [`StateDict`] holds values by name, a [`Value`] any value of a
//! checkpoint. [`read_npy`] reads NumPy's arrays. With the feature `npz`, `read_npz` reads archives of arrays; with
//! the feature `csv`, `CsvTable` reads tables. PyTorch's checkpoints need the feature `pytorch`.

#[cfg(feature = "csv")]
mod csv;
mod fault;
mod load;
mod npy;
mod npy_header;
#[cfg(feature = "npz")]
mod npz;
mod pretrained;
#[cfg(feature = "pytorch")]
mod pytorch;
mod read;
mod safetensors;
mod shards;
mod state_dict;
mod value;

#[cfg(feature = "csv")]
pub use csv::{CsvOptions, CsvTable, Field};
pub use load::{Load, load, load_with};
pub use npy::{npy_from_bytes, npy_to_bytes, read_npy, write_npy};
#[cfg(feature = "npz")]
pub use npz::{read_npz, write_npz, write_npz_compressed};
pub use pretrained::{Pretrained, SavePretrained};
#[cfg(feature = "pytorch")]
pub use pytorch::{read_pickle, save, save_legacy};
pub use safetensors::{Metadata, read_safetensors, write_safetensors};
pub use state_dict::StateDict;
pub use value::Value;
