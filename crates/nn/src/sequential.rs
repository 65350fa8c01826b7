//! Layers in sequence.

use crate::members::Members;
use crate::{Copies, Forward, Hooks, IntoField, Module};
use kiln_tensor::{Error, Result, Tensor};
use std::ops::{Index, RangeBounds};
use std::sync::Arc;

/// Layers in sequence (`torch.nn.Sequential`), under the names 0, 1, … or given ones. The macro
/// [`sequential!`](crate::sequential) makes one of layers, of results of constructors, and of closures:
///
/// ```
/// use kiln_nn::{Conv2d, Flatten, Forward, Linear, ReLU, sequential};
/// use kiln_tensor::{DType, Tensor};
/// let model = sequential![
///     Conv2d::new(1, 6, 5),
///     ReLU::new(),
///     |x: Tensor| x.max_pool2d(2),
///     Flatten::new(),
///     Linear::new(6 * 14 * 14, 10),
/// ]?;
/// let y = model.call(Tensor::zeros([2, 1, 32, 32], DType::F32));
/// assert_eq!(y.shape()?, [2, 10]);
/// assert_eq!(model.get_as::<Linear>(4)?.out_features(), 10);
/// let body = model.slice(..4)?;
/// assert_eq!(body.call(Tensor::zeros([2, 1, 32, 32], DType::F32)).shape()?, [2, 6 * 14 * 14]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// Clones, slices and removed layers share the layers; [`Module::deep_copy`] does not.
#[derive(Clone, Default)]
pub struct Sequential {
    layers: Vec<(Option<String>, Arc<dyn Forward>)>,
    hooks: Hooks,
}

/// An argument from the macro: the name, if there is one, and the layer.
type Entry<'a> = (Option<&'a str>, Result<Arc<dyn Forward>>);

impl Sequential {
    /// No layers: the identity.
    pub fn new() -> Sequential {
        Sequential::default()
    }

    /// Adds a layer, named by its position.
    #[allow(clippy::should_implement_trait)] // not a sum
    pub fn add(mut self, layer: impl Forward) -> Sequential {
        self.layers.push((None, Arc::new(layer)));
        self
    }

    /// Adds a layer with a name.
    pub fn named(mut self, name: impl Into<String>, layer: impl Forward) -> Sequential {
        self.layers.push((Some(name.into()), Arc::new(layer)));
        self
    }

    /// Makes the result of [`sequential!`](crate::sequential).
    #[doc(hidden)]
    pub fn of<const N: usize>(layers: [Entry; N]) -> Result<Sequential> {
        let named = layers.into_iter();
        let named = named.map(|(name, layer)| Ok((name.map(str::to_string), layer?)));
        Ok(Sequential {
            layers: named.collect::<Result<_>>()?,
            hooks: Hooks::new(),
        })
    }

    /// Adds a layer at the end.
    pub fn push(&mut self, layer: impl Forward) {
        self.layers.push((None, Arc::new(layer)));
    }

    /// Inserts a layer at a position, before the one that is there.
    ///
    /// # Errors
    /// If the position is beyond the end.
    #[track_caller]
    pub fn insert(&mut self, index: usize, layer: impl Forward) -> Result<()> {
        if index > self.len() {
            return Err(self.no_position("insert", index));
        }
        self.layers.insert(index, (None, Arc::new(layer)));
        Ok(())
    }

    /// Removes the layer at a position.
    ///
    /// # Errors
    /// If there is none.
    #[track_caller]
    pub fn remove(&mut self, index: usize) -> Result<Arc<dyn Forward>> {
        match index < self.len() {
            true => Ok(self.layers.remove(index).1),
            false => Err(self.no_position("remove", index)),
        }
    }

    /// Removes the last layer, if there is one.
    pub fn pop(&mut self) -> Option<Arc<dyn Forward>> {
        self.layers.pop().map(|(_, layer)| layer)
    }

    /// Adds all layers of another one at the end; layers named by their position get new names.
    pub fn extend(&mut self, other: Sequential) {
        self.layers.extend(other.layers);
    }

