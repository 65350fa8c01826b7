//! Collective operations on values that serde can write.

use crate::group::{ProcessGroup, error, world};
use kiln_tensor::{Result, Tensor};
use serde::Serialize;
use serde::de::DeserializeOwned;

impl ProcessGroup {
    /// The values of all ranks, by rank. It runs at once.
    ///
    /// # Errors
    /// If a value can't be written as JSON or read from it, or a rank does not come.
    #[track_caller]
    pub fn all_gather_object<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>> {
        let text = serialize("all_gather_object", value)?;
        let lens = self
            .all_gather(self.on_device(Tensor::from([text.len() as i64])))
            .to_vec::<i64>()?;
        let longest = lens.iter().max().map_or(0, |n| *n as usize);
        let mut padded = text;
        padded.resize(longest, 0);
        let gathered = self
            .all_gather(self.on_device(Tensor::from(padded)))
            .to_vec::<u8>()?;
        let numbered = lens.iter().enumerate();
        numbered
            .map(|(i, n)| {
                let from = i * longest;
                deserialize("all_gather_object", &gathered[from..from + *n as usize])
            })
            .collect()
    }

    /// The value of rank `src` of the group; the others give `None`. It runs at once.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_gather_object`], or if `src` gives no value.
    #[track_caller]
    pub fn broadcast_object<T: Serialize + DeserializeOwned>(
        &self,
        value: Option<&T>,
        src: usize,
    ) -> Result<T> {
        let function = "broadcast_object";
        let is_source = self.rank() == src;
        let text = match value.filter(|_| is_source) {
            Some(value) => serialize(function, value)?,
            None => Vec::new(),
        };
        let len = self
            .broadcast(self.on_device(Tensor::from([text.len() as i64])), src)
            .item::<i64>()? as usize;
        if len == 0 {
            return Err(error(
                function,
                format!("rank {src}, whose value it is, gave none"),
            ));
        }
        let mut padded = text;
        padded.resize(len, 0);
        deserialize(
            function,
            &self
                .broadcast(self.on_device(Tensor::from(padded)), src)
                .to_vec::<u8>()?,
        )
    }
}

#[track_caller]
fn serialize<T: Serialize>(op: &str, value: &T) -> Result<Vec<u8>> {
    serde_json::to_vec(value).map_err(|e| error(op, format!("the value can't be written: {e}")))
}

#[track_caller]
fn deserialize<T: DeserializeOwned>(op: &str, text: &[u8]) -> Result<T> {
    serde_json::from_slice(text).map_err(|e| error(op, format!("the value can't be read: {e}")))
}

/// [`ProcessGroup::all_gather_object`] of the world.
///
/// # Errors
/// As there, or if there is no group.
#[track_caller]
pub fn all_gather_object<T: Serialize + DeserializeOwned>(value: &T) -> Result<Vec<T>> {
    world()?.all_gather_object(value)
}

/// [`ProcessGroup::broadcast_object`] in the world.
///
/// # Errors
/// As there, or if there is no group.
#[track_caller]
pub fn broadcast_object<T: Serialize + DeserializeOwned>(
    value: Option<&T>,
    src: usize,
) -> Result<T> {
    world()?.broadcast_object(value, src)
}
