//! Allocation of registers, which are reused once their values are dead. An instruction's result never shares a
//! register with its operands.

use kiln_base::Compute;
use kiln_plan::tile::Reg;

/// An allocator of registers.
#[derive(Default)]
pub(super) struct Allocator {
    /// The type of each register.
    pub types: Vec<Compute>,
    /// The free registers, most recently freed last.
    free: Vec<Reg>,
}

impl Allocator {
    /// Takes a free register of this type, or a new one.
    pub fn take(&mut self, compute: Compute) -> Reg {
        let types = &self.types;
        match self
            .free
            .iter()
            .rposition(|r| types[r.0 as usize] == compute)
        {
            Some(i) => self.free.remove(i),
            None => self.reserve(compute),
        }
    }

    /// Adds a register.
    pub fn reserve(&mut self, compute: Compute) -> Reg {
        self.types.push(compute);
        Reg(self.types.len() as u16 - 1)
    }

    pub fn give_back(&mut self, reg: Reg) {
        self.free.push(reg);
    }
}
