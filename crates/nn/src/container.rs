//! Modules of modules.

use crate::layer::on_behalf;
use crate::members::Members;
use crate::{Forward, Module};
use kiln_tensor::{Error, Result, Tensor};
use std::fmt;
use std::ops::{Deref, DerefMut};

/// Layers one after the other (`torch.nn.Sequential`), under the names 0, 1, … or given ones.
///
/// ```
/// use kiln_nn::{Conv2d, Flatten, Forward, Linear, ReLU, Sequential};
/// use kiln_tensor::{DType, Tensor};
/// let model = Sequential::new()
///     .add(Conv2d::new(1, 6, 5)?)
///     .add(ReLU::new())
///     .add(Flatten::new())
///     .named("head", Linear::new(6 * 28 * 28, 10)?);
/// let y = model.forward(&Tensor::zeros([2, 1, 32, 32], DType::F32));
/// assert_eq!(y.shape()?, [2, 10]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<(String, Box<dyn Forward>)>,
}

impl Sequential {
    /// No layers: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// A further layer, named by its position.
    #[allow(clippy::should_implement_trait)] // not a sum
    pub fn add(self, layer: impl Forward) -> Sequential {
        let name = self.layers.len().to_string();
        self.named(name, layer)
    }

    /// A further layer with a name.
    pub fn named(mut self, name: impl Into<String>, layer: impl Forward) -> Sequential {
        self.layers.push((name.into(), Box::new(layer)));
        self
    }

    /// Puts another layer in the place of one.
    ///
    /// # Errors
    /// If there is no layer of this name.
    #[track_caller]
    pub fn replace(&mut self, name: &str, layer: impl Forward) -> Result<()> {
        match self.layers.iter_mut().find(|(n, _)| n == name) {
            Some((_, place)) => {
                *place = Box::new(layer);
                Ok(())
            }
            None => {
                let names: Vec<&str> = self.layers.iter().map(|(n, _)| n.as_str()).collect();
                let message = format!("there is no layer {name:?} among {names:?}");
                Err(Error::invalid("replace", message))
            }
        }
    }

    /// How many layers there are.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// The layer at a position; see also [`Module::get_submodule`] for names.
    pub fn get(&self, index: usize) -> Option<&dyn Forward> {
        self.layers.get(index).map(|(_, layer)| &**layer)
    }
}

impl Module for Sequential {
    fn as_module(&self) -> &dyn Module {
        self
    }

    fn name(&self) -> &str {
        "Sequential"
    }

    fn members(&self) -> Members<'_> {
        let mut members = Members::new();
        for (name, layer) in &self.layers {
            members.child(name, layer);
        }
        members
    }
}

impl fmt::Display for Sequential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_module().fmt(f)
    }
}

impl Forward for Sequential {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        on_behalf(|| {
            let mut y = x.clone();
            for (name, layer) in &self.layers {
                let next = layer.forward(&y);
                if let (None, Some(e)) = (y.error(), next.error()) {
                    let note = format!("layer {name} of Sequential");
                    return Tensor::from_error(e.clone().with_note(note));
                }
                y = next;
            }
            y
        })
    }
}

/// Modules of one type in a list (`torch.nn.ModuleList`): a `Vec` that prints as one child. For layers
/// of several types, `ModuleList<Box<dyn Forward>>`.
pub struct ModuleList<M>(pub Vec<M>);

impl<M> Default for ModuleList<M> {
    fn default() -> ModuleList<M> {
        ModuleList(Vec::new())
    }
}

impl<M> FromIterator<M> for ModuleList<M> {
    fn from_iter<I: IntoIterator<Item = M>>(modules: I) -> ModuleList<M> {
        ModuleList(modules.into_iter().collect())
    }
}

impl<M> Deref for ModuleList<M> {
    type Target = Vec<M>;

    fn deref(&self) -> &Vec<M> {
        &self.0
    }
}

impl<M> DerefMut for ModuleList<M> {
    fn deref_mut(&mut self) -> &mut Vec<M> {
        &mut self.0
    }
}

impl<M: Module> Module for ModuleList<M> {
    fn as_module(&self) -> &dyn Module {
        self
    }

    fn name(&self) -> &str {
        "ModuleList"
    }

    fn members(&self) -> Members<'_> {
        let mut members = Members::new();
        for (i, module) in self.0.iter().enumerate() {
            members.child(i.to_string(), module);
        }
        members
    }
}

impl<M: Module> fmt::Display for ModuleList<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_module().fmt(f)
    }
}

/// Modules of one type by name (`torch.nn.ModuleDict`), in the order in which they were inserted. For
/// layers of several types, `ModuleDict<Box<dyn Forward>>`.
pub struct ModuleDict<M>(Vec<(String, M)>);

impl<M> ModuleDict<M> {
    /// No modules.
    pub fn new() -> ModuleDict<M> {
        ModuleDict(Vec::new())
    }

    /// Adds a module under a name, or puts it in the place of the one that has it.
    pub fn insert(&mut self, name: impl Into<String>, module: M) {
        let name = name.into();
        match self.0.iter_mut().find(|(n, _)| *n == name) {
            Some((_, place)) => *place = module,
            None => self.0.push((name, module)),
        }
    }

    /// The module of a name.
    pub fn get(&self, name: &str) -> Option<&M> {
        self.0.iter().find(|(n, _)| n == name).map(|(_, m)| m)
    }

    /// Names and modules, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &M)> {
        self.0.iter().map(|(name, module)| (name.as_str(), module))
    }
}

impl<M> Default for ModuleDict<M> {
    fn default() -> ModuleDict<M> {
        ModuleDict::new()
    }
}

impl<S: Into<String>, M> FromIterator<(S, M)> for ModuleDict<M> {
    fn from_iter<I: IntoIterator<Item = (S, M)>>(modules: I) -> ModuleDict<M> {
        let mut dict = ModuleDict::new();
        for (name, module) in modules {
            dict.insert(name, module);
        }
        dict
    }
}

impl<M: Module> Module for ModuleDict<M> {
    fn as_module(&self) -> &dyn Module {
        self
    }

    fn name(&self) -> &str {
        "ModuleDict"
    }

    fn members(&self) -> Members<'_> {
        let mut members = Members::new();
        for (name, module) in &self.0 {
            members.child(name, module);
        }
        members
    }
}

impl<M: Module> fmt::Display for ModuleDict<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_module().fmt(f)
    }
}
