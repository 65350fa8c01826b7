//! Some of several transforms, by chance.

use super::arguments::probability;
use super::compose::{Listed, Steps, print};
use super::{Transform, draw_bool};
use crate::fault::{SOURCE, invalid};
use kiln_data::Rng;
use kiln_tensor::{Result, on_behalf_of_caller};
use std::fmt;

/// Transforms whose output has the type of their input, and of which some are chosen: a tuple of up to 8, an array or
/// a vector.
pub trait Choices<X>: Send + Sync {
    /// The number of transforms.
    fn count(&self) -> usize;

    /// Returns the result of the one at `index`, which is below the count.
    ///
    /// # Errors
    /// Those of that transform.
    #[track_caller]
    fn choose(&self, index: usize, x: X, rng: &mut Rng) -> Result<X>;
}

macro_rules! tuples {
    ($($n:literal ($($name:ident $at:tt)*))*) => {$(
        impl<X, $($name: Transform<X, Output = X>),*> Choices<X> for ($($name,)*) {
            fn count(&self) -> usize {
                $n
            }
            fn choose(&self, index: usize, x: X, rng: &mut Rng) -> Result<X> {
                match index {
                    $($at => self.$at.apply(x, rng),)*
                    _ => Ok(x),
                }
            }
        }
    )*};
}
tuples! {
    1 (A 0)
    2 (A 0 B 1)
    3 (A 0 B 1 C 2)
    4 (A 0 B 1 C 2 D 3)
    5 (A 0 B 1 C 2 D 3 E 4)
    6 (A 0 B 1 C 2 D 3 E 4 F 5)
    7 (A 0 B 1 C 2 D 3 E 4 F 5 G 6)
    8 (A 0 B 1 C 2 D 3 E 4 F 5 G 6 H 7)
}

macro_rules! lists {
    ($([$($n:tt)*] $list:ty;)*) => {$(
        impl<X, T: Transform<X, Output = X> $($n)*> Choices<X> for $list {
            fn count(&self) -> usize {
                self.len()
            }
            fn choose(&self, index: usize, x: X, rng: &mut Rng) -> Result<X> {
                self[index].apply(x, rng)
            }
        }
    )*};
}
lists! {
    [] Vec<T>;
    [, const N: usize] [T; N];
}

/// All of several transforms, or none of them, by chance.
#[derive(Clone, Debug)]
pub struct RandomApply<S> {
    transforms: S,
    p: f64,
}

impl<S> RandomApply<S> {
    /// These transforms, one after another, in half of all cases.
    pub fn new(transforms: S) -> RandomApply<S> {
        RandomApply { transforms, p: 0.5 }
    }

    /// The probability that they are applied.
    pub fn p(mut self, p: f64) -> RandomApply<S> {
        self.p = p;
        self
    }
}

impl<X, S: Steps<X, Output = X> + Listed> Transform<X> for RandomApply<S> {
    type Output = X;
    fn apply(&self, x: X, rng: &mut Rng) -> Result<X> {
        match draw_bool(rng, probability("RandomApply", self.p)?) {
            true => on_behalf_of_caller(SOURCE, || self.transforms.run(x, rng)),
            false => Ok(x),
        }
    }
}

impl<S: Listed> fmt::Display for RandomApply<S> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let mut lines = self.transforms.list();
        lines.insert(0, format!("p={:?}", self.p));
        print(f, "RandomApply", &lines)
    }
}

/// One of several transforms, by chance.
#[derive(Clone, Debug)]
pub struct RandomChoice<S> {
    transforms: S,
    p: Option<Vec<f64>>,
}

impl<S> RandomChoice<S> {
    /// One of these, each as likely.
    pub fn new(transforms: S) -> RandomChoice<S> {
        RandomChoice {
            transforms,
            p: None,
        }
    }

    /// The relative probability of each.
    pub fn p(mut self, p: impl Into<Vec<f64>>) -> RandomChoice<S> {
        self.p = Some(p.into());
        self
    }
}

impl<X, S: Choices<X> + Listed> Transform<X> for RandomChoice<S> {
    type Output = X;
    fn apply(&self, x: X, rng: &mut Rng) -> Result<X> {
        let (op, count) = ("RandomChoice", self.transforms.count());
        let index = match &self.p {
            None => rng.below(count),
            Some(p) => {
                let sum: f64 = p.iter().sum();
                let fits = p.iter().all(|p| *p >= 0.0) && sum.is_finite() && sum > 0.0;
                if p.len() != count || !fits {
                    let message = format!(
                        "p holds a weight for each of the {count} transforms, none of them negative, but it is {p:?}"
                    );
                    return Err(invalid(op, message));
                }
                let mut left = rng.unit() * sum;
                let is_drawn = |p: &f64| {
                    left -= p;
                    left < 0.0
                };
                let index = p.iter().position(is_drawn);
                index.unwrap_or(p.iter().rposition(|p| *p > 0.0).unwrap_or(0))
            }
        };
        if count == 0 {
            return Err(invalid(op, "there is no transform to choose"));
        }
        on_behalf_of_caller(SOURCE, || self.transforms.choose(index, x, rng))
    }
}

impl<S: Listed> fmt::Display for RandomChoice<S> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        print(f, "RandomChoice", &self.transforms.list())?;
        match &self.p {
            None => f.write_str("(p=None)"),
            Some(p) => write!(f, "(p={p:?})"),
        }
    }
}

/// Several transforms, one after another in a random order.
#[derive(Clone, Debug)]
pub struct RandomOrder<S> {
    transforms: S,
}

impl<S> RandomOrder<S> {
    /// These transforms, each once.
    pub fn new(transforms: S) -> RandomOrder<S> {
        RandomOrder { transforms }
    }
}

impl<X, S: Choices<X> + Listed> Transform<X> for RandomOrder<S> {
    type Output = X;
    fn apply(&self, mut x: X, rng: &mut Rng) -> Result<X> {
        on_behalf_of_caller(SOURCE, || {
            for index in rng.permutation(self.transforms.count()) {
                x = self.transforms.choose(index, x, rng)?;
            }
            Ok(x)
        })
    }
}

impl<S: Listed> fmt::Display for RandomOrder<S> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        print(f, "RandomOrder", &self.transforms.list())
    }
}
