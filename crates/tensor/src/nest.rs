//! Tensors and structures of them: the arguments and results of functions.

use crate::{Error, ErrorKind, Spec, Tensor, Var};
use smallvec::SmallVec;
use std::fmt::{Display, Write};
use std::panic::Location;

/// A tensor, or a structure of them: a tuple, an array, a `Vec`, an `Option`, a struct with `#[derive(Nest)]`, or any
/// nesting of these. JAX calls it a pytree.
///
/// The arguments of a call may hold tensors or [`Var`]s, by value or by reference. A function receives the same
/// structure of owned tensors, [`Nest::Owned`]. Where specs are expected (`L` is [`Spec`]), a structure holds specs,
/// or tensors that stand for their specs.
///
/// ```
/// use kiln_tensor::{DType, Spec, Tensor, Var, compile};
/// let w = Var::parameter(&Tensor::from([2.0f32, 3.0]))?;
/// let f = compile((Spec::new(DType::F32, "n"), &w), |(x, w)| [&x * w.sum(()), x])?;
/// let [y, _] = f.run((Tensor::from([1.0f32, 2.0, 3.0]), &w))?;
/// assert_eq!(y.to_vec::<f32>()?, [5.0, 10.0, 15.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a structure of `{L}`s",
    label = "takes `{L}`s: one, or a tuple, array, `Vec`, `Option` or struct of them",
    note = "structs are structures by `#[derive(Nest)]`"
)]
pub trait Nest<L = Tensor> {
    /// The same structure of owned tensors.
    type Owned: Nest<Owned = Self::Owned>;

    /// Appends the leaves of the structure, in order.
    fn flatten_into(&self, flat: &mut Flat<L>);

    /// Builds the structure from other tensors.
    fn build(feed: &mut Feed<'_>) -> Self::Owned;
}

/// The counts that the types leave open: the length of each `Vec`, and 1 or 0 for each `Option`.
pub(crate) type Counts = SmallVec<[usize; 2]>;

/// The leaves of a structure in order; see [`Nest::flatten_into`].
#[derive(Clone, Debug)]
pub struct Flat<L = Tensor> {
    pub(crate) leaves: Vec<L>,
    pub(crate) counts: Counts,
    /// The error of the first leaf that could not be appended.
    pub(crate) error: Option<Error>,
    paths: Option<Paths>,
}

/// The paths of leaves in a structure, such as `1.weight`.
#[derive(Clone, Debug, Default)]
struct Paths {
    current: String,
    leaves: Vec<String>,
}

impl<L> Default for Flat<L> {
    fn default() -> Flat<L> {
        Flat {
            leaves: Vec::new(),
            counts: Counts::new(),
            error: None,
            paths: None,
        }
    }
}

impl<N: Nest> From<N> for Flat {
    #[track_caller]
    fn from(nest: N) -> Flat {
        Flat::of(&nest)
    }
}

impl<L> Flat<L> {
    /// Returns the leaves of a structure.
    #[track_caller]
    pub fn of<N: Nest<L> + ?Sized>(nest: &N) -> Flat<L> {
        let mut flat = Flat::default();
        nest.flatten_into(&mut flat);
        flat
    }

    /// Returns the leaves of a structure, and their paths.
    #[track_caller]
    pub(crate) fn with_paths<N: Nest<L> + ?Sized>(nest: &N) -> (Flat<L>, Vec<String>) {
        let paths = Some(Paths::default());
        let mut flat = Flat {
            paths,
            ..Flat::default()
        };
        nest.flatten_into(&mut flat);
        let paths = flat.paths.take().unwrap_or_default();
        (flat, paths.leaves)
    }

    /// Appends a tensor, or a spec in place of one.
    pub fn leaf(&mut self, leaf: L) {
        self.leaves.push(leaf);
        if let Some(paths) = &mut self.paths {
            paths.leaves.push(paths.current.clone());
        }
    }

