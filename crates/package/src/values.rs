//! The inputs and outputs of runs.

use crate::error::{Error, Result};
use kiln_runtime::Buffer;
use std::ops::Index;
use std::sync::Arc;

/// The inputs of a run: tensors in the order of the entry's inputs, or each with its name.
///
/// ```
/// use kiln_package::{Buffer, Inputs};
/// let x = Buffer::from_slice(&[1.0f32, 2.0], &[2])?;
/// let by_order = Inputs::from([x.clone(), x.clone()]);
/// let by_name = Inputs::from([("rows", x.clone()), ("weights", x)]);
/// # let _ = (by_order, by_name);
/// # Ok::<(), kiln_package::RuntimeError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    given: Vec<(Option<String>, Buffer)>,
}

impl Inputs {
    /// No inputs yet.
    pub fn new() -> Inputs {
        Inputs::default()
    }

    /// Adds an input by name.
    pub fn with(mut self, name: &str, value: Buffer) -> Inputs {
        self.given.push((Some(name.into()), value));
        self
    }

    /// The tensors in the order of these names.
    pub(crate) fn in_order(self, entry: &str, names: &[String]) -> Result<Vec<Buffer>> {
        if self.given.iter().all(|(name, _)| name.is_none()) {
            return match self.given.len() == names.len() {
                true => Ok(self.given.into_iter().map(|(_, value)| value).collect()),
                false => Err(Error::Value(format!(
                    "`{entry}` takes {} inputs, {}, and was given {}",
                    names.len(),
                    names.join(", "),
                    self.given.len()
                ))),
            };
        }
        let mut values: Vec<Option<Buffer>> = vec![None; names.len()];
        for (name, value) in self.given {
            let Some(name) = name else {
                let text = format!("`{entry}` is given some inputs by name and some without");
                return Err(Error::Value(text));
            };
            let index = names.iter().position(|n| *n == name);
            let index = index.ok_or_else(|| Error::missing("input", &name, names))?;
            if values[index].replace(value).is_some() {
                return Err(Error::Value(format!("input `{name}` is given twice")));
            }
        }
        let present = |(value, name): (Option<Buffer>, &String)| {
            let missing = || format!("`{entry}` also takes input `{name}`, which is not given");
            value.ok_or_else(|| Error::Value(missing()))
        };
        values.into_iter().zip(names).map(present).collect()
    }
}

impl From<Vec<Buffer>> for Inputs {
    fn from(values: Vec<Buffer>) -> Inputs {
        let given = values.into_iter().map(|value| (None, value)).collect();
        Inputs { given }
    }
}

impl From<&[Buffer]> for Inputs {
    fn from(values: &[Buffer]) -> Inputs {
        values.to_vec().into()
    }
}

impl<const N: usize> From<[Buffer; N]> for Inputs {
    fn from(values: [Buffer; N]) -> Inputs {
        Vec::from(values).into()
    }
}

impl From<Buffer> for Inputs {
    fn from(value: Buffer) -> Inputs {
        vec![value].into()
    }
}

impl<const N: usize> From<[(&str, Buffer); N]> for Inputs {
    fn from(values: [(&str, Buffer); N]) -> Inputs {
        values.into_iter().collect()
    }
}

impl<'a> FromIterator<(&'a str, Buffer)> for Inputs {
    fn from_iter<I: IntoIterator<Item = (&'a str, Buffer)>>(values: I) -> Inputs {
        let values = values.into_iter();
        let given = values.map(|(name, value)| (Some(name.to_string()), value));
        let given = given.collect();
        Inputs { given }
    }
}

/// The outputs of a run, in the order of the entry's outputs and by name.
#[derive(Clone, Debug)]
pub struct Outputs {
    pub(crate) names: Arc<[String]>,
    pub(crate) values: Vec<Buffer>,
}

impl Outputs {
    /// The output of this name.
    ///
    /// # Errors
    /// If there is none.
    pub fn get(&self, name: &str) -> Result<&Buffer> {
        let at = self.names.iter().position(|n| n == name);
        let found = at.and_then(|at| self.values.get(at));
        found.ok_or_else(|| Error::missing("output", name, &*self.names))
    }

    /// The outputs with their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Buffer)> {
        self.names.iter().map(|n| &n[..]).zip(&self.values)
    }

    /// The outputs in order.
    pub fn into_vec(self) -> Vec<Buffer> {
        self.values
    }
}

/// The output of this number.
impl Index<usize> for Outputs {
    type Output = Buffer;

    fn index(&self, at: usize) -> &Buffer {
        &self.values[at]
    }
}
