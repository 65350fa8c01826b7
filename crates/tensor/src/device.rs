//! Where tensors live.

use std::fmt;

/// Where a tensor's values live and are computed.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Device {
    /// The processor, all cores.
    #[default]
    Cpu,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.write_str("cpu"),
        }
    }
}

/// Sets how many threads run kernels, for the whole process. Results never depend on it.
pub fn set_threads(threads: usize) {
    kiln_runtime::pool::Pool::global().set_threads(threads);
}

/// How many threads run kernels.
pub fn threads() -> usize {
    kiln_runtime::pool::Pool::global().threads()
}
