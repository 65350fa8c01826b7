//! Registers, reused once what they hold is no longer needed. An instruction's result never shares a
//! register with its operands.

use kiln_base::Compute;
use kiln_plan::tile::Reg;

/// Gives out registers.
#[derive(Default)]
pub(super) struct Allocator {
    /// The type of each register.
    pub types: Vec<Compute>,
    /// Registers that hold nothing, the latest last.
    free: Vec<Reg>,
}

impl Allocator {
    /// A register of this type that holds nothing.
    pub fn take(&mut self, compute: Compute) -> Reg {
        let types = &self.types;
        match self
            .free
            .iter()
            .rposition(|r| types[r.0 as usize] == compute)
        {
            Some(at) => self.free.remove(at),
            None => self.reserve(compute),
        }
    }

    /// A register that no value had before.
    pub fn reserve(&mut self, compute: Compute) -> Reg {
        self.types.push(compute);
        Reg(self.types.len() as u16 - 1)
    }

    pub fn give_back(&mut self, reg: Reg) {
        self.free.push(reg);
    }
}
