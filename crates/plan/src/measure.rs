//! Properties of a plan's parts that need no comparison or encoding of the whole.

use crate::{Kernel, Plan};
use std::hash::{DefaultHasher, Hasher};

impl Kernel {
    /// Returns a number that is the same for equal kernels, and rarely for others.
    pub fn fingerprint(&self) -> u64 {
        let bytes = postcard::to_allocvec(self)
            .expect("kernels hold only plain data, which always encodes");
        let mut hasher = DefaultHasher::new();
        hasher.write(&bytes);
        hasher.finish()
    }
}

impl Plan {
    /// Estimates the number of bytes that [`Plan::to_bytes`] returns, without encoding anything.
    pub fn estimated_len(&self) -> usize {
        let steps = self.prepare.iter().chain(&self.run);
        let steps = steps.map(|s| 6 + 3 * s.args.len() + 3 * s.sites.len());
        let inputs = self.inputs.iter().map(|i| 8 + 3 * i.shape.len());
        let outputs = self.outputs.iter().map(|o| 8 + 3 * o.shape.len());
        let constants = self.constants.iter().map(|c| 8 + c.bytes.len());
        let kernels = self.kernels.iter().map(|k| kernel(k));
        let lists = steps.chain(inputs).chain(outputs).chain(constants);
        let lists = lists.chain(kernels).sum::<usize>();
        lists
            + 6 * self.buffers.len()
            + 16 * (self.sites.len() + self.symbols.len() + self.needs.len())
    }
}

fn kernel(kernel: &Kernel) -> usize {
    let bodies = kernel.bodies().iter().map(Plan::estimated_len);
    let programs = kernel.programs().map(|p| {
        let axes = p.axes.len() + p.inner.len();
        let code = p.stages.iter().map(|s| 4 + 6 * s.code.len());
        let accesses = p.accesses.iter();
        let accesses = accesses.map(|a| (6 + 3 * axes) * (1 + a.bounds.len()));
        let tables =
            p.name.len() + 3 * axes + p.args.len() + p.registers.len() + 12 * p.constants.len();
        code.chain(accesses).sum::<usize>() + tables
    });
    let source = match kernel {
        Kernel::Cuda(k) => k.text.scope.len() + k.text.body.len(),
        _ => 0,
    };
    32 + source + bodies.chain(programs).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Allocation, Buffer, BufferId, Constant, Step};
    use crate::{DType, Dim};

    #[test]
    fn the_estimate_counts_what_grows() {
        let mut plan = Plan::default();
        let empty = plan.estimated_len();
        plan.constants.push(Constant {
            dtype: DType::U8,
            bytes: vec![1; 1 << 20],
            buffer: BufferId(0),
        });
        for i in 0..10_000 {
            plan.buffers.push(Buffer {
                dtype: DType::F32,
                len: Dim::Const(i),
                allocation: Allocation::Temporary,
            });
            plan.run.push(Step {
                kernel: 0,
                args: vec![BufferId(i as u32); 3],
                sites: Vec::new(),
                concurrent: false,
                guard: None,
            });
        }
        let (about, exact) = (plan.estimated_len() - empty, plan.to_bytes().len());
        assert!(
            about >= exact / 2 && about <= 2 * exact,
            "{about}, not {exact}"
        );
    }
}
