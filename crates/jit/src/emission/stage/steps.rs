//! Loops over steps: each group of lanes runs all steps, with its accumulators in registers.

use super::emit::{END, LANE, LANES, LIMIT, StageEmitter, TABLE, register_count};
use crate::emission::lines::{Key, LaneLocation, Pinned, Tail};
use kiln_kernel::bugs::bug;
use kiln_x86::{Condition, Gpr, Label, Mem, op};

/// Returns the stack slot of the end of the table, after the tail's mask.
fn table_end() -> Mem {
    Mem::at(Gpr::RSP).plus(32)
}

impl StageEmitter<'_> {
    /// Returns the size of a row of the table in bytes.
    fn row_bytes(&self) -> i32 {
        8 * self.body.operands.len() as i32
    }

    /// Computes and stores the end of the table. The third argument of the function is the number of rows.
    pub(super) fn store_table_end(&mut self) {
        self.asm.mov_number(LANE, i64::from(self.row_bytes()));
        self.asm.mul(LANE, END);
        self.asm.add(LANE, TABLE);
        self.asm.store(table_end(), LANE);
        self.asm.mov(self.table.row, TABLE);
    }

    /// Emits the loop over lanes: iterations of several groups, then of one group, then the tail.
    pub(super) fn emit_steps(&mut self, pinned: &Pinned) {
        let lanes = self.target.lanes() as i32;
        let skipped = usize::from(self.groups == 1);
        for groups in [self.groups, 1].into_iter().skip(skipped) {
            let next_size = self.asm.label();
            let top = self.asm.here();
            self.asm.lea(END, Mem::at(LANE).plus(lanes * groups as i32));
            self.asm.cmp(LANES, END);
            self.asm.jump_if(Condition::Below, next_size);
            self.transfer_accumulators(groups, false);
            self.for_each_step(|p| match groups {
                1 => p.emit_group(p.lines, pinned, (0, true), None),
                _ => p.emit_groups(pinned),
            });
            self.transfer_accumulators(groups, true);
            self.asm.add_number(LANE, lanes * groups as i32);
            self.asm.jump(top);
            self.asm.bind(next_size);
        }
        let done = self.asm.label();
        self.asm.mov(LIMIT, LANES);
        self.asm.sub(LIMIT, LANE);
        self.asm.jump_if(Condition::LessOrEqual, done);
        // The tail's accumulators stay in memory.
        let accumulators = std::mem::take(&mut self.accumulators);
        let tail: Tail = self.emit_tail_mask();
        self.for_each_step(|p| p.emit_group(p.lines, pinned, (0, true), Some(tail)));
        self.accumulators = accumulators;
        self.asm.bind(done);
    }

    /// Advances to the next row of the table, and jumps to `again` if it exists.
    pub(super) fn jump_if_next_row(&mut self, again: Label) {
        self.asm.add_number(self.table.row, self.row_bytes());
        self.asm.cmp(self.table.row, table_end());
        self.asm.jump_if(Condition::Below, again);
    }

    /// Emits code in a loop over the rows of the table, or for the current row alone if
    /// [`Body::runs_by_row`](super::Body).
    fn for_each_step(&mut self, code: impl FnOnce(&mut Self)) {
        if self.body.runs_by_row() {
            return code(self);
        }
        let operands = self.body.operands.len();
        self.asm.mov(self.table.row, TABLE);
        let skipped = bug(
            "the first step is left out where there are several",
            0,
            |_| self.row_bytes(),
        );
        if skipped > 0 {
            let single_step = self.asm.label();
            self.asm.lea(END, Mem::at(TABLE).plus(skipped));
            self.asm.cmp(END, table_end());
            self.asm.jump_if(Condition::Equal, single_step);
            self.asm.mov(self.table.row, END);
            self.asm.bind(single_step);
        }
        let top = self.asm.here();
        self.table.load_pointers(self.asm, operands);
        code(self);
        self.jump_if_next_row(top);
    }

    /// Emits the loads of the accumulators of some groups from their operands, or the stores to them.
    fn transfer_accumulators(&mut self, groups: usize, stores: bool) {
        if self.accumulators.is_empty() {
            return;
        }
        let width = self.target.width();
        let bytes = width.bytes() as i32;
        self.asm.mov(self.table.row, TABLE);
        for (acc, locations) in &self.accumulators {
            let key = Key::Accumulator(*acc);
            let Some(i) = self.body.operands.iter().position(|(k, _)| *k == key) else {
                panic!("a reduction without accumulators");
            };
            let ty = self.body.registers[usize::from(acc.0)];
            let base = self.table.pointer(self.asm, i);
            for (n, location) in locations.iter().take(groups).enumerate() {
                for part in 0..register_count(ty) {
                    let offset = (n * register_count(ty) + part) as i32 * bytes;
                    let memory = Mem::at(base).index(LANE, ty.size() as u8).plus(offset);
                    let (register, stack) = match location {
                        LaneLocation::Register { registers, .. } => (registers[part], None),
                        LaneLocation::Vector(m) => {
                            (self.free[0], Some(m.plus(part as i32 * bytes)))
                        }
                        _ => panic!("accumulators are in registers or memory"),
                    };
                    let (from, to) = match stores {
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
