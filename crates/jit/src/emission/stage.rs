//! The emitted functions of stages: loops over the lanes of a tile.
//!
//! An emitted function is called with a table of addresses, one for each of its operands, and a number of lanes. Values
//! that are the same for all lanes are hoisted out of the loop. Reductions across lanes have 64 lanes of accumulators.
//! After each block, these are combined and added to the state of the row, in the order of the interpreter.
//! Lane-by-lane reductions run over steps: the table has a row of addresses for each step, and a group of lanes runs
//! all steps with its accumulators in registers. Short runs of lanes at different addresses may be rows too.

mod emit;
mod fold;
mod steps;
#[cfg(test)]
mod tests;

use super::lines::{Key, Lines, LinesContext, NotEmitted};
use super::{Target, cache};
pub use emit::emit;
use hashbrown::HashSet;
use kiln_base::{Compute, DType, Dim, Scalar};
use kiln_plan::tile::{Inst, Reg};

/// The layout of an operand's elements.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Contiguous, an element per lane.
    Lanes,
    /// Contiguous from a computed address on.
    LanesAt,
    /// Contiguous, with non-temporal stores. Calls align the first element to a cache line.
    Stream,
    /// One element for all lanes.
    Splat,
    /// One element for all lanes of a row of the table.
    RowSplat,
    /// The running value of a reduction across lanes.
    State,
    /// The first element of an argument, any element of which may be read.
    Memory,
    /// A number, stored in the table itself.
    Number,
    /// The context of a run, for reports of data errors.
    Context,
}

/// The result of a load at addresses that depend on data.
#[derive(Copy, Clone, Debug)]
pub enum Elements {
    /// An element of each lane's own address.
    Gathered,
    /// Elements from the address of the first lane on.
    Contiguous,
    /// The address of the first lane, instead of elements.
    Address,
}

/// A list of instructions to emit as a function, with their operands. Each register is written once.
#[derive(Clone, Debug, Default, Hash)]
pub struct Body {
    /// The type of each register.
    pub registers: Vec<Compute>,
    pub constants: Vec<(Reg, Scalar)>,
    /// The types of row slots.
    pub slots: Vec<Compute>,
    /// The dtype of each access.
    pub dtypes: Vec<DType>,
    pub code: Vec<Inst>,
    /// The live registers after the code.
    pub outputs: Vec<Reg>,
    /// The operands, in the order of the table.
    pub operands: Vec<(Key, Kind)>,
    /// The number of lanes of a block, for reductions across lanes.
    pub block: Option<u32>,
    /// True if the table has a row for each of several steps, or runs of lanes.
    pub steps: bool,
}

impl Body {
    fn with_context<R>(&self, f: impl FnOnce(&LinesContext) -> R) -> R {
        f(&LinesContext {
            registers: &self.registers,
            constants: &self.constants,
            slots: &self.slots,
            dtypes: &|access| self.dtypes[usize::from(access)],
            is_uniform: &|r| self.is_uniform(r),
        })
    }

    /// Lowers instructions of the body to vector code.
    pub fn lines(
        &self,
        target: Target,
        code: &[Inst],
        outputs: &[Reg],
    ) -> Result<Lines, NotEmitted> {
        self.with_context(|context| Lines::new(target, context, code, outputs))
    }

    /// Returns the key of the body's machine code in the cache.
    pub fn cache_key(&self, target: Target) -> Vec<u8> {
        cache::key(b's', &(self, target.evex))
    }

    /// True if a register has the same value in all lanes of a call, or of a row of it.
    pub fn is_uniform(&self, r: Reg) -> bool {
        let is_splat = |key: Key| {
            let mut kinds = self.operands.iter().filter(|(k, _)| *k == key);
            kinds.any(|(_, kind)| matches!(kind, Kind::Splat | Kind::RowSplat))
        };
        let is_constant = self.constants.iter().any(|(c, _)| *c == r);
        let definition = self.code.iter().find(|i| i.operands().1 == Some(r));
        match definition {
            None => is_constant || is_splat(Key::Input(r)),
            Some(Inst::Load { access, .. }) => is_splat(Key::Access(*access)),
            Some(Inst::Index { strides, .. }) => is_uniform_index(strides),
            Some(
                Inst::Unary { .. }
                | Inst::Binary { .. }
                | Inst::Select { .. }
                | Inst::Convert { .. },
            ) => {
                let reads = definition.map_or(vec![], |i| i.operands().0);
                reads.iter().all(|r| self.is_uniform(*r))
            }
            Some(_) => false,
        }
    }

