//! Modules in other dtypes.

use crate::Module;
use kiln_tensor::{DType, Error, Result};

impl dyn Module {
    /// [`Module::to_dtype_where`].
    #[track_caller]
    pub(crate) fn cast_floats(
        &self,
        dtype: DType,
        chosen: &dyn Fn(&dyn Module) -> bool,
    ) -> Result<()> {
        if !dtype.is_float() || !dtype.computes() {
            let message = format!("parameters are floats that are computed in, not {dtype}");
            return Err(Error::invalid("to_dtype", message));
        }
        if let Some(name) = self.wrapper() {
            let message = format!(
                "the model is in a {name}: cast it first, and wrap it then: `model.to_dtype(..)?`, then `{name}::new(model)?`"
            );
            return Err(Error::invalid("to_dtype", message));
        }
        self.vars(); // which tells the cells their names
        let modules = self.named_modules().into_iter().filter(|(_, m)| chosen(*m));
        for (path, m) in modules {
            let vars = m.own_vars(&path).into_iter().map(|v| v.var);
            for var in vars.chain(m.computed().into_iter().map(|(_, var)| var)) {
                if var.dtype().is_float() {
                    var.to_dtype_(dtype)?;
                }
            }
        }
        Ok(())
    }
}
