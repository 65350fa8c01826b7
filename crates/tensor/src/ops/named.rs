//! Naming dims, and ordering them by name.

use crate::Tensor;
use crate::names::DimNames;
use crate::operand::AsTensor;
use crate::record::{compose, view_of};
use kiln_derive::on_cells;
use kiln_ir::{Builder, ensure};
use std::sync::Arc;

#[on_cells]
impl Tensor {
    /// Names the dims that have no name yet; a dim with another name is an error. `"..."` stands for dims that stay
    /// unchanged.
    ///
    /// Every argument that takes a dim by its number then also takes its name.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor};
    /// let images = Tensor::ones([2, 3, 4, 5], DType::F32).refine_names(["N", "C", "H", "W"]);
    /// let gray = images.mean("C");
    /// assert_eq!(gray.names(), [Some("N"), Some("H"), Some("W")]);
    /// assert_eq!(images.select("C", 0).shape()?, [2, 4, 5]);
    /// // A check: these dims don't belong together.
    /// let wrong = &images * Tensor::ones([5], DType::F32).refine_names(["H"]);
    /// assert!(wrong.error().is_some());
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn refine_names(&self, names: impl Into<DimNames>) -> Tensor {
        compose("refine_names", &[self], |_| {
            let names = names.for_dims_of(self)?;
            for (i, (old, new)) in self.own_names().iter().zip(&names).enumerate() {
                ensure!(
                    old.is_none() || old == new,
                    "dim {i} is {old:?} and can't become {new:?}; use rename"
                );
            }
            Ok(self.with_names(names))
        })
    }

    /// Renames the dims; `"..."` stands for dims that keep their names. See [`Tensor::drop_names`] to remove names.
    pub fn rename(&self, names: impl Into<DimNames>) -> Tensor {
        compose("rename", &[self], |_| {
            Ok(self.with_names(names.for_dims_of(self)?))
        })
    }

    /// This tensor without names: PyTorch's `rename(None)`.
    pub fn drop_names(&self) -> Tensor {
        self.with_names(Vec::new())
    }

    /// The dims in the order of these names, with a dim of size 1 for each name that this tensor
    /// doesn't have. `"..."` stands for the dims that aren't named, in their order.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor};
    /// let x = Tensor::ones([2, 3], DType::F32).refine_names(["C", "N"]);
    /// assert_eq!(x.align_to(["N", "C", "H", "W"]).shape()?, [3, 2, 1, 1]);
    /// assert_eq!(x.align_to(["N", "..."]).names(), [Some("N"), Some("C")]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn align_to(&self, names: impl Into<DimNames>) -> Tensor {
        view_of("align_to", &[self], |b| {
            let own = self.own_names();
            let named =
                |n: &&Option<Arc<str>>| !names.0.iter().any(|x| x.as_deref() == n.as_deref());
            let unnamed: Vec<Option<Arc<str>>> = own.iter().filter(named).cloned().collect();
            let wanted = names.expand_ellipsis(self, &unnamed)?;
            for n in own.iter() {
                ensure!(
                    n.is_some(),
                    "every dim of {} needs a name to be aligned",
                    self.fact()
                );
                ensure!(wanted.contains(n), "the dim {n:?} is not in {wanted:?}");
            }
            let perm: Vec<usize> = wanted
                .iter()
                .filter_map(|n| own.iter().position(|o| o == n))
                .collect();
            let mut x = b.permute(self, &perm)?;
            for (i, n) in wanted.iter().enumerate() {
                if !own.contains(n) {
                    x = b.unsqueeze(&x, i)?;
                }
            }
            Ok(x.with_names(wanted))
        })
    }

    /// [`Tensor::align_to`] the names of another tensor.
    pub fn align_as(&self, other: impl AsTensor) -> Tensor {
        let names = other.names();
        self.align_to(DimNames(
            names.iter().map(|n| n.map(str::to_string)).collect(),
        ))
    }
}
