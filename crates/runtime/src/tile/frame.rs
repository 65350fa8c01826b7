//! Allocation of physical registers.

use hashbrown::HashMap;
use kiln_base::Compute;

/// The physical registers.
#[derive(Default)]
pub(super) struct Frame {
    pub(super) types: Vec<Compute>,
    pub(super) pointable: Vec<bool>,
    /// Local registers that the stage at hand does not use right now, by size and kind.
    free: HashMap<(usize, bool), Vec<u32>>,
    /// All local registers.
    locals: HashMap<(usize, bool), Vec<u32>>,
}

impl Frame {
    pub(super) fn fresh(&mut self, ty: Compute, pointable: bool) -> u32 {
        self.types.push(ty);
        self.pointable.push(pointable);
        self.types.len() as u32 - 1
    }

    pub(super) fn begin_stage(&mut self) {
        self.free = self.locals.clone();
    }

    pub(super) fn take(&mut self, ty: Compute, pointable: bool) -> u32 {
        let key = (ty.size(), pointable);
        if let Some(p) = self.free.get_mut(&key).and_then(Vec::pop) {
            return p;
        }
        let p = self.fresh(ty, pointable);
        self.locals.entry(key).or_default().push(p);
        p
    }

    pub(super) fn give(&mut self, ty: Compute, pointable: bool, p: u32) {
        self.free.entry((ty.size(), pointable)).or_default().push(p);
    }
}
