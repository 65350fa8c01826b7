//! Copies of cells' values in narrower dtypes.

use crate::{DType, Error, ErrorKind, Result, Var};
use kiln_lazy::cell::Narrow;
use std::panic::Location;

impl Var {
    /// Keeps, from now on, a copy of the cell's value in a narrower dtype. Every assignment of the cell, such as the
    /// update of a parameter, also assigns the copy, and [`autocast`](crate::autocast) to that dtype reads it instead
    /// of casting. After a function that was compiled before and assigns only the cell, the value is cast again. A
    /// later cast of the cell ends the copy.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor, Var, autocast};
    /// let w = Var::parameter(Tensor::from([[1.0f32, 2.0]]))?;
    /// w.keep_narrow(DType::BF16)?;
    /// let x = Tensor::from([[3.0f32, 0.5]]);
    /// let y = autocast(DType::BF16, || x.linear(&w)); // reads the copy
    /// y.sum(()).backward()?;
    /// assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [3.0, 0.5]);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// If the value can't be computed or is not f32, the dtype is not f16 or bf16, or inside `compile`.
    #[track_caller]
    pub fn keep_narrow(&self, dtype: DType) -> Result<()> {
        let loc = Location::caller();
        if self.dtype() != DType::F32 || !dtype.is_half() {
            let message = format!(
                "copies are of f32 in f16 or bf16, not of {} in {dtype}",
                self.dtype()
            );
            return Err(Error::new(ErrorKind::Value, "keep_narrow", message, loc));
        }
        self.check_unshared("keep_narrow")?;
        let copy = self.get().detach().to_dtype(dtype);
        copy.realize()?;
        let copy = Var::new(copy)?;
        if let Some(name) = self.name() {
            copy.set_name(&format!("{name}.{dtype}"));
        }
        self.cell
            .leaf
            .set_narrow(Some(Narrow::new(&self.cell, copy.cell)));
        Ok(())
    }

    /// Keeps a narrower copy of the cell's value, as [`Var::keep_narrow`] does, from the first
    /// [`autocast`](crate::autocast) of it on, in the dtype of that cast. Optimisers set this for the cells they
    /// update.
    ///
    /// ```
    /// use kiln_tensor::{DType, Tensor, Var, autocast};
    /// let w = Var::parameter(Tensor::from([[1.0f32, 2.0]]))?;
    /// w.keep_casts();
    /// let x = Tensor::from([[3.0f32, 0.5]]);
    /// let first = autocast(DType::BF16, || x.linear(&w)); // casts it, and keeps that
    /// let second = autocast(DType::BF16, || x.linear(&w)); // reads it
    /// assert_eq!(first.to_dtype(DType::F32).to_vec::<f32>()?, second.to_dtype(DType::F32).to_vec::<f32>()?);
    /// # Ok::<(), kiln_tensor::Error>(())
    /// ```
    pub fn keep_casts(&self) {
        self.cell.leaf.keep_casts(&self.cell);
    }

    /// The copy of its value that is kept in a narrower dtype, if it exists by now; see [`Var::keep_narrow`].
    pub fn narrow_copy(&self) -> Option<Var> {
        let narrow = self.cell.leaf.narrow()?;
        let cell = narrow.cell().clone();
        Some(Var { cell })
    }
}