    /// Appends the leaves of a part of the structure: a field, or an element by its index.
    #[track_caller]
    pub fn part<N: Nest<L> + ?Sized>(&mut self, name: impl Display, part: &N) {
        let mut before = 0;
        if let Some(Paths { current, .. }) = &mut self.paths {
            before = current.len();
            let dot = if current.is_empty() { "" } else { "." };
            let _ = write!(current, "{dot}{name}"); // a String takes it
        }
        part.flatten_into(self);
        if let Some(paths) = &mut self.paths {
            paths.current.truncate(before);
        }
    }

    /// Records the number of elements that follow, if it is not part of the type. It may also be a setting, as a
    /// number, that is neither a tensor nor part of the type; a compiled function must be called with the same one.
    pub fn count(&mut self, n: usize) {
        self.counts.push(n);
    }
}

/// The tensors that a structure is built from; see [`Nest::build`].
pub struct Feed<'a> {
    /// `None` for a missing tensor.
    tensors: &'a mut dyn Iterator<Item = Option<Tensor>>,
    counts: std::slice::Iter<'a, usize>,
    consumed: usize,
    /// The indices of missing tensors, except where an `Option` became `None` for lack of all its tensors.
    missing: Vec<usize>,
}

impl Feed<'_> {
    /// The next tensor.
    pub fn tensor(&mut self) -> Tensor {
        let next = self.tensors.next().flatten();
        self.consumed += 1;
        next.unwrap_or_else(|| {
            self.missing.push(self.consumed - 1);
            let text = "a structure takes apart into fewer tensors than it is made of";
            let loc = Location::caller();
            Tensor::poisoned(Error::new(ErrorKind::Internal, "Nest", text, loc), loc)
        })
    }

    /// Returns the number of elements that follow, if it is not part of the type, or a recorded setting.
    pub fn count(&mut self) -> usize {
        self.counts.next().copied().unwrap_or(0)
    }
}

/// Builds the structure with these counts from the tensors that are present. Returns the index of the first missing
/// one if it can't.
pub(crate) fn build_partly<N: Nest<L>, L>(
    counts: &[usize],
    tensors: impl IntoIterator<Item = Option<Tensor>>,
) -> Result<N::Owned, usize> {
    let mut feed = Feed {
        tensors: &mut tensors.into_iter(),
        counts: counts.iter(),
        consumed: 0,
        missing: Vec::new(),
    };
    let nest = N::build(&mut feed);
    match feed.missing.first() {
        None => Ok(nest),
        Some(first) => Err(*first),
    }
}

/// Builds the structure with these counts from other tensors.
pub(crate) fn build<N: Nest<L>, L>(
    counts: &[usize],
    tensors: impl IntoIterator<Item = Tensor>,
) -> N::Owned {
    N::build(&mut Feed {
        tensors: &mut tensors.into_iter().map(Some),
        counts: counts.iter(),
        consumed: 0,
        missing: Vec::new(),
    })
}

/// The return type of a function: a [`Nest`], or a `Result` of one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not what a function of tensors returns",
    label = "returns a tensor, a tuple, array, `Vec`, `Option` or struct of owned tensors, or a `Result` of these"
)]
pub trait Returned {
    /// The tensors.
    type Nest: Nest<Owned = Self::Nest>;

    /// The same return type with other tensors: a `Result` if this is one.
    type Like<N: Nest<Owned = N>>;

    /// The tensors, or the function's own error.
    ///
    /// # Errors
    /// If the function failed.
    fn into_result(self) -> Result<Self::Nest, Error>;

    /// Converts a result: a `Result` stays as it is; otherwise it is the tensors, which carry the error if there is
    /// one. `counts` then gives their number.
    fn like<N: Nest<Owned = N>>(result: Result<N, Error>, counts: &[usize]) -> Self::Like<N>;
}

impl<T: Nest<Owned = T>> Returned for T {
    type Nest = T;
    type Like<N: Nest<Owned = N>> = N;

    fn into_result(self) -> Result<T, Error> {
        Ok(self)
    }

    #[track_caller]
    fn like<N: Nest<Owned = N>>(result: Result<N, Error>, counts: &[usize]) -> N {
        let loc = Location::caller();
        let poisoned = |e| std::iter::repeat(Tensor::poisoned(e, loc));
        result.unwrap_or_else(|e| build::<N, Tensor>(counts, poisoned(e)))
    }
}

