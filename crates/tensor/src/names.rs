//! Names of dims: an optional check on top of the shapes.
//!
//! Names belong to the handle. They never enter the program, and an operation on tensors without names pays nothing
//! for them. They follow every recorded op by PyTorch's rules: elementwise ops unify the names of aligned dims (an
//! error if they differ), reductions drop the names of reduced dims, views carry names along, products take them from
//! the dims that remain. Ops that can't map dims of their operands to dims of their result drop all names.

use crate::tensor::{Names, Tensor};
use kiln_ir::{Op, OpError, ensure};
use std::sync::Arc;

/// A name, or `None`, for each dim; `"..."` stands for the remaining dims.
pub struct DimNames(pub(crate) Vec<Option<String>>);

impl<const N: usize> From<[&str; N]> for DimNames {
    fn from(names: [&str; N]) -> DimNames {
        DimNames::from(&names[..])
    }
}

impl From<&[&str]> for DimNames {
    fn from(names: &[&str]) -> DimNames {
        DimNames(names.iter().map(|n| Some(n.to_string())).collect())
    }
}

impl<const N: usize> From<[Option<&str>; N]> for DimNames {
    fn from(names: [Option<&str>; N]) -> DimNames {
        DimNames(names.iter().map(|n| n.map(str::to_string)).collect())
    }
}

impl DimNames {
    /// One name for each dim, with the ellipsis replaced by `replacement`.
    pub(crate) fn expand_ellipsis(
        &self,
        t: &Tensor,
        replacement: &[Option<Arc<str>>],
    ) -> Result<Vec<Option<Arc<str>>>, OpError> {
        let dots = |n: &Option<String>| n.as_deref() == Some("...");
        let name = |n: &Option<String>| n.as_deref().map(Arc::from);
        let Some(ellipsis) = self.0.iter().position(dots) else {
            let names: Vec<_> = self.0.iter().map(name).collect();
            return check_distinct(names);
        };
        ensure!(
            self.0.iter().filter(|n| dots(n)).count() == 1,
            "\"...\" can stand only once among the names"
        );
        ensure!(
            self.0.len() <= t.ndim() + 1 || replacement.is_empty(),
            "{} names are too many for {}",
            self.0.len() - 1,
            t.fact()
        );
        let mut names: Vec<_> = self.0[..ellipsis].iter().map(name).collect();
        names.extend(replacement.iter().cloned());
        names.extend(self.0[ellipsis + 1..].iter().map(name));
        check_distinct(names)
    }

    /// One name for each dim of t. Dims that the ellipsis stands for keep their names.
    pub(crate) fn for_dims_of(&self, t: &Tensor) -> Result<Vec<Option<Arc<str>>>, OpError> {
        let own = t.own_names();
        let before = self.0.iter().position(|n| n.as_deref() == Some("..."));
        let count = (t.ndim() + 1).saturating_sub(self.0.len());
        let rest = before.map_or(&[][..], |b| own.get(b..b + count).unwrap_or(&[]));
        let names = self.expand_ellipsis(t, rest)?;
        ensure!(
            names.len() == t.ndim(),
            "{} names do not fit {}, which has {} dims",
            names.len(),
            t.fact(),
            t.ndim()
        );
        Ok(names)
    }
}

fn check_distinct(names: Vec<Option<Arc<str>>>) -> Result<Vec<Option<Arc<str>>>, OpError> {
    for (i, n) in names.iter().enumerate() {
        if let Some(n) = n {
            ensure!(!n.is_empty(), "a name can't be empty");
            ensure!(
                !names[..i].contains(&Some(n.clone())),
                "the name {n:?} appears twice"
            );
        }
    }
    Ok(names)
}

impl Tensor {
    /// The name of each dim.
    pub fn names(&self) -> Vec<Option<&str>> {
        match &self.names {
            Some(names) => names.iter().map(|n| n.as_deref()).collect(),
            None => vec![None; self.ndim()],
        }
    }

    /// A name for each dim, or only `None`s if no dim is named.
    pub(crate) fn own_names(&self) -> Vec<Option<Arc<str>>> {
        match &self.names {
            Some(names) => names.to_vec(),
            None => vec![None; self.ndim()],
        }
    }

    /// The same value under other names; only `None`s remove the names.
    pub(crate) fn with_names(&self, names: Vec<Option<Arc<str>>>) -> Tensor {
        let mut t = self.clone();
        t.names = names.iter().any(Option::is_some).then(|| names.into());
        t
    }

