//! Emission of depthwise tiles. An element of a line is loaded once for all rows and taps that use it, whose weights
//! are in registers.

use super::{Depthwise, held_taps};
use crate::contraction::emit::{AT, CALL, Emitter, FRAME, RIGHT, ROWS};
use kiln_kernel::bugs::bug;
use kiln_x86::{Condition, Gpr, Mem, Vreg, op};
use std::collections::BTreeMap;

/// The list.
const LIST: Gpr = RIGHT;
/// The next line, and its weights.
const LINE: Gpr = ROWS[0];
const WEIGHTS: Gpr = AT;
/// The first column of a vector.
const COLUMN: Gpr = ROWS[11];

impl Depthwise {
    /// Returns the code of a tile.
    pub(in crate::contraction) fn emit(&self) -> Vec<u8> {
        let mut p = Emitter::new(&self.tile);
        p.vectors = 1;
        p.walked = Some(COLUMN);
        p.each(self);
        p.asm.finish()
    }
}

impl Emitter<'_> {
    /// Emits the function: a loop over vectors of columns.
    fn each(&mut self, each: &Depthwise) {
        let saved: Vec<Gpr> = (Gpr::SAVED.into_iter())
            .filter(|r| [COLUMN, FRAME].contains(r) || self.is_for_work(*r))
            .collect();
        self.asm.enter(&saved, 0);
        let lanes = self.lanes();
        let whole = self.tile.columns / lanes * lanes;
        let tail = self.tail.take();
        self.asm.mov_number(COLUMN, 0);
        if whole > 0 {
            self.asm.align(32);
            let top = self.asm.here();
            self.vector(each);
            self.asm.add_number(COLUMN, i32::from(lanes));
            self.asm.cmp_number(COLUMN, i32::from(whole));
            self.asm.jump_if(Condition::NotEqual, top);
        }
        self.tail = tail;
        if tail.is_some() {
            self.prepare_tail();
            self.vector(each);
        }
        self.asm.leave(&saved, 0);
    }

    /// Emits all rows by a vector of columns.
    fn vector(&mut self, each: &Depthwise) {
        let [next, padding, done] = [(); 3].map(|()| self.asm.label());
        self.asm.mov(LINE, Mem::at(CALL).plus(16));
        for row in 0..self.tile.rows.count {
            let sum = self.sum(row, 0);
            if self.tile.adds {
                let from = self.element(LINE, i64::from(row) * self.tile.out);
                self.load(sum, from, self.tail.is_some());
            } else {
                self.asm.op(op::VXORPS, self.width, (sum, sum, sum));
            }
        }
        self.asm.mov(LIST, Mem::at(CALL));
        self.asm.bind(next);
        self.asm.mov(LINE, Mem::at(LIST));
        self.asm.cmp_number(LINE, 0);
        self.asm.jump_if(Condition::Equal, padding);
        self.asm.mov(WEIGHTS, Mem::at(LIST).plus(8));
        self.asm.add_number(LIST, 16);
        let held = usize::from(held_taps(self.tile.level, self.tile.taps));
        let taps: Vec<u32> = (0..self.tile.taps).collect();
        for taps in taps.chunks(held) {
            self.taps(each, taps);
        }
        self.asm.jump(next);
        // The sums for padding follow the weights of a line's taps.
        self.asm.bind(padding);
        self.asm.mov(WEIGHTS, Mem::at(LIST).plus(8));
        self.asm.add_number(LIST, 8);
        self.asm.cmp_number(WEIGHTS, 0);
        self.asm.jump_if(Condition::Equal, done);
        let nothing = self.extra_registers(0);
        let taps = bug("padding multiplies the last tap", self.tile.taps, |n| n - 1);
        let from = self.element(WEIGHTS, i64::from(taps) * self.tile.right.step);
        self.asm.op(op::VMOVUPS, self.width, (nothing, from));
        let add = self.adds();
        for row in 0..self.tile.rows.count {
            let sum = self.sum(row, 0);
            self.asm.op(add, self.width, (sum, sum, nothing));
        }
        self.asm.jump(padding);
        self.asm.bind(done);
        match self.tile.epilogue.clone() {
            Some(epilogue) => self.emit_epilogue(&epilogue),
            None => {
                self.asm.mov(LINE, Mem::at(CALL).plus(16));
                for row in 0..self.tile.rows.count {
                    let to = self.element(LINE, i64::from(row) * self.tile.out);
                    self.store(to, self.sum(row, 0), self.tail.is_some());
                }
            }
        }
    }

    /// Emits some taps of a line, with their weights in registers.
    fn taps(&mut self, each: &Depthwise, taps: &[u32]) {
        let by = each.instruction();
        for (i, tap) in taps.iter().enumerate() {
            let from = self.element(WEIGHTS, i64::from(*tap) * self.tile.right.step);
            let partial = self.tail.is_some() && !self.tile.right.padded;
            self.load(self.extra_registers(i as u8), from, partial);
        }
        // The rows and taps that read each element of the line; those that read padding multiply a zero.
        let mut readers: BTreeMap<Option<u32>, Vec<(u8, u8)>> = BTreeMap::new();
        for row in 0..self.tile.rows.count {
            for (i, tap) in taps.iter().enumerate() {
                let at = u32::from(row) * each.stride + tap * each.dilation;
                let at = each.is_inside(row, *tap).then_some(at);
                readers.entry(at).or_default().push((row, i as u8));
            }
        }
        let first = taps.len() as u8;
        for (turn, (at, readers)) in readers.into_iter().enumerate() {
            let number: Vreg = self.extra_registers(first + turn as u8 % 2);
            match at {
                Some(at) => {
                    let size = each.reads.size() as u8;
                    let from = Mem::at(LINE).index(COLUMN, size);
                    let from = from.plus((i64::from(at) * each.position) as i32);
                    self.load_wide(number, from, each.reads, self.tail.is_some());
                }
                None => (self.asm).op(op::VXORPS, self.width, (number, number, number)),
            }
            for (row, tap) in readers {
                let (sum, weights) = (self.sum(row, 0), self.extra_registers(tap));
                let product = self.extra_registers(first + 2);
                self.add_product(by, sum, (number, weights.into()), product);
            }
        }
    }

    /// Returns a register that is not an accumulator.
    fn extra_registers(&self, i: u8) -> Vreg {
        Vreg(self.tile.rows.count + i)
    }

    /// Returns the element of this column, `behind` bytes further on.
    fn element(&self, base: Gpr, behind: i64) -> Mem {
        let size = self.tile.instruction.sums.size() as u8;
        Mem::at(base).index(COLUMN, size).plus(behind as i32)
    }
}
