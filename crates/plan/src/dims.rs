//! Traversal of all sizes in a plan.

use crate::contract::Visit;
use crate::{Kernel, Plan};
use kiln_base::Dim;

impl Plan {
    /// True if `holds` is true for every size in the plan, including those of its kernels and their bodies.
    pub fn all_dims(&self, mut holds: impl FnMut(&Dim) -> bool) -> bool {
        plan(self, &mut holds)
    }
}

impl Kernel {
    /// True if `holds` is true for every size in the kernel, in its programs and bodies: extents, strides, offsets and
    /// numbers that it is called with.
    pub fn all_dims(&self, mut holds: impl FnMut(&Dim) -> bool) -> bool {
        kernel(self, &mut holds)
    }
}

fn plan(p: &Plan, holds: &mut Visit<'_>) -> bool {
    p.inputs.iter().all(|i| i.shape.iter().all(&mut *holds))
        && p.outputs.iter().all(|o| o.shape.iter().all(&mut *holds))
        && p.buffers.iter().all(|b| holds(&b.len))
        && p.needs.iter().all(|n| holds(&n.size))
        && p.kernels.iter().all(|k| kernel(k, holds))
}

fn kernel(k: &Kernel, holds: &mut Visit<'_>) -> bool {
    k.own_dims(holds)
        && k.programs().all(|p| p.all_dims(holds))
        && k.bodies().iter().all(|b| plan(b, holds))
}
