//! Reading files of any form.

use crate::fault::Fault;
#[cfg(feature = "pytorch")]
use crate::pytorch;
use crate::{StateDict, Value, safetensors, shards};
use kiln_tensor::{Device, Result, options};
use std::fs::File;
use std::io::{Read, Seek};
use std::panic::Location;
use std::path::Path;

options! {
    /// Options of [`load_with`].
    Load () {
        /// The device of the loaded tensors: PyTorch's `map_location`. By default it is the CPU, wherever they were
        /// saved.
        device: Device = Device::Cpu,
    }
}

/// Reads the value in a file: PyTorch's checkpoints (`torch.load`; with the feature `pytorch`), safetensors files,
/// and the indices of sharded ones, whose tensors are a dict. The form is recognised by content, not by name. No code
/// in a checkpoint is run: anything but tensors, numbers, texts, lists and dicts is an error.
///
/// ```no_run
/// // torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 7}, "last.pt")
/// let checkpoint = kiln_formats::load("last.pt")?;
/// let weights = checkpoint.get("model")?.state_dict()?; // for Module::load_state_dict
/// let moments = checkpoint.get("optimizer")?; // for Optimizer::load_state_dict, by `.try_into()?`
/// let epoch = checkpoint.get("epoch")?.int()?;
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// # Errors
/// If the file can't be read, is damaged, or holds values of a kind that Kiln does not have; the message names it. If it
/// takes more memory than the limit leaves, or far more than it has bytes.
#[track_caller]
pub fn load(path: impl AsRef<Path>) -> Result<Value> {
    load_with(path, Load::new())
}

/// [`load`] with options.
///
/// # Errors
/// As [`load`].
#[track_caller]
pub fn load_with(path: impl AsRef<Path>, options: Load) -> Result<Value> {
    let (path, loc) = (path.as_ref(), Location::caller());
    let value = read(path, options.device);
    value.map_err(|fault| fault.in_file("load", path, loc))
}

impl StateDict {
    /// Reads a file of values by name, of any form that [`load`] reads. The names of a safetensors file come in
    /// alphabetical order.
    ///
    /// # Errors
    /// As [`load`], or if the file holds other things too: load it with [`load`] then, and take its parts.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>) -> Result<StateDict> {
        let (path, loc) = (path.as_ref(), Location::caller());
        let state = read(path, Device::Cpu).and_then(|value| Ok(value.state_dict()?));
        state.map_err(|fault| fault.in_file("load", path, loc))
    }
}

/// The forms of files, recognised by their first bytes.
enum Form {
    Safetensors,
    Index,
    Zip,
    Pickle,
    Tar,
}

pub(crate) fn read(path: &Path, device: Device) -> Result<Value, Fault> {
    let mut file = File::open(path)?;
    let form = form(&mut file)?;
    file.rewind()?;
    match form {
        Form::Safetensors => {
            let state = safetensors::read(file)?.0;
            Ok(Value::dict(
                state.into_iter().map(|(name, t)| (name, t.to(device))),
            ))
        }
        Form::Index => Ok(shards::read(path, file, device)?.into()),
        #[cfg(feature = "pytorch")]
        Form::Zip => pytorch::load(pytorch::open_zip(file)?, device),
        #[cfg(feature = "pytorch")]
        Form::Pickle => pytorch::load(pytorch::open_legacy(file)?, device),
        #[cfg(feature = "pytorch")]
        Form::Tar => pytorch::load(pytorch::open_tar(file)?, device),
        #[cfg(not(feature = "pytorch"))]
        Form::Zip | Form::Pickle | Form::Tar => Err(Fault::unsupported(
            "reading PyTorch's checkpoints needs the feature `pytorch` of Kiln",
        )),
    }
}

fn form(file: &mut File) -> Result<Form, Fault> {
    /// The offset of the magic number of a tar archive, and the number.
    const USTAR: (usize, &[u8]) = (257, b"ustar");
    let mut start = Vec::new();
    file.take(512).read_to_end(&mut start)?;
    let is = |magic: &[u8]| start.starts_with(magic);
    let other = |what: &str| Err(Fault::unsupported(what));
    match &start[..] {
        [] => Err("the file is empty".into()),
        // It is tested first, since the header's length in front may look like the start of any other form.
        [_, _, _, _, _, _, _, _, b'{', ..] => Ok(Form::Safetensors),
        _ if is(b"PK\x03\x04") => Ok(Form::Zip),
        _ if is(b"\x80") || is(b"L119547037146038801333356L\n") => Ok(Form::Pickle),
        _ if start.get(USTAR.0..).is_some_and(|s| s.starts_with(USTAR.1)) => Ok(Form::Tar),
        _ if start.trim_ascii_start().starts_with(b"{") => Ok(Form::Index),
        _ if is(b"version https://git-lfs") => {
            other("this is what Git LFS keeps in place of the file; get it with `git lfs pull`")
        }
        _ if is(b"\x1f\x8b") => other("this is compressed with gzip; unpack it first"),
        _ if is(b"\x93NUMPY") => other("this is one of NumPy's arrays; read it with read_npy"),
        _ if is(b"\x89HDF") => other("this is an HDF5 file, which Kiln does not read"),
        _ if is(b"<") => other("this is a web page, and not what was to be downloaded"),
        _ => other("this is neither a checkpoint of PyTorch's nor a safetensors file"),
    }
}
