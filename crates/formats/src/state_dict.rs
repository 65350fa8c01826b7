//! Values by name.

use kiln_tensor::{AsTensor, Tensor};
use std::collections::BTreeMap;

/// The values of a module's parameters and buffers by name, in order. To load parts of a model, derive one from
/// another:
///
/// ```
/// use kiln_formats::StateDict;
/// use kiln_tensor::Tensor;
/// let mut state = StateDict::new();
/// state.insert("module.body.weight", Tensor::from([1.0f32]));
/// state.insert("module.head.weight", Tensor::from([2.0f32]));
///
/// // Strips the prefix of a data-parallel wrapper, and takes the body alone.
/// let body = state.strip_prefix("module.").part("body.");
/// assert_eq!(body.names().collect::<Vec<_>>(), ["weight"]);
/// ```
#[derive(Clone, Default)]
pub struct StateDict(Vec<(String, Tensor)>);

impl StateDict {
    /// An empty state dict.
    pub fn new() -> StateDict {
        StateDict::default()
    }

    /// The values, of which no two have one name.
    pub(crate) fn of_distinct(values: Vec<(String, Tensor)>) -> StateDict {
        StateDict(values)
    }

    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }

    /// Sets the value of a name, in its place if it has one, else at the end.
    pub fn insert(&mut self, name: impl Into<String>, value: impl AsTensor) {
        let (name, value) = (name.into(), value.as_tensor().into_owned());
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, old)) => *old = value,
            None => self.0.push((name, value)),
        }
    }

    /// Removes and returns a value.
    pub fn remove(&mut self, name: &str) -> Option<Tensor> {
        let index = self.0.iter().position(|(n, _)| n == name)?;
        Some(self.0.remove(index).1)
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|(name, _)| name.as_str())
    }

    /// Names and values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values whose names `f` accepts.
    pub fn filter(&self, f: impl Fn(&str) -> bool) -> StateDict {
        self.rename(|name| f(name).then(|| name.to_string()))
    }

    /// The values under the names that `f` returns for theirs, without those for which it returns `None`.
    pub fn rename(&self, f: impl Fn(&str) -> Option<String>) -> StateDict {
        let renamed = self.iter().filter_map(|(n, t)| Some((f(n)?, t.clone())));
        renamed.collect()
    }

    /// All values, with `prefix` removed from the names that start with it, such as the `module.` that wrappers for
    /// data parallelism add.
    pub fn strip_prefix(&self, prefix: &str) -> StateDict {
        self.rename(|name| Some(name.strip_prefix(prefix).unwrap_or(name).to_string()))
    }

    /// The values whose names start with `prefix`, without it: those of a submodule.
    pub fn part(&self, prefix: &str) -> StateDict {
        self.rename(|name| name.strip_prefix(prefix).map(str::to_string))
    }
}

impl FromIterator<(String, Tensor)> for StateDict {
    fn from_iter<I: IntoIterator<Item = (String, Tensor)>>(values: I) -> StateDict {
        // The last value of a name counts, at the position of the first.
        let mut positions = BTreeMap::new();
        let mut entries: Vec<(String, Tensor)> = Vec::new();
        for (name, value) in values {
            match positions.get(&name) {
                Some(&at) => entries[at] = (name, value),
                None => {
                    positions.insert(name.clone(), entries.len());
                    entries.push((name, value));
                }
            }
        }
        StateDict(entries)
    }
}

impl IntoIterator for StateDict {
    type Item = (String, Tensor);
    type IntoIter = std::vec::IntoIter<(String, Tensor)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