    /// The value of a view of `from` that only inserts or removes dims of size 1, with the names of `from` after
    /// `edit`.
    pub(crate) fn with_names_of(
        self,
        from: &Tensor,
        edit: impl FnOnce(&mut Vec<Option<Arc<str>>>),
    ) -> Tensor {
        let Some(names) = &from.names else {
            return self;
        };
        let mut names = names.to_vec();
        edit(&mut names);
        self.with_names(names)
    }

    /// The axis of this name.
    pub(crate) fn named_axis(&self, name: &str) -> Result<usize, OpError> {
        let names = self.names();
        names.iter().position(|n| *n == Some(name)).ok_or_else(|| {
            OpError(format!(
                "no dim of {} is named {name:?}; its names are {}",
                self.fact(),
                shown(&names)
            ))
        })
    }
}

/// `('N', 'C', None)`, as PyTorch prints names.
pub(crate) fn shown(names: &[Option<&str>]) -> String {
    let text = |n: &Option<&str>| n.map_or("None".to_string(), |n| format!("'{n}'"));
    let list: Vec<String> = names.iter().map(text).collect();
    match &list[..] {
        [one] => format!("({one},)"),
        _ => format!("({})", list.join(", ")),
    }
}

/// Returns an error if a name is at different positions, counted from the right, of two operands.
pub(crate) fn check_aligned(a: &Tensor, b: &Tensor) -> Result<(), OpError> {
    let (Some(p), Some(q)) = (&a.names, &b.names) else {
        return Ok(());
    };
    for (i, n) in p.iter().rev().enumerate() {
        let other = q.iter().rev().position(|m| n.is_some() && m == n);
        ensure!(
            other.is_none_or(|j| i == j),
            "the dim {:?} stands at different places of {} and {}; use align_to",
            n.as_deref().unwrap_or_default(),
            shown(&a.names()),
            shown(&b.names())
        );
    }
    Ok(())
}

/// The names of an op's results.
pub(crate) fn infer(op: &Op, inputs: &[Tensor]) -> Result<Option<Names>, OpError> {
    if inputs.iter().all(|t| t.names.is_none()) {
        return Ok(None);
    }
    let x = inputs[0].own_names();
    let dropped = |axes: &[usize]| {
        let kept = x.iter().enumerate().filter(|(i, _)| !axes.contains(i));
        kept.map(|(_, n)| n.clone()).collect::<Vec<_>>()
    };
    let names = match op {
        Op::Pointwise(_) | Op::Concat(_) => {
            let mut names = x;
            for t in &inputs[1..] {
                unify(&mut names, &t.own_names(), inputs)?;
            }
            names
        }
        Op::Broadcast(b) => {
            let mut names = vec![None; b.shape.len() - x.len()];
            names.extend(x);
            names
        }
        Op::Permute(p) => p.perm.iter().map(|a| x[*a].clone()).collect(),
        Op::Reduce(r) => dropped(&r.axes),
        Op::ArgReduce(r) => dropped(&[r.axis]),
        Op::MatMul(_) => {
            let y = inputs[1].own_names();
            let (m, n) = (x.len() - 2, y.len() - 1);
            let mut names = x[..m].to_vec();
            unify(&mut names, &y[..m], inputs)?;
            names.extend([x[m].clone(), y[n].clone()]);
            names
        }
        Op::Cast(_)
        | Op::Slice(_)
        | Op::Pad(_)
        | Op::Softmax(_)
        | Op::Scan(_)
        | Op::ArgSort(_)
        | Op::BatchNorm(_)
        | Op::WindowReduce(_)
        | Op::Gather(_)
        | Op::Scatter(_) => x,
        _ => return Ok(None),
    };
    // A name that two dims would have is dropped from both.
    let is_unique = |n: &Option<Arc<str>>| names.iter().filter(|m| *m == n).count() == 1;
    let names: Vec<_> = names
        .iter()
        .map(|n| n.clone().filter(|_| is_unique(n)))
        .collect();
    Ok(names.iter().any(Option::is_some).then(|| names.into()))
}

/// Unifies the names of aligned dims: they must be equal, or one of them `None`.
fn unify(
    names: &mut [Option<Arc<str>>],
    other: &[Option<Arc<str>>],
    operands: &[Tensor],
) -> Result<(), OpError> {
    for (i, (a, b)) in names.iter_mut().zip(other).enumerate() {
        if let (Some(p), Some(q)) = (&a, b) {
            let shown_names: Vec<String> = operands.iter().map(|t| shown(&t.names())).collect();
            ensure!(
                p == q,
                "the names {p:?} and {q:?} of dim {i} differ: the operands are {}",
                shown_names.join(" and ")
            );
        }
        *a = a.take().or_else(|| b.clone());
    }
    Ok(())
}