impl<T: Nest<Owned = T>> Returned for Result<T, Error> {
    type Nest = T;
    type Like<N: Nest<Owned = N>> = Result<N, Error>;

    fn into_result(self) -> Result<T, Error> {
        self
    }

    fn like<N: Nest<Owned = N>>(result: Result<N, Error>, _: &[usize]) -> Result<N, Error> {
        result
    }
}

/// Leaves: types that hold a tensor, or stand for one.
macro_rules! nest_leaf {
    ($($name:ty, $leaf:ty: |$this:ident, $flat:ident| $add:expr;)*) => {
        $(impl Nest<$leaf> for $name {
            type Owned = Tensor;

            #[track_caller]
            fn flatten_into(&self, $flat: &mut Flat<$leaf>) {
                let $this = self;
                $add
            }

            fn build(feed: &mut Feed<'_>) -> Tensor {
                feed.tensor()
            }
        })*
    };
}
nest_leaf! {
    Tensor, Tensor: |t, flat| flat.leaf(t.clone());
    Var, Tensor: |var, flat| flat.leaf(var.get());
    Spec, Spec: |spec, flat| flat.leaf(spec.clone());
    Tensor, Spec: |t, flat| flat.example(t);
    Var, Spec: |var, flat| flat.example(var);
}

impl Flat {
    /// The tensors, in order.
    pub fn tensors(&self) -> &[Tensor] {
        &self.leaves
    }

    /// Builds the structure that these tensors were taken from, with other tensors.
    pub fn build<N: Nest>(&self, tensors: impl IntoIterator<Item = Tensor>) -> N::Owned {
        build::<N, Tensor>(&self.counts, tensors)
    }
}

impl Flat<Spec> {
    fn example(&mut self, t: &impl crate::AsTensor) {
        match Spec::like(t) {
            Ok(spec) => self.leaf(spec),
            Err(e) => self.error = self.error.take().or(Some(e)),
        }
    }
}

impl<L, T: Nest<L> + ?Sized> Nest<L> for &T {
    type Owned = T::Owned;

    #[track_caller]
    fn flatten_into(&self, flat: &mut Flat<L>) {
        (**self).flatten_into(flat);
    }

    fn build(feed: &mut Feed<'_>) -> T::Owned {
        T::build(feed)
    }
}

impl<L, T: Nest<L>> Nest<L> for [T] {
    type Owned = Vec<T::Owned>;

    #[track_caller]
    fn flatten_into(&self, flat: &mut Flat<L>) {
        flat.count(self.len());
        for (i, t) in self.iter().enumerate() {
            flat.part(i, t);
        }
    }

    fn build(feed: &mut Feed<'_>) -> Vec<T::Owned> {
        (0..feed.count()).map(|_| T::build(feed)).collect()
    }
}

impl<L, T: Nest<L>> Nest<L> for Vec<T> {
    type Owned = Vec<T::Owned>;

    #[track_caller]
    fn flatten_into(&self, flat: &mut Flat<L>) {
        self[..].flatten_into(flat);
    }

    fn build(feed: &mut Feed<'_>) -> Vec<T::Owned> {
        <[T]>::build(feed)
    }
}

impl<L, T: Nest<L>, const N: usize> Nest<L> for [T; N] {
    type Owned = [T::Owned; N];

    #[track_caller]
    fn flatten_into(&self, flat: &mut Flat<L>) {
        for (i, t) in self.iter().enumerate() {
            flat.part(i, t);
        }
    }

    fn build(feed: &mut Feed<'_>) -> [T::Owned; N] {
        std::array::from_fn(|_| T::build(feed))
    }
}

impl<L, T: Nest<L>> Nest<L> for Option<T> {
    type Owned = Option<T::Owned>;

    #[track_caller]
    fn flatten_into(&self, flat: &mut Flat<L>) {
        flat.count(self.is_some().into());
        if let Some(t) = self {
            t.flatten_into(flat);
        }
    }