    /// Returns some of the layers, shared by both, under the names that they have here.
    ///
    /// # Errors
    /// If the range reaches beyond the end.
    #[track_caller]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Result<Sequential> {
        let bounds = (range.start_bound().cloned(), range.end_bound().cloned());
        let names = self.names();
        let Some(layers) = self.layers.get(bounds) else {
            let message = format!("there are {} layers, none of {bounds:?}", self.len());
            return Err(Error::invalid("slice", message));
        };
        let names = names.get(bounds).unwrap_or_default().iter();
        let layers = names.zip(layers);
        Ok(Sequential {
            layers: layers
                .map(|(name, (_, layer))| (Some(name.clone()), layer.clone()))
                .collect(),
            hooks: Hooks::new(),
        })
    }

    /// Replaces the layer of this name. [`Module::set_submodule`] replaces a module within a layer.
    ///
    /// # Errors
    /// If there is no layer of this name.
    #[track_caller]
    pub fn replace(&mut self, name: &str, layer: impl Forward) -> Result<()> {
        let index = self.position("replace", name)?;
        self.layers[index].1 = Arc::new(layer);
        Ok(())
    }

    /// Returns the number of layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// True if there are no layers.
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// Returns the layer at a position, if there is one. `model[0]` and `model["head"]` panic if there is none.
    pub fn get(&self, index: usize) -> Option<&Arc<dyn Forward>> {
        self.layers.get(index).map(|(_, layer)| layer)
    }

    /// Returns the layer at a position as its own type.
    ///
    /// # Errors
    /// If there is none, or it is of another type.
    #[track_caller]
    pub fn get_as<M: Module>(&self, index: usize) -> Result<&M> {
        let Some(layer) = self.get(index) else {
            return Err(self.no_position("get_as", index));
        };
        let layer = layer.as_module();
        match layer.downcast_ref() {
            Some(layer) => Ok(layer),
            None => {
                let layer_type = std::any::type_name::<M>();
                let message = format!("layer {index} is a {}, not a {layer_type}", layer.name());
                Err(Error::invalid("get_as", message))
            }
        }
    }

    /// The layers in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<dyn Forward>> {
        self.layers.iter().map(|(_, layer)| layer)
    }

    /// The names of the layers in order.
    fn names(&self) -> Vec<String> {
        let named = self.layers.iter().enumerate();
        named
            .map(|(i, (name, _))| name.clone().unwrap_or_else(|| i.to_string()))
            .collect()
    }

    #[track_caller]
    fn position(&self, called: &str, name: &str) -> Result<usize> {
        let names = self.names();
        let missing = format!("there is no layer {name:?} among {names:?}");
        match names.iter().position(|n| n == name) {
            Some(position) => Ok(position),
            None => Err(Error::invalid(called, missing)),
        }
    }

    #[track_caller]
    fn no_position(&self, called: &str, index: usize) -> Error {
        let message = format!("there are {} layers, and none at {index}", self.len());
        Error::invalid(called, message)
    }
}

impl Index<usize> for Sequential {
    type Output = Arc<dyn Forward>;

    fn index(&self, index: usize) -> &Arc<dyn Forward> {
        &self.layers[index].1
    }
}

impl Index<&str> for Sequential {
    type Output = Arc<dyn Forward>;

    #[track_caller]
    fn index(&self, name: &str) -> &Arc<dyn Forward> {
        match self.position("index", name) {
            Ok(index) => &self[index],
            Err(e) => panic!("{e}"),
        }
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
        for (name, (_, layer)) in self.names().into_iter().zip(&self.layers) {
            members.child(name, layer);
        }
        members
    }

    fn hooks(&self) -> Option<&Hooks> {
        Some(&self.hooks)
    }

    /// Returns no note: [`Forward::forward`] names the layer instead.
    fn error_note(&self) -> Option<String> {
        None
    }

    fn copy_with(&self, copies: &mut Copies) -> Result<Sequential> {
        let layers = self.layers.iter();
        let copy = layers.map(|(name, layer)| Ok((name.clone(), copies.shared(layer)?)));
        Ok(Sequential {
            layers: copy.collect::<Result<_>>()?,
            hooks: self.hooks.copy_with(copies)?,
        })
    }
}

