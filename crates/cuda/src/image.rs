//! Kernels that were compiled ahead of time.

use super::cache::{Key, key};
use super::elf;
use super::module::Unloaded;
use super::nvrtc::Code;
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::memory::Storage;
use kiln_plan::cuda::PRELUDE;
use std::sync::Arc;

/// Compiled kernels of some sources.
#[derive(Clone)]
pub struct Image {
    /// The kind of code that they were compiled to.
    pub code: Code,
    /// The version of the NVRTC that compiled them.
    pub compiler: (u32, u32),
    /// For each kernel, the key of its source and of the flags that it was compiled with.
    pub kernels: Vec<u128>,
    /// PTX (ending in a zero byte) or machine code.
    pub bytes: Arc<Storage>,
}

impl Image {
    /// Errs unless the code is safe for the driver to read, which is not told its length.
    pub(super) fn check(&self) -> Result<()> {
        let (code, bytes) = (self.code, self.bytes.bytes());
        match code {
            Code::Cubin(capability) => elf::check(bytes, capability),
            Code::Ptx(_) | Code::Portable(_) => {
                let text = bytes.strip_suffix(&[0]).filter(|text| !text.contains(&0));
                let text = text.and_then(|text| std::str::from_utf8(text).ok());
                let text =
                    text.ok_or_else(|| damaged!("compiled kernels for {code} are not text"))?;
                let mut targets = text
                    .lines()
                    .filter_map(|l| l.trim().strip_prefix(".target "));
                let first_target = targets.next().map(str::trim);
                match first_target == Some(&code.target()[..]) && targets.next().is_none() {
                    true => Ok(()),
                    false => Err(damaged!(
                        "compiled kernels for {code} are for {}",
                        first_target.unwrap_or("nothing")
                    )),
                }
            }
        }
    }
}

/// The key of a kernel's source and of the flags that it is compiled with.
pub(super) fn key_of(kernel: &Unloaded, code: Code) -> Key {
    key(&format!("{PRELUDE}{}", kernel.source), code)
}