    /// `None` also if all of its tensors are missing.
    fn build(feed: &mut Feed<'_>) -> Option<T::Owned> {
        if feed.count() == 0 {
            return None;
        }
        let (consumed, missing) = (feed.consumed, feed.missing.len());
        let t = T::build(feed);
        if missing < feed.missing.len() && feed.missing.len() - missing == feed.consumed - consumed
        {
            feed.missing.truncate(missing);
            return None;
        }
        Some(t)
    }
}

impl<L> Nest<L> for () {
    type Owned = ();

    fn flatten_into(&self, _: &mut Flat<L>) {}

    fn build(_: &mut Feed<'_>) {}
}

/// A structure that can hold anything in place of its tensors, as the results of
/// [`jacobian`](crate::jacobian) and [`hessian`](crate::hessian) do.
#[diagnostic::on_unimplemented(
    message = "`{Self}` can't hold anything but tensors",
    label = "a structure with a derivative by each of its tensors",
    note = "a struct can by `#[derive(Nest)]` if the type of its tensors is a parameter: `struct Params<T = Tensor> {{ weight: T, bias: T }}`"
)]
pub trait NestOf: Nest {
    /// The same structure of `T`s.
    type Of<T>;

    /// Builds the structure from the values that `each` returns.
    fn build_of<T>(feed: &mut Feed<'_>, each: &mut dyn FnMut() -> T) -> Self::Of<T>;
}

/// Builds the structure with these counts from any values.
pub(crate) fn build_of<N: NestOf, T>(counts: &[usize], mut each: impl FnMut() -> T) -> N::Of<T> {
    let mut feed = Feed {
        tensors: &mut std::iter::empty(),
        counts: counts.iter(),
        consumed: 0,
        missing: Vec::new(),
    };
    N::build_of(&mut feed, &mut each)
}

impl NestOf for Tensor {
    type Of<T> = T;

    fn build_of<T>(_: &mut Feed<'_>, each: &mut dyn FnMut() -> T) -> T {
        each()
    }
}

impl<N: NestOf> NestOf for Vec<N> {
    type Of<T> = Vec<N::Of<T>>;

    fn build_of<T>(feed: &mut Feed<'_>, each: &mut dyn FnMut() -> T) -> Vec<N::Of<T>> {
        (0..feed.count()).map(|_| N::build_of(feed, each)).collect()
    }
}

impl<N: NestOf, const L: usize> NestOf for [N; L] {
    type Of<T> = [N::Of<T>; L];

    fn build_of<T>(feed: &mut Feed<'_>, each: &mut dyn FnMut() -> T) -> [N::Of<T>; L] {
        std::array::from_fn(|_| N::build_of(feed, each))
    }
}

impl<N: NestOf> NestOf for Option<N> {
    type Of<T> = Option<N::Of<T>>;

    fn build_of<T>(feed: &mut Feed<'_>, each: &mut dyn FnMut() -> T) -> Option<N::Of<T>> {
        (feed.count() > 0).then(|| N::build_of(feed, each))
    }
}

macro_rules! nest_tuple {
    ($($($name:ident $at:tt)*;)*) => {
        $(impl<L, $($name: Nest<L>),*> Nest<L> for ($($name,)*) {
            type Owned = ($($name::Owned,)*);

            #[track_caller]
            fn flatten_into(&self, flat: &mut Flat<L>) {
                $(flat.part($at, &self.$at);)*
            }

            fn build(feed: &mut Feed<'_>) -> Self::Owned {
                ($($name::build(feed),)*)
            }
        }

        impl<$($name: NestOf),*> NestOf for ($($name,)*) {
            type Of<T> = ($($name::Of<T>,)*);

            fn build_of<T>(feed: &mut Feed<'_>, each: &mut dyn FnMut() -> T) -> Self::Of<T> {
                ($($name::build_of(feed, each),)*)
            }
        })*
    };
}
nest_tuple! {
    A 0;
    A 0 B 1;
    A 0 B 1 C 2;
    A 0 B 1 C 2 D 3;
    A 0 B 1 C 2 D 3 E 4;
    A 0 B 1 C 2 D 3 E 4 F 5;
    A 0 B 1 C 2 D 3 E 4 F 5 G 6;
    A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7;
}