impl Forward for Sequential {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        let mut y = x;
        for (i, (name, layer)) in self.layers.iter().enumerate() {
            let fine = y.error().is_none();
            y = layer.call(y);
            if let (true, Some(e)) = (fine, y.error()) {
                let name = name.clone().unwrap_or_else(|| i.to_string());
                return Err(e.clone().with_note(format!("layer {name} of Sequential")));
            }
        }
        Ok(y)
    }
}

/// A function as a layer without parameters. In [`sequential!`](crate::sequential), a closure converts to one.
///
/// ```
/// use kiln_nn::{Forward, Lambda, Linear, Sequential};
/// use kiln_tensor::{DType, Tensor};
/// let model = Sequential::new().add(Linear::new(3, 4)?).add(Lambda::new(|x: Tensor| x.relu()));
/// assert_eq!(model.call(Tensor::zeros([2, 3], DType::F32)).shape()?, [2, 4]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Module)]
pub struct Lambda {
    #[skip]
    f: Arc<dyn Fn(Tensor) -> Result<Tensor> + Send + Sync>,
    hooks: Hooks,
}

impl Lambda {
    /// Makes a layer of a function from a tensor to a tensor, or to a result.
    pub fn new<R: IntoField<Tensor>>(f: impl Fn(Tensor) -> R + Send + Sync + 'static) -> Lambda {
        Lambda {
            f: Arc::new(move |x| f(x).into_field()),
            hooks: Hooks::new(),
        }
    }
}

impl Forward for Lambda {
    fn forward(&self, x: Tensor) -> Result<Tensor> {
        (self.f)(x)
    }
}

/// An argument of [`sequential!`](crate::sequential). `Kind` distinguishes the implementations for the compiler.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a layer, nor the result of making one, nor a function of a tensor",
    note = "write the type of a closure's argument: `|x: Tensor| x.relu()`"
)]
pub trait IntoLayer<Kind> {
    #[doc(hidden)]
    fn into_layer(self) -> Result<Arc<dyn Forward>>;
}

/// The kinds of [`IntoLayer`].
#[doc(hidden)]
pub mod kind {
    pub struct Layer;
    pub struct Function<R>(R);
    pub struct ResultOf<K>(K);
}

impl<M: Forward> IntoLayer<kind::Layer> for M {
    fn into_layer(self) -> Result<Arc<dyn Forward>> {
        Ok(Arc::new(self))
    }
}

impl<R: IntoField<Tensor>, F: Fn(Tensor) -> R + Send + Sync + 'static> IntoLayer<kind::Function<R>>
    for F
{
    fn into_layer(self) -> Result<Arc<dyn Forward>> {
        Ok(Arc::new(Lambda::new(self)))
    }
}

impl<K, L: IntoLayer<K>> IntoLayer<kind::ResultOf<K>> for Result<L> {
    fn into_layer(self) -> Result<Arc<dyn Forward>> {
        self?.into_layer()
    }
}

/// Makes a [`Sequential`] of layers, of results of constructors, and of closures, with optional names before them. It
/// returns a `Result`: the first error among them.
///
/// ```
/// use kiln_nn::{LeakyReLU, Linear, sequential};
/// use kiln_tensor::Tensor;
/// let model = sequential![Linear::new(16, 64), LeakyReLU::new(0.2), Linear::new(64, 2)]?;
/// assert_eq!(model.len(), 3);
/// let model = sequential![
///     "body": Linear::new(16, 64),
///     "act": |x: Tensor| x.relu(),
///     "head": Linear::new(64, 2),
/// ]?;
/// assert_eq!(model["head"].name(), "Linear");
/// # use kiln_nn::Module;
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[macro_export]
macro_rules! sequential {
    ($($name:literal : $layer:expr),* $(,)?) => {
        $crate::Sequential::of([$((Some($name), $crate::IntoLayer::into_layer($layer))),*])
    };
    ($($layer:expr),* $(,)?) => {
        $crate::Sequential::of([$((None, $crate::IntoLayer::into_layer($layer))),*])
    };
}
