//! Packed weights that are kept outside the process, such as in a file that other processes map.

use super::bound::Bound;
use super::executable::Executable;
use super::loc::Loc;
use super::packed::{Packed, Stored};
use super::prepare;
use super::step::BoundStep;
use crate::buffer::Buffer;
use hashbrown::HashSet;
use kiln_kernel::error::{Error, Result};
use kiln_kernel::lock::lock;
use kiln_kernel::memory::{ALIGN, Storage};
use kiln_plan::Role;
use std::fmt::Write;
use std::sync::Arc;
use xxhash_rust::xxh3::Xxh3;

/// The version of the packed format, raised for changes that neither a plan nor the schedules of its kernels show.
const PACKING: u32 = 1;

impl Executable {
    /// Packs the weights that runs on these inputs read from packed copies; `None` if there are none. Only parameters
    /// are read.
    ///
    /// # Errors
    /// For wrong inputs, or lack of memory.
    pub fn packed(&self, inputs: &[Buffer]) -> Result<Option<Packed>> {
        let bound = self.bind(inputs)?;
        if self.gpu.is_some() || bound.packs_from == bound.prepared.len() {
            return Ok(None);
        }
        let (offsets, bytes) = bound.packed_offsets();
        let results = prepare::prepare(self, &bound, inputs, None)?;
        let mut block = Storage::new(bytes)?;
        let bytes_of_block = block.bytes_mut();
        bytes_of_block.fill(0);
        for (offset, weights) in offsets.iter().zip(&results[bound.packs_from..]) {
            bytes_of_block[*offset..*offset + weights.len()].copy_from_slice(weights.bytes());
        }
        let layout = self.layout(&bound);
        let bytes = Arc::new(block);
        Ok(Some(Packed { layout, bytes }))
    }

    /// Lets runs with the same parameters as these inputs read weights that were packed before. A run with other
    /// parameters, or whose kernels need another layout, packs its own. The contents of the packed weights are
    /// trusted: checking them would take packing them again.
    ///
    /// # Errors
    /// If the number of inputs is not the plan's.
    pub fn store(&self, inputs: &[Buffer], packed: Packed) -> Result<()> {
        if inputs.len() != self.plan.inputs.len() {
            return Err(Error::Buffer("packed weights for other inputs".into()));
        }
        let contents = self.parameters(inputs).map(|s| s.contents());
        let contents = contents.collect();
        *lock(&self.stored) = Some(Stored { contents, packed });
        Ok(())
    }

    /// The storages of the parameters among the inputs.
    pub(super) fn parameters<'i>(
        &'i self,
        inputs: &'i [Buffer],
    ) -> impl Iterator<Item = &'i Storage> {
        let roles = self.plan.inputs.iter().zip(inputs);
        let parameters = roles.filter(|(i, _)| i.role == Role::Parameter);
        parameters.map(|(_, b)| &**b.storage())
    }

    /// Returns the stored packed weights for these inputs.
    pub(super) fn stored(&self, bound: &Bound, inputs: &[Buffer]) -> Option<Arc<Storage>> {
        let stored = lock(&self.stored);
        let Stored { contents, packed } = stored.as_ref()?;
        let mut pairs = contents.iter().zip(self.parameters(inputs));
        let is_valid = pairs.all(|(stored_contents, s)| s.holds(stored_contents))
            && bound.packed_offsets().1 == packed.bytes.len()
            && self.layout(bound) == packed.layout;
        is_valid.then(|| packed.bytes.clone())
    }

    /// The description of the layout of packed weights, as text.
    fn layout(&self, bound: &Bound) -> String {
        let mut hash = Xxh3::new();
        hash.update(&self.plan.to_bytes());
        hash.update(&PACKING.to_le_bytes());
        let mut text = String::new();
        for step in bound.prepare.iter().filter(|s| bound.is_pack(s)) {
            let schedule = step.work.schedule().unwrap_or_default();
            let _ = writeln!(text, "{:?} {schedule}", step.args);
        }
        let _ = write!(text, "{:?}", &bound.prepared[bound.packs_from..]);
        hash.update(text.as_bytes());
        format!("{} {:032x}", self.level().name(), hash.digest128())
    }
}

impl Bound {
    /// True if a step of *prepare* packs weights.
    pub(super) fn is_pack(&self, step: &BoundStep) -> bool {
        let packed = |loc: &Loc| matches!(loc, Loc::Prepared(p) if *p >= self.packs_from);
        step.args.last().is_some_and(packed)
    }

    /// Returns the offsets of packed weights in one block, and the size of the block in bytes.
    pub(super) fn packed_offsets(&self) -> (Vec<usize>, usize) {
        let mut end = 0usize;
        let offsets = self.prepared[self.packs_from..].iter().map(|bytes| {
            let offset = end;
            let aligned = bytes.checked_next_multiple_of(ALIGN);
            end = aligned.map_or(usize::MAX, |bytes| end.saturating_add(bytes));
            offset
        });
        let offsets = offsets.collect();
        (offsets, end)
    }

    /// Returns the steps of *prepare* that must still run if packed weights are provided.
    pub(super) fn without_packing(&self) -> Vec<BoundStep> {
        let touched_results = self.touched.iter().enumerate();
        let touched_results = touched_results.filter(|(_, touched)| **touched);
        let mut needed: HashSet<Loc> = touched_results.map(|(p, _)| Loc::Prepared(p)).collect();
        let mut live = Vec::new();
        for step in self.prepare.iter().rev().filter(|s| !self.is_pack(s)) {
            let mut writes = step.args.iter().zip(&step.writes).filter(|(_, w)| **w);
            // Buffers in the arena are not distinguished.
            if writes.any(|(loc, _)| matches!(loc, Loc::Arena(_)) || needed.contains(loc)) {
                needed.extend(step.locs());
                live.push(BoundStep {
                    concurrent: false,
                    ..step.clone()
                });
            }
        }
        live.reverse();
        live
    }
}
