//! Register tiles in the registers of AMX: sums of up to 16 rows by 16 words in each.
//!
//! The left operand is read as it lies, 16 words of each row at a time, the right one as it is packed: rows of a step
//! each. What is left of the steps at the end has tiles of its own. Sums go through the stack to what follows them.

use super::{AT, CALL, FRAME, Printer, RIGHT, ROWS};
use crate::bugs::bug;
use crate::contraction::tile::TILE;
use kiln_base::DType;
use kiln_x86::{Condition, Gpr, Mem, Tile, TileProduct, TileSizes, Vreg, op};

/// Bytes of a row of a tile.
const ROW: i32 = 64;
/// How far rows of the left operand are apart, and steps of the right one.
const LEFT_APART: Gpr = Gpr::R10;
const RIGHT_APART: Gpr = Gpr::R11;

/// The left operand, and the first of several registers that vectors of the right one take turns in.
struct Operands {
    left: Tile,
    right: [u8; 2],
}

impl Printer<'_> {
    /// Whole tiles of steps, and how many steps are left.
    fn tiles_of_steps(&self) -> [u32; 2] {
        let steps = bug("a row of tiles has a word too few", self.tile.steps, |n| {
            n.max(1) - 1
        });
        [steps / TILE, steps % TILE]
    }

    /// The operands of whole tiles of steps, and of what is left: sums are in front of them.
    fn tile_operands(&self) -> [Operands; 2] {
        let [_, rest] = self.tiles_of_steps();
        let end = if rest > 0 { 6 } else { 8 };
        let operands = |left: u8, right: [u8; 2]| Operands {
            left: Tile(left),
            right,
        };
        [
            operands(self.vectors, [self.vectors + 1, end]),
            operands(6, [7, 8]),
        ]
    }

    /// Configures tiles, and what the sums begin with: zeros, if nothing else.
    pub(super) fn begin_tiles(&mut self) {
        let rows = self.tile.rows.count;
        let mut sizes = TileSizes::default();
        for sum in 0..self.vectors {
            sizes = sizes.with(Tile(sum), rows, ROW as u8);
        }
        let [whole, rest] = self.tiles_of_steps();
        for (steps, operands) in [whole.min(1) * TILE, rest]
            .into_iter()
            .zip(self.tile_operands())
        {
            if steps > 0 {
                sizes = sizes.with(operands.left, rows, 4 * steps as u8);
                for right in operands.right[0]..operands.right[1] {
                    sizes = sizes.with(Tile(right), steps as u8, ROW as u8);
                }
            }
        }
        self.asm.configure_tiles(&sizes);
        self.asm.mov_number(LEFT_APART, self.tile.rows.left[0]);
        if self.tile.starts {
            // A row for all.
            self.asm.mov_number(RIGHT_APART, 0);
            for sum in 0..self.vectors {
                let from = Mem::at(RIGHT).plus(i32::from(sum) * ROW);
                self.asm.load_tile(Tile(sum), from, RIGHT_APART);
            }
            self.asm.add_number(RIGHT, self.tile.right as i32);
        }
        self.asm.mov_number(RIGHT_APART, self.tile.right);
    }

    /// Walks over the steps of a tap.
    pub(super) fn sum_tiles(&mut self) {
        let ([whole, rest], right) = (self.tiles_of_steps(), self.tile.right as i32);
        let [many, few] = self.tile_operands();
        if whole > 0 {
            self.asm.mov_number(AT, i64::from(whole));
            self.asm.align(32);
            let top = self.asm.here();
            self.multiply_tiles(&many);
            self.asm.add_number(ROWS[0], ROW);
            self.asm.add_number(RIGHT, TILE as i32 * right);
            self.asm.add_number(AT, -1);
            self.asm.jump_if(Condition::NotEqual, top);
        }
        if rest > 0 {
            self.multiply_tiles(&few);
            self.asm.add_number(RIGHT, rest as i32 * right);
        }
    }

    fn multiply_tiles(&mut self, operands: &Operands) {
        let by = match self.tile.dtype {
            DType::BF16 => TileProduct::Bf16,
            _ => TileProduct::U8I8,
        };
        self.asm
            .load_tile(operands.left, Mem::at(ROWS[0]), LEFT_APART);
        let [first, end] = operands.right;
        for vector in 0..self.vectors {
            let right = Tile(first + vector % (end - first));
            let read = bug("tiles multiply the first vector alone", vector, |_| 0);
            let from = Mem::at(RIGHT).plus(i32::from(read) * ROW);
            self.asm.load_tile(right, from, RIGHT_APART);
            self.asm
                .multiply_tiles(by, Tile(vector), operands.left, right);
        }
    }

    /// Writes the sums, a row of all vectors after the other, and ends the use of tiles.
    pub(super) fn store_tiles(&mut self, to: Mem) {
        self.asm
            .mov_number(AT, i64::from(self.vectors) * i64::from(ROW));
        for vector in 0..self.vectors {
            let to = to.plus(i32::from(vector) * ROW);
            self.asm.store_tile(to, AT, Tile(vector));
        }
        self.asm.release_tiles();
    }

    /// Writes the results.
    pub(super) fn end_tiles(&mut self) {
        let (rows, vectors) = (self.tile.rows.count, self.vectors);
        let add = match self.tile.dtype {
            DType::BF16 => op::VADDPS,
            _ => op::VPADDD,
        };
        self.asm.mov(FRAME, Gpr::RSP);
        self.asm
            .add_number(Gpr::RSP, -(i32::from(rows * vectors) * ROW));
        self.asm.and_number(Gpr::RSP, -64);
        self.store_tiles(Mem::at(Gpr::RSP));
        self.asm.mov(ROWS[0], Mem::at(CALL).plus(16));
        for row in 0..rows {
            for vector in 0..vectors {
                let sum = Vreg(row * vectors + vector);
                // Registers take turns.
                let (sum, other) = (Vreg(sum.0 % 16), Vreg(16 + sum.0 % 16));
                let from = Mem::at(Gpr::RSP).plus(i32::from(row * vectors + vector) * ROW);
                self.asm.op(op::VMOVUPS, self.width, (sum, from));
                let (at, partial) = (self.result(row, vector), self.is_partial(vector));
                if self.tile.adds {
                    self.load(other, at, partial);
                    self.asm.op(add, self.width, (sum, sum, other));
                }
                self.store(at, sum, partial);
            }
        }
        self.asm.mov(Gpr::RSP, FRAME);
    }
}
