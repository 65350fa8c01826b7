//! Plans as bytes.

use crate::Plan;

/// Why bytes are not a plan of this version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes are something else.
    #[error("not a Kiln plan (it does not begin with the plan header)")]
    NotAPlan,
    /// Written by another version.
    #[error(
        "the plan was written in format {found}, this build reads format {}",
        FORMAT
    )]
    Version {
        /// The format of the bytes.
        found: u32,
    },
    /// Cut off or changed.
    #[error("the plan is damaged: {0}")]
    Damaged(String),
}

const MAGIC: &[u8; 8] = b"kilnplan";

/// The format that [`Plan::to_bytes`] writes.
pub const FORMAT: u32 = 14;

impl Plan {
    /// The plan as bytes: a header with format and checksum, then the contents.
    pub fn to_bytes(&self) -> Vec<u8> {
        let body =
            postcard::to_allocvec(self).expect("plans hold only plain data, which always encodes");
        let mut bytes = Vec::with_capacity(body.len() + 20);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&FORMAT.to_le_bytes());
        bytes.extend_from_slice(&checksum(&body).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Reads what [`Plan::to_bytes`] wrote.
    ///
    /// # Errors
    /// If the bytes are not a plan, are of another format, or are damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Plan, DecodeError> {
        let header = bytes.get(..20).filter(|h| &h[..8] == MAGIC);
        let header = header.ok_or(DecodeError::NotAPlan)?;
        let word = |at: usize, n: usize| {
            header[at..at + n]
                .iter()
                .rev()
                .fold(0u64, |a, b| a << 8 | *b as u64)
        };
        let found = word(8, 4) as u32;
        if found != FORMAT {
            return Err(DecodeError::Version { found });
        }
        let body = &bytes[20..];
        if checksum(body) != word(12, 8) {
            return Err(DecodeError::Damaged("its checksum does not match".into()));
        }
        postcard::from_bytes(body).map_err(|e| DecodeError::Damaged(e.to_string()))
    }
}

/// FNV-1a, 64 bit: guards against truncation and bit rot.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| {
        (h ^ *b as u64).wrapping_mul(0x0100_0000_01b3)
    })
}
