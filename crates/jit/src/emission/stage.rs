//! Loops over the lanes of a tile.
//!
//! An emitted function is called with a table of addresses, one for each of its operands, and a number of lanes. Values
//! that are the same for all lanes are hoisted out of the loop. Reductions across lanes have 64 lanes of accumulators.
//! These are combined after each block and added to the state of the row, in the order of the interpreter. Reductions
//! lane by lane run over steps: the table then has a row of addresses for each step, and a group of lanes goes through
//! all steps with its accumulators in registers. Short runs of lanes at different addresses may be rows too.

mod emit;
mod fold;
mod steps;
#[cfg(test)]
mod tests;

use super::lines::{About, Key, Lines, NotEmitted};
use super::{Target, cache};
pub use emit::emit;
use hashbrown::HashSet;
use kiln_base::{Compute, DType, Dim, Scalar};
use kiln_plan::tile::{Inst, Reg};

/// The layout of an operand's elements.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Contiguous, an element per lane.
    Line,
    /// The same, from a computed address on.
    LineAt,
    /// As `Line`, with non-temporal stores: the first element is aligned to a cache line if a call is.
    Stream,
    /// One element for all lanes.
    Splat,
    /// One element for all lanes of a row of the table.
    SplatOfRow,
    /// The running value of a reduction across lanes.
    State,
    /// The first element of an argument, any element of which may be read.
    Memory,
    /// A number in the table itself.
    Number,
    /// The context of a run, where data errors are reported.
    Context,
}

/// The result of a load at addresses that depend on data.
#[derive(Copy, Clone, Debug)]
pub enum Elements {
    /// An element of each lane's own address.
    Anywhere,
    /// Elements from the address of the first lane on.
    SideBySide,
    /// That address.
    Address,
}

/// The code to emit: instructions with their own numbering of registers and accesses, each register written once.
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
    /// The registers that are read elsewhere.
    pub outputs: Vec<Reg>,
    /// The operands, in the order of the table.
    pub operands: Vec<(Key, Kind)>,
    /// The lanes of a block, for reductions across lanes.
    pub block: Option<u32>,
    /// True if the table has a row for each of several steps, or runs of lanes.
    pub steps: bool,
}

impl Body {
    fn about<R>(&self, f: impl FnOnce(&About) -> R) -> R {
        f(&About {
            registers: &self.registers,
            constants: &self.constants,
            slots: &self.slots,
            dtypes: &|access| self.dtypes[usize::from(access)],
            same: &|r| self.is_same(r),
        })
    }

    pub fn lines(
        &self,
        target: Target,
        code: &[Inst],
        outputs: &[Reg],
    ) -> Result<Lines, NotEmitted> {
        self.about(|about| Lines::new(target, about, code, outputs))
    }

    /// Returns all that the code depends on, as bytes.
    pub fn key(&self, target: Target) -> Vec<u8> {
        cache::key(b's', &(self, target.evex))
    }

    /// True if a register has the same value in all lanes of a call, or of a row of it.
    pub fn is_same(&self, r: Reg) -> bool {
        let splat = |key: Key| {
            let mut kinds = self.operands.iter().filter(|(k, _)| *k == key);
            kinds.any(|(_, kind)| matches!(kind, Kind::Splat | Kind::SplatOfRow))
        };
        let is_constant = self.constants.iter().any(|(c, _)| *c == r);
        let maker = self.code.iter().find(|i| i.operands().1 == Some(r));
        match maker {
            None => is_constant || splat(Key::Input(r)),
            Some(Inst::Load { access, .. }) => splat(Key::Access(*access)),
            Some(Inst::Index { strides, .. }) => has_one_number(strides),
            Some(
                Inst::Unary { .. }
                | Inst::Binary { .. }
                | Inst::Select { .. }
                | Inst::Convert { .. },
            ) => {
                let reads = maker.map_or(vec![], |i| i.operands().0);
                reads.iter().all(|r| self.is_same(*r))
            }
            Some(_) => false,
        }
    }

    /// True if each row of the table processes all its lanes before the next, because some value is the same for them.
    fn by_row(&self) -> bool {
        let reduces = |i: &Inst| matches!(i, Inst::Reduce { .. });
        let of_row = |(_, kind): &(Key, Kind)| *kind == Kind::SplatOfRow;
        self.steps && self.operands.iter().any(of_row) && !self.code.iter().any(reduces)
    }

    /// Returns the code before the lanes of a call, or of a row of it, and the code for the lanes.
    fn split(&self) -> (Vec<Inst>, Vec<Inst>) {
        let mut same: HashSet<u16> = self.constants.iter().map(|(r, _)| r.0).collect();
        let of_row = |kind: Kind| kind == Kind::SplatOfRow && self.by_row();
        let splat = |key: Key| {
            let mut kinds = self.operands.iter().filter(|(k, _)| *k == key);
            kinds.any(|(_, kind)| *kind == Kind::Splat || of_row(*kind))
        };
        for r in 0..self.registers.len() as u16 {
            if splat(Key::Input(Reg(r))) {
                same.insert(r);
            }
        }
        let of_one = |same: &HashSet<u16>, list: &[&Reg]| list.iter().all(|r| same.contains(&r.0));
        self.code.iter().cloned().partition(|inst| {
            let (dst, once) = match inst {
                Inst::Load { dst, access } => (dst, splat(Key::Access(*access))),
                Inst::Index { dst, strides, .. } => {
                    let is_same = has_one_number(strides);
                    (dst, is_same && (!self.steps || self.by_row()))
                }
                Inst::Unary { dst, a, .. } | Inst::Convert { dst, a, .. } => {
                    (dst, of_one(&same, &[a]))
                }
                Inst::Binary { op, dst, a, b, .. } => {
                    (dst, !op.divides() && of_one(&same, &[a, b]))
                }
                Inst::Select { dst, mask, a, b } => (dst, of_one(&same, &[mask, a, b])),
                Inst::LoadAt { dst, dynamic, .. } => {
                    let is_address = dynamic[0].site == Elements::Address as u32;
                    let from: Vec<&Reg> = dynamic.iter().map(|d| &d.index).collect();
                    (dst, is_address && of_one(&same, &from))
                }
                _ => return false,
            };
            if once {
                same.insert(dst.0);
            }
            once
        })
    }

    /// Returns the registers that `code` reads before it writes them, except constants.
    fn entering(&self, code: &[Inst], outputs: &[Reg]) -> Vec<Reg> {
        let mut written: HashSet<u16> = self.constants.iter().map(|(r, _)| r.0).collect();
        let mut found = vec![];
        let mut read = |r: &Reg, written: &mut HashSet<u16>| {
            if written.insert(r.0) {
                found.push(*r);
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
        found
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
            // Numbers have a size of one.
            Key::Number(_) | Key::Lane | Key::Context => 1,
        }
    }
}

/// True if the numbers of an index's lanes are equal.
fn has_one_number(strides: &[Dim]) -> bool {
    strides[0].is(0)
}
