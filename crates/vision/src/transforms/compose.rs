//! Transforms one after another.

use super::Transform;
use crate::fault::SOURCE;
use kiln_data::Rng;
use kiln_tensor::{Result, on_behalf_of_caller};
use std::fmt;

/// Transforms that are applied one after another: a tuple of up to 12, each of which takes the output of the one
/// before it, or an array or vector of transforms of one type.
pub trait Steps<X>: Send + Sync {
    /// The output of the last one.
    type Output;

    /// Applies all of them.
    ///
    /// # Errors
    /// That of the first one that fails.
    #[track_caller]
    fn run(&self, x: X, rng: &mut Rng) -> Result<Self::Output>;
}

/// Transforms that can be printed, one a line.
pub(super) trait Listed {
    fn list(&self) -> Vec<String>;
}

macro_rules! tuples {
    ($(($first:ident $x:ident $($name:ident $from:ident)*: $last:ident))*) => {$(
        impl<Z0, $first: Transform<Z0>, $($name: Transform<$from::Output>),*> Steps<Z0> for ($first, $($name,)*) {
            type Output = $last::Output;
            #[allow(non_snake_case)]
            fn run(&self, x: Z0, rng: &mut Rng) -> Result<$last::Output> {
                let ($first, $($name,)*) = self;
                let x = $first.apply(x, rng)?;
                $(let x = $name.apply(x, rng)?;)*
                Ok(x)
            }
        }

        impl<$first: fmt::Display, $($name: fmt::Display),*> Listed for ($first, $($name,)*) {
            #[allow(non_snake_case)]
            fn list(&self) -> Vec<String> {
                let ($first, $($name,)*) = self;
                vec![$first.to_string(), $($name.to_string()),*]
            }
        }
    )*};
}
tuples! {
    (A x: A)
    (A x B A: B)
    (A x B A C B: C)
    (A x B A C B D C: D)
    (A x B A C B D C E D: E)
    (A x B A C B D C E D F E: F)
    (A x B A C B D C E D F E G F: G)
    (A x B A C B D C E D F E G F H G: H)
    (A x B A C B D C E D F E G F H G I H: I)
    (A x B A C B D C E D F E G F H G I H J I: J)
    (A x B A C B D C E D F E G F H G I H J I K J: K)
    (A x B A C B D C E D F E G F H G I H J I K J L K: L)
}

macro_rules! lists {
    ($([$($n:tt)*] $list:ty;)*) => {$(
        impl<X, T: Transform<X, Output = X> $($n)*> Steps<X> for $list {
            type Output = X;
            fn run(&self, mut x: X, rng: &mut Rng) -> Result<X> {
                for step in self {
                    x = step.apply(x, rng)?;
                }
                Ok(x)
            }
        }

        impl<T: fmt::Display $($n)*> Listed for $list {
            fn list(&self) -> Vec<String> {
                self.iter().map(T::to_string).collect()
            }
        }
    )*};
}
lists! {
    [] Vec<T>;
    [, const N: usize] [T; N];
}

/// Prints a name and the lines in its parentheses.
pub(super) fn print(f: &mut fmt::Formatter, name: &str, lines: &[String]) -> fmt::Result {
    writeln!(f, "{name}(")?;
    for line in lines {
        // Text of several lines is indented by one more step.
        writeln!(f, "    {}", line.replace('\n', "\n    "))?;
    }
    f.write_str(")")
}

/// Several transforms as one.
///
/// ```
/// use kiln_vision::transforms::{CenterCrop, Compose, Resize, ToTensor, Transform};
/// use kiln_vision::{Image, Mode};
///
/// let test = Compose::new((Resize::new(8), CenterCrop::new(6), ToTensor::new()));
/// let image = Image::filled(16, 32, Mode::L, &[255])?;
/// assert_eq!(test.call(image)?.to_vec::<f32>()?, [1.0; 36]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Compose<S> {
    transforms: S,
}

impl<S> Compose<S> {
    /// These transforms, one after another.
    pub fn new(transforms: S) -> Compose<S> {
        Compose { transforms }
    }
}

impl<X, S: Steps<X> + Listed> Transform<X> for Compose<S> {
    type Output = S::Output;
    fn apply(&self, x: X, rng: &mut Rng) -> Result<S::Output> {
        on_behalf_of_caller(SOURCE, || self.transforms.run(x, rng))
    }
}

impl<S: Listed> fmt::Display for Compose<S> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        print(f, "Compose", &self.transforms.list())
    }
}

/// A function as a transform.
///
/// ```
/// use kiln_tensor::Tensor;
/// use kiln_vision::transforms::{Lambda, Transform};
///
/// let double = Lambda::new(|x: Tensor| Ok(x * 2.0));
/// assert_eq!(double.call(Tensor::from([1.0f32, 2.0]))?.to_vec::<f32>()?, [2.0, 4.0]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lambda<F> {
    f: F,
}

impl<F> Lambda<F> {
    /// A transform that calls `f`.
    pub fn new<X, Y>(f: F) -> Lambda<F>
    where
        F: Fn(X) -> Result<Y> + Send + Sync,
    {
        Lambda { f }
    }
}

impl<X, Y, F: Fn(X) -> Result<Y> + Send + Sync> Transform<X> for Lambda<F> {
    type Output = Y;
    fn apply(&self, x: X, _: &mut Rng) -> Result<Y> {
        (self.f)(x)
    }
}

impl<F> fmt::Display for Lambda<F> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Lambda()")
    }
}
