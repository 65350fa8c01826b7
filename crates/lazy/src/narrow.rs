//! The values of copies of cells in narrower dtypes: casts of the cells.

use crate::cell::{Cell, Narrow};
use crate::recorder::Recorder;
use crate::{Handle, scope};
use kiln_base::DType;
use kiln_ir::{Builder, OpError, Role};
use std::panic::Location;
use std::sync::Arc;

impl Narrow {
    /// Returns a copy of the current value of `of`, which is cast when either is read.
    ///
    /// # Errors
    /// If the cast can't be recorded.
    pub fn cast(
        of: &Arc<Cell>,
        dtype: DType,
        loc: &'static Location<'static>,
    ) -> Result<Narrow, OpError> {
        let taken = of.acquire(); // nobody assigns it meanwhile
        let copy = cast(&of.now(), dtype, loc)?;
        let cell = Cell::new(&copy, Role::Parameter);
        cell.hold(&copy, loc);
        drop(taken);
        Ok(Narrow::new(of, cell))
    }

    /// Updates the copy with the cell's current value, after a run that assigned only the cell.
    ///
    /// # Errors
    /// If the cast can't be recorded.
    pub fn renew(&self, loc: &'static Location<'static>) -> Result<(), OpError> {
        let Some(of) = self.of.upgrade() else {
            return Ok(());
        };
        // In the order of their ids.
        let (taken, copy) = (of.acquire(), self.cell.acquire());
        let value = cast(&taken.cell().now(), self.cell.leaf.dtype(), loc)?;
        copy.hold(&value, loc);
        Ok(())
    }

    /// True if a value is the cell's current value, and the copy may be read instead.
    pub fn stands_for(&self, value: &Handle, loc: &'static Location<'static>) -> bool {
        self.of.upgrade().is_some_and(|of| {
            let recorded = scope::get(&of, loc);
            let now = recorded.unwrap_or_else(|| of.idle().current.clone());
            now.key() == value.key()
        })
    }
}

fn cast(value: &Handle, dtype: DType, loc: &'static Location<'static>) -> Result<Handle, OpError> {
    Recorder::new(loc, "autocast", value.node.device).cast(&value.plain(), dtype)
}
