//! Copies of cells in narrower dtypes, which are assigned together with the cells.

use crate::cell::Cell;
use crate::{Handle, scope};
use std::panic::Location;
use std::sync::{Arc, Weak};

/// A copy of what a cell holds, in another dtype: whoever assigns the cell assigns it, so that it always fits.
pub struct Narrow {
    of: Weak<Cell>,
    cell: Arc<Cell>,
}

impl Narrow {
    /// A cell whose value is that of `of` in another dtype.
    pub fn new(of: &Arc<Cell>, cell: Arc<Cell>) -> Narrow {
        let of = Arc::downgrade(of);
        Narrow { of, cell }
    }

    /// The cell of the copy.
    pub fn cell(&self) -> &Arc<Cell> {
        &self.cell
    }

    /// Whether a value is what the cell holds now, and no older one: then the copy stands for it.
    pub fn stands_for(&self, value: &Handle, loc: &'static Location<'static>) -> bool {
        self.of.upgrade().is_some_and(|of| {
            let recorded = scope::get(&of, loc);
            let now = recorded.unwrap_or_else(|| of.idle().current.clone());
            now.key() == value.key()
        })
    }
}
