//! Serialisation of plans and entries as bytes.

use crate::{Entry, Kernel, Plan};
use serde::{Serialize, de::DeserializeOwned};

/// The reason why bytes are not a plan or an entry of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are something else.
    #[error("not a Kiln {0} (it does not begin with the header of one)")]
    SomethingElse(&'static str),
    /// Written by another version.
    #[error("it was written in format {found}, this build reads format {}", FORMAT)]
    Version {
        /// The format of the bytes.
        found: u32,
    },
    /// Truncated or changed.
    #[error("the bytes are damaged: {0}")]
    Damaged(String),
}

/// The format that [`Plan::to_bytes`] and [`Entry::to_bytes`] write.
pub const FORMAT: u32 = 30;

impl Plan {
    /// Returns the plan as bytes: a header with format and checksum, then the contents.
    pub fn to_bytes(&self) -> Vec<u8> {
        encoded(PLAN, self)
    }

    /// Reads bytes that [`Plan::to_bytes`] wrote.
    ///
    /// # Errors
    /// If the bytes are not a plan, are of another format, or are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Plan, DecodeError> {
        let plan: Plan = decoded(PLAN, bytes)?;
        plan.refuse_library()?;
        Ok(plan)
    }
}

impl Entry {
    /// Returns the entry as bytes, like [`Plan::to_bytes`].
    pub fn to_bytes(&self) -> Vec<u8> {
        encoded(ENTRY, self)
    }

    /// Reads bytes that [`Entry::to_bytes`] wrote. The plan is checked when it is made ready to run.
    ///
    /// # Errors
    /// If the bytes are not an entry, are of another format, or are damaged, or if the signature does not fit the plan
    /// ([`Signature::check`](crate::Signature::check)).
    pub fn from_bytes(bytes: &[u8]) -> Result<Entry, DecodeError> {
        let entry: Entry = decoded(ENTRY, bytes)?;
        entry.plan.refuse_library()?;
        let checked = entry.signature.check(&entry.plan);
        checked.map_err(|e| DecodeError::Damaged(e.to_string()))?;
        Ok(entry)
    }
}

impl Plan {
    /// True if some kernel of it or of its bodies is a library's.
    pub fn has_library_kernels(&self) -> bool {
        let is_of_library = |kernel: &Kernel| {
            let mut bodies = kernel.bodies().iter();
            matches!(kernel, Kernel::Library(_)) || bodies.any(Plan::has_library_kernels)
        };
        self.kernels.iter().any(|kernel| is_of_library(kernel))
    }

    /// Refuses kernels of a library, which accepts only its own descriptions.
    fn refuse_library(&self) -> Result<(), DecodeError> {
        match self.has_library_kernels() {
            true => Err(DecodeError::Damaged("a kernel of a library".into())),
            false => Ok(()),
        }
    }
}

/// The first bytes, and the name in messages.
type Header = (&'static [u8; 8], &'static str);

const PLAN: Header = (b"kilnplan", "plan");
const ENTRY: Header = (b"kilnentr", "entry");

fn encoded((magic, _): Header, contents: &impl Serialize) -> Vec<u8> {
    let body =
        postcard::to_allocvec(contents).expect("plans hold only plain data, which always encodes");
    let mut bytes = Vec::with_capacity(body.len() + 20);
    bytes.extend_from_slice(magic);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&checksum(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    bytes
}

fn decoded<T: DeserializeOwned>((magic, called): Header, bytes: &[u8]) -> Result<T, DecodeError> {
    let split = || {
        let (format, rest) = bytes.strip_prefix(magic)?.split_first_chunk()?;
        let (sum, body) = rest.split_first_chunk()?;
        Some((u32::from_le_bytes(*format), u64::from_le_bytes(*sum), body))
    };
    let (format, sum, body) = split().ok_or(DecodeError::SomethingElse(called))?;
    if format != FORMAT {
        return Err(DecodeError::Version { found: format });
    }
    if checksum(body) != sum {
        return Err(DecodeError::Damaged("its checksum does not match".into()));
    }
    postcard::from_bytes(body).map_err(|e| DecodeError::Damaged(e.to_string()))
}

#[cfg(test)]
/// Returns the bytes with a corrected checksum.
pub(crate) fn mended(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = checksum(&bytes[20..]);
    bytes[12..20].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// FNV-1a, 64 bit: guards against truncation and bit rot.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ *b as u64).wrapping_mul(0x0100_0000_01b3)
    })
}
