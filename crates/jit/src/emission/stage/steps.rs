//! Steps: each group of lanes goes through all steps, and its accumulators stay in registers.

use super::emit::{AT, END, LANES, StageEmitter, TABLE, WHOLE, parts};
use crate::emission::lines::{Key, LaneLocation, Pinned, Tail};
use kiln_kernel::bugs::bug;
use kiln_x86::{Condition, Gpr, Label, Mem, op};

/// Returns the place of the end of the table, after the tail's mask.
fn table_end() -> Mem {
    Mem::at(Gpr::RSP).plus(32)
}

impl StageEmitter<'_> {
    /// Returns the size of a row of the table in bytes.
    fn row(&self) -> i32 {
        8 * self.body.operands.len() as i32
    }

    /// Computes the end of the table; the third argument is the number of rows.
    pub(super) fn begin_steps(&mut self) {
        self.asm.mov_number(AT, i64::from(self.row()));
        self.asm.mul(AT, END);
        self.asm.add(AT, TABLE);
        self.asm.store(table_end(), AT);
        self.asm.mov(self.table.row, TABLE);
    }

    /// Emits all lanes: iterations of several groups, then of one, then a partial group.
    pub(super) fn steps(&mut self, pinned: &Pinned) {
        let lanes = self.target.lanes() as i32;
        let one = usize::from(self.groups == 1);
        for groups in [self.groups, 1].into_iter().skip(one) {
            let rest = self.asm.label();
            let top = self.asm.here();
            self.asm.lea(END, Mem::at(AT).plus(lanes * groups as i32));
            self.asm.cmp(LANES, END);
            self.asm.jump_if(Condition::Below, rest);
            self.accumulators(groups, false);
            self.each_step(|p| match groups {
                1 => p.code(p.lines, pinned, (0, true), None),
                _ => p.groups(pinned),
            });
            self.accumulators(groups, true);
            self.asm.add_number(AT, lanes * groups as i32);
            self.asm.jump(top);
            self.asm.bind(rest);
        }
        let done = self.asm.label();
        self.asm.mov(WHOLE, LANES);
        self.asm.sub(WHOLE, AT);
        self.asm.jump_if(Condition::LessOrEqual, done);
        // Accumulators stay in memory.
        let accumulators = std::mem::take(&mut self.accumulators);
        let tail: Tail = self.tail();
        self.each_step(|p| p.code(p.lines, pinned, (0, true), Some(tail)));
        self.accumulators = accumulators;
        self.asm.bind(done);
    }

    /// Continues with the next row of the table, if there is one.
    pub(super) fn next_row(&mut self, again: Label) {
        self.asm.add_number(self.table.row, self.row());
        self.asm.cmp(self.table.row, table_end());
        self.asm.jump_if(Condition::Below, again);
    }

    /// Emits a loop over the rows of the table, or only the current row, if each row processes all its lanes before the
    /// next.
    fn each_step(&mut self, code: impl FnOnce(&mut Self)) {
        if self.body.by_row() {
            return code(self);
        }
        let operands = self.body.operands.len();
        self.asm.mov(self.table.row, TABLE);
        let skipped = bug(
            "the first step is left out where there are several",
            0,
            |_| self.row(),
        );
        if skipped > 0 {
            let one = self.asm.label();
            self.asm.lea(END, Mem::at(TABLE).plus(skipped));
            self.asm.cmp(END, table_end());
            self.asm.jump_if(Condition::Equal, one);
            self.asm.mov(self.table.row, END);
            self.asm.bind(one);
        }
        let top = self.asm.here();
        self.table.read(self.asm, operands);
        code(self);
        self.next_row(top);
    }

    /// Loads the accumulators of the groups of an iteration, or stores them.
    fn accumulators(&mut self, groups: usize, written: bool) {
        if self.accumulators.is_empty() {
            return;
        }
        let width = self.target.width();
        let bytes = width.bytes() as i32;
        self.asm.mov(self.table.row, TABLE);
        for (r, locations) in &self.accumulators {
            let key = Key::Accumulator(*r);
            let Some(i) = self.body.operands.iter().position(|(k, _)| *k == key) else {
                panic!("a reduction without accumulators");
            };
            let ty = self.body.registers[usize::from(r.0)];
            let base = self.table.pointer(self.asm, i);
            for (n, location) in locations.iter().take(groups).enumerate() {
                for part in 0..parts(ty) {
                    let at = (n * parts(ty) + part) as i32 * bytes;
                    let memory = Mem::at(base).index(AT, ty.size() as u8).plus(at);
                    let (register, stack) = match location {
                        LaneLocation::Register { at, .. } => (at[part], None),
                        LaneLocation::Vector(m) => {
                            (self.free[0], Some(m.plus(part as i32 * bytes)))
                        }
                        _ => panic!("accumulators are in registers or memory"),
                    };
                    let (from, to) = match written {
                        false => (Some(memory), stack),
                        true => (stack, Some(memory)),
                    };
                    if let Some(from) = from {
                        self.asm.op(op::VMOVUPS, width, (register, from));
                    }
                    if let Some(to) = to {
                        self.asm.op(op::VMOVUPS_STORE, width, (to, register));
                    }
                }
            }
        }
    }
}
