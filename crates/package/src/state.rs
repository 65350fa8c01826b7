//! The states that are kept from run to run.

use crate::error::{Error, Result, ensure};
use crate::interface::StateInfo;
use kiln_base::DType;
use kiln_runtime::Buffer;
use std::collections::HashMap;
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The state of the generator of random numbers, if an entry draws any: its seed and the next offset, `i64[2]`.
pub const RNG_STATE: &str = "rng_state";

/// The states of a package.
///
/// A run that only reads takes handles to all the states that it needs at once, and holds no lock while it runs. A
/// run that writes holds the lock until it has committed.
pub(crate) struct States {
    infos: Vec<StateInfo>,
    index_of: HashMap<String, usize>,
    /// The values in the file.
    initial: Vec<Buffer>,
    now: RwLock<Vec<Buffer>>,
}

impl States {
    /// States that hold these values.
    pub fn new(infos: Vec<StateInfo>, initial: Vec<Buffer>, now: Vec<Buffer>) -> Result<States> {
        for (info, value) in infos.iter().zip(&initial) {
            let (name, dtype, shape) = (&info.name, info.dtype, &info.shape[..]);
            let is_same = (value.dtype(), value.shape()) == (dtype, shape);
            ensure!(is_same, "state `{name}` is not what the weights hold");
            let names = info.elements.len();
            let has_names = names == 0 || (dtype, shape) == (DType::F64, &[names as i64]);
            ensure!(has_names, "state `{name}` has other elements than names");
            let is_pair = name != RNG_STATE || (dtype, shape) == (DType::I64, &[2]);
            ensure!(is_pair, "`{RNG_STATE}` is not a seed and offset");
        }
        let numbered = infos.iter().enumerate();
        Ok(States {
            index_of: numbered.map(|(i, s)| (s.name.clone(), i)).collect(),
            infos,
            initial,
            now: RwLock::new(now),
        })
    }

    pub fn infos(&self) -> &[StateInfo] {
        &self.infos
    }

    /// Returns the index of a state.
    pub fn find(&self, name: &str) -> Result<usize> {
        let index = self.index_of.get(name).copied();
        index.ok_or_else(|| Error::missing("state", name, self.infos.iter().map(|s| &s.name)))
    }

    /// The narrow copies of a state: states of its shape whose name is its own with `.f16` or `.bf16` appended.
    pub fn copies(&self, state: usize) -> impl Iterator<Item = usize> {
        let wide = &self.infos[state];
        let copy = move |dtype: DType| {
            let copy = *self.index_of.get(&format!("{}.{dtype}", wide.name))?;
            let info = &self.infos[copy];
            let narrows = wide.dtype == DType::F32 && info.dtype == dtype;
            (narrows && info.shape == wide.shape).then_some(copy)
        };
        [DType::F16, DType::BF16].into_iter().filter_map(copy)
    }

    /// The current values, locked for reading.
    pub fn read(&self) -> RwLockReadGuard<'_, Vec<Buffer>> {
        self.now.read().unwrap_or_else(|e| e.into_inner())
    }

    /// The current values, locked for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, Vec<Buffer>> {
        self.now.write().unwrap_or_else(|e| e.into_inner())
    }

    /// The values when the package was opened.
    pub fn initial(&self) -> &[Buffer] {
        &self.initial
    }

    /// Checks that a value has a state's dtype and shape.
    pub fn check(&self, index: usize, value: &Buffer) -> Result<()> {
        let StateInfo {
            name, dtype, shape, ..
        } = &self.infos[index];
        let (d, s) = (value.dtype(), value.shape());
        match (d, s) == (*dtype, &shape[..]) {
            true => Ok(()),
            false => Err(Error::Value(format!(
                "state `{name}` is {dtype}{shape:?}, not {d}{s:?}"
            ))),
        }
    }

    /// The indices of a state and of its named element.
    pub fn element(&self, name: &str, element: &str) -> Result<(usize, usize)> {
        let index = self.find(name)?;
        let elements = &self.infos[index].elements;
        let position = elements.iter().position(|e| e == element);
        let position = position.ok_or_else(|| Error::missing("element", element, elements))?;
        Ok((index, position))
    }
}