    /// True if all lanes of a row of the table are computed before the next row, to hoist values that are uniform in a
    /// row.
    fn runs_by_row(&self) -> bool {
        let reduces = |i: &Inst| matches!(i, Inst::Reduce { .. });
        let is_row_splat = |(_, kind): &(Key, Kind)| *kind == Kind::RowSplat;
        self.steps && self.operands.iter().any(is_row_splat) && !self.code.iter().any(reduces)
    }

    /// Splits the code into instructions that are hoisted out of the loop over lanes, and the body of the loop.
    fn split_hoisted(&self) -> (Vec<Inst>, Vec<Inst>) {
        let mut uniform: HashSet<u16> = self.constants.iter().map(|(r, _)| r.0).collect();
        let is_row_splat = |kind: Kind| kind == Kind::RowSplat && self.runs_by_row();
        let is_splat = |key: Key| {
            let mut kinds = self.operands.iter().filter(|(k, _)| *k == key);
            kinds.any(|(_, kind)| *kind == Kind::Splat || is_row_splat(*kind))
        };
        for r in 0..self.registers.len() as u16 {
            if is_splat(Key::Input(Reg(r))) {
                uniform.insert(r);
            }
        }
        let all_uniform =
            |uniform: &HashSet<u16>, list: &[&Reg]| list.iter().all(|r| uniform.contains(&r.0));
        self.code.iter().cloned().partition(|inst| {
            let (dst, is_hoisted) = match inst {
                Inst::Load { dst, access } => (dst, is_splat(Key::Access(*access))),
                Inst::Index { dst, strides, .. } => {
                    let is_uniform = is_uniform_index(strides);
                    (dst, is_uniform && (!self.steps || self.runs_by_row()))
                }
                Inst::Unary { dst, a, .. } | Inst::Convert { dst, a, .. } => {
                    (dst, all_uniform(&uniform, &[a]))
                }
                Inst::Binary { op, dst, a, b, .. } => {
                    (dst, !op.divides() && all_uniform(&uniform, &[a, b]))
                }
                Inst::Select { dst, mask, a, b } => (dst, all_uniform(&uniform, &[mask, a, b])),
                Inst::LoadAt { dst, dynamic, .. } => {
                    let is_address = dynamic[0].site == Elements::Address as u32;
                    let indices: Vec<&Reg> = dynamic.iter().map(|d| &d.index).collect();
                    (dst, is_address && all_uniform(&uniform, &indices))
                }
                _ => return false,
            };
            if is_hoisted {
                uniform.insert(dst.0);
            }
            is_hoisted
        })
    }

    /// Returns the registers that are live into `code`, except constants.
    fn live_in(&self, code: &[Inst], outputs: &[Reg]) -> Vec<Reg> {
        let mut written: HashSet<u16> = self.constants.iter().map(|(r, _)| r.0).collect();
        let mut live = vec![];
        let mut read = |r: &Reg, written: &mut HashSet<u16>| {
            if written.insert(r.0) {
                live.push(*r);
            }
        };
        for inst in code {
            let (reads, writes) = inst.operands();
            reads.iter().for_each(|r| read(r, &mut written));
            if let (Some(w), false) = (writes, matches!(inst, Inst::Reduce { .. })) {
                written.insert(w.0);
            }
        }
        outputs.iter().for_each(|r| read(r, &mut written));
        live
    }
}

impl Body {
    /// Returns the size of an element in bytes.
    pub fn size(&self, key: Key) -> usize {
        match key {
            Key::Access(a) | Key::Prefetch(a) => self.dtypes[usize::from(a)].size(),
            Key::Slot(s) => self.slots[usize::from(s)].size(),
            Key::Input(r) | Key::Output(r) | Key::Accumulator(r) => {
                self.registers[usize::from(r.0)].size()
            }
            // Strides of numbers are in units of one.
            Key::Number(_) | Key::Lane | Key::Context => 1,
        }
    }
}

/// True if an index has the same value in all lanes.
fn is_uniform_index(strides: &[Dim]) -> bool {
    strides[0].is(0)
}
