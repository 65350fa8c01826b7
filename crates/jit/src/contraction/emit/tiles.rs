//! Register tiles in AMX tile registers, with accumulators of up to 16 rows by 16 words in each.
//!
//! A is read in place, 16 words of each row at a time. B is read as packed, with a row per step of K. The remaining
//! steps of K have tile registers of their own. Accumulators pass through the stack to the epilogue.
//!
//! A call computes a strip of tiles, for which the tile registers are configured once. A long K is split into pieces.
//! The part of B that a piece reads stays in the first-level cache while all tiles of the strip use it; their
//! accumulators are on the stack in between.

use super::{AT, CALL, Emitter, FRAME, Products, RIGHT, ROWS, TAPS, products};
use crate::contraction::epilogue::RegisterEpilogue;
use crate::contraction::tile::{self};
use crate::emission::lines::{LaneLocation, Lines};
use kiln_kernel::bugs::bug;
use kiln_plan::schedule::TILE;
use kiln_x86::{Condition, Gpr, Mem, Tile, TileSizes, Vreg, op};

/// The bytes of a row of a tile.
const ROW: i32 = 64;
/// The strides of rows of A, and of steps of B; also the stride of rows of accumulators.
const LEFT_STRIDE: Gpr = Gpr::R10;
const RIGHT_STRIDE: Gpr = Gpr::R11;
/// The address to prefetch: the B of the next piece, or the next panel.
pub(super) const NEXT: Gpr = Gpr::RBX;
/// The approximate steps of K in a piece.
const PIECE: u32 = 96;

/// The tile register of A, and the range of those that vectors of B use in rotation.
struct Operands {
    left: Tile,
    right: [u8; 2],
}

/// A part of K that all tiles of a strip sum before the next part: steps of one tap, or all steps of some taps.
#[derive(Copy, Clone)]
struct Piece {
    tap: u32,
    taps: u32,
    first: u32,
    steps: u32,
}

/// The frame of a strip; the slots before its address hold the numbers of the current tile.
#[derive(Copy, Clone)]
enum Slot {
    /// The addresses of its A, its result, its waiting accumulators, and the next prefetch.
    Left = 1,
    Out,
    Sums,
    Next,
    /// The number of remaining tiles.
    Tiles,
    /// The end of the list of accesses.
    Accesses,
}

impl Slot {
    fn at(self) -> Mem {
        Mem::at(FRAME).plus(-8 * self as i32)
    }
}

impl Emitter<'_> {
    /// Returns the registers of whole tiles of steps, and of the remaining steps; accumulators precede them.
    fn tile_operands(&self) -> [Operands; 2] {
        let [_, rest] = tiles_of(self.tile.steps);
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

    /// Splits K into pieces.
    fn pieces(&self) -> Vec<Piece> {
        let (steps, taps) = (self.tile.steps, self.tile.taps);
        let whole_taps = |tap: u32, taps: u32| Piece {
            tap,
            taps,
            first: 0,
            steps,
        };
        let is_long = u64::from(steps) * u64::from(taps) > u64::from(PIECE) * 3 / 2;
        if self.tile.strip == [0; 2] || !is_long {
            return vec![whole_taps(0, taps)];
        }
        if steps <= PIECE {
            let taps_per_piece = PIECE / steps;
            let starts = (0..taps).step_by(taps_per_piece as usize);
            return starts
                .map(|tap| whole_taps(tap, taps_per_piece.min(taps - tap)))
                .collect();
        }
        let count = (steps + PIECE / 2) / PIECE;
        let steps_per_piece = steps.div_ceil(count).next_multiple_of(TILE);
        let pieces = (0..taps).flat_map(|tap| {
            let starts = (0..steps).step_by(steps_per_piece as usize);
            starts.map(move |first| Piece {
                tap,
                taps: 1,
                first,
                steps: steps_per_piece.min(steps - first),
            })
        });
        pieces.collect()
    }

    /// Returns the number of rows of a tile register of accumulators.
    fn register_rows(&self) -> i32 {
        self.tile.rows.of_register(self.tile.rows.count - 1) as i32 + 1
    }

    /// Returns the size of a tile's accumulators in bytes: the vectors of a row are contiguous, and rows follow each
    /// other.
    fn sum_bytes(&self) -> i32 {
        self.register_rows() * i32::from(self.vectors) * ROW
    }

    /// Emits the tiles of a call.
    pub(super) fn strip(&mut self) {
        let epilogue = self.tile.epilogue.clone();
        let lines = epilogue.as_ref().map(|f| self.lines_of(f));
        let accesses = epilogue.as_ref().map_or(0, |f| f.locations.len()) as i32;
        let (pieces, bytes) = (self.pieces(), self.sum_bytes());
        // The epilogue's stack is followed by the accumulators that it processes, and by those that wait.
        let stack = lines.as_ref().map_or(0, Lines::stack) as i32;
        let waiting_tiles = if pieces.len() > 1 {
            self.tile.max_tiles() as i32
        } else {
            0
        };
        self.configure();
        self.asm.mov(FRAME, Gpr::RSP);
        let frame_bytes =
            stack + (waiting_tiles + 1) * bytes + 8 * (Slot::Accesses as i32 + accesses);
        self.asm.add_number(Gpr::RSP, -frame_bytes);
        self.asm.and_number(Gpr::RSP, -64);
        let sums = Mem::at(Gpr::RSP).plus(stack);
        self.copy_slot(Slot::Out, 16);
        self.asm.mov(RIGHT, Mem::at(CALL).plus(24));
        for i in 0..accesses {
            self.asm.mov(AT, Mem::at(RIGHT).plus(8 * i));
            self.asm.store(access(accesses, i), AT);
        }
        for (i, piece) in pieces.iter().enumerate() {
            let (is_first, is_last) = (i == 0, i + 1 == pieces.len());
            self.copy_slot(Slot::Left, 0);
            self.copy_slot(Slot::Tiles, 40);
            self.asm.lea(AT, sums.plus(bytes));
            self.asm.store(Slot::Sums.at(), AT);
            self.point_right(piece, u64::from(piece.taps) * u64::from(piece.steps));
            self.asm.store(Slot::Next.at(), RIGHT);
            let top = self.asm.here();
            self.begin_tile(is_first);
            self.sum_piece(piece);
            self.asm.store(Slot::Next.at(), NEXT);
            match (&epilogue, &lines) {
                _ if !is_last => {
                    self.asm.mov(AT, Slot::Sums.at());
                    self.store_sums(Mem::at(AT));
                }
                (Some(epilogue), Some(lines)) => {
                    self.store_sums(sums);
                    self.asm.lea(RIGHT, access(accesses, 0));
                    self.emit_tile_epilogue(epilogue, lines, sums);
                }
                _ => {
                    self.store_sums(sums);
                    self.store_results(sums);
                }
            }
            self.next_tile(epilogue.as_deref(), is_last);
            self.asm.jump_if(Condition::NotEqual, top);
        }
        self.asm.mov(Gpr::RSP, FRAME);
        self.asm.release_tiles();
    }

    /// Copies a field of the call into the frame.
    fn copy_slot(&mut self, slot: Slot, field: i32) {
        self.asm.mov(AT, Mem::at(CALL).plus(field));
        self.asm.store(slot.at(), AT);
    }

    /// Configures the rows and bytes of each tile register.
    fn configure(&mut self) {
        let rows = self.register_rows() as u8;
        let mut sizes = TileSizes::default();
        for sum in 0..self.vectors {
            sizes = sizes.with(Tile(sum), rows, ROW as u8);
        }
        let [whole, rest] = tiles_of(self.tile.steps);
        let steps = [whole.min(1) * TILE, rest];
        for (steps, operands) in steps.into_iter().zip(self.tile_operands()) {
            if steps > 0 {
                sizes = sizes.with(operands.left, rows, 4 * steps as u8);
                for right in operands.right[0]..operands.right[1] {
                    sizes = sizes.with(Tile(right), steps as u8, ROW as u8);
                }
            }
        }
        self.asm.configure_tiles(&sizes);
    }

    /// Initialises accumulators: from the row that precedes B, with zeros, or with earlier sums.
    fn begin_tile(&mut self, is_first: bool) {
        match is_first {
            true if self.tile.has_initial_row => {
                // One row is broadcast to all rows.
                self.asm.mov(AT, Mem::at(CALL).plus(8));
                self.load_sums(Mem::at(AT), 0);
            }
            true => (0..self.vectors).for_each(|sum| self.asm.zero_tile(Tile(sum))),
            false => {
                self.asm.mov(AT, Slot::Sums.at());
                self.load_sums(Mem::at(AT), self.sum_stride());
            }
        }
    }

    /// Returns the stride of two rows of accumulators on the stack.
    fn sum_stride(&self) -> i32 {
        i32::from(self.vectors) * ROW
    }

    fn load_sums(&mut self, from: Mem, stride: i32) {
        self.asm.mov_number(RIGHT_STRIDE, i64::from(stride));
        for sum in 0..self.vectors {
            let from = from.plus(i32::from(sum) * ROW);
            self.asm.load_tile(Tile(sum), from, RIGHT_STRIDE);
        }
    }

    fn store_sums(&mut self, to: Mem) {
        self.asm.mov_number(RIGHT_STRIDE, self.sum_stride().into());
        for sum in 0..self.vectors {
            let to = to.plus(i32::from(sum) * ROW);
            self.asm.store_tile(to, RIGHT_STRIDE, Tile(sum));
        }
    }

    /// Emits the products of a piece.
    fn sum_piece(&mut self, piece: &Piece) {
        let [list, count, first] = TAPS;
        self.asm.mov_number(LEFT_STRIDE, self.tile.rows.left[0]);
        self.asm.mov_number(RIGHT_STRIDE, self.tile.right.step);
        self.asm.mov(NEXT, Slot::Next.at());
        self.point_right(piece, 0);
        let offset = piece.first as i32 * 4;
        if self.tile.taps < 2 {
            self.asm.mov(ROWS[0], Slot::Left.at());
            self.asm.add_number(ROWS[0], offset);
            return match self.tile.taps {
                0 => {}
                _ => self.sum_tiles(piece.steps),
            };
        }
        self.asm.mov(first, Slot::Left.at());
        self.asm.add_number(first, offset);
        self.asm.mov(list, Mem::at(CALL).plus(32));
        self.asm.add_number(list, 8 * piece.tap as i32);
        self.asm.mov_number(count, i64::from(piece.taps));
        let top = self.asm.here();
        self.asm.mov(ROWS[0], Mem::at(list));
        self.asm.add(ROWS[0], first);
        self.asm.add_number(list, 8);
        self.sum_tiles(piece.steps);
        self.asm.add_number(count, -1);
        self.asm.jump_if(Condition::NotEqual, top);
    }

    /// Sets the register for B to the row `skipped` steps after a piece's first.
    fn point_right(&mut self, piece: &Piece, skipped: u64) {
        let row = u64::from(self.tile.has_initial_row)
            + u64::from(piece.tap) * u64::from(self.tile.steps)
            + u64::from(piece.first)
            + skipped;
        self.asm.mov(RIGHT, Mem::at(CALL).plus(8));
        self.asm.mov_number(AT, row as i64 * self.tile.right.step);
        self.asm.add(RIGHT, AT);
    }

    /// Emits the loop over some steps of K of a tap: all of them, or whole tiles.
    fn sum_tiles(&mut self, steps: u32) {
        let ([whole, rest], right) = (tiles_of(steps), self.tile.right.step as i32);
        let [whole_operands, rest_operands] = self.tile_operands();
        if whole > 0 {
            self.asm.mov_number(AT, i64::from(whole));
            self.asm.align(32);
            let top = self.asm.here();
            self.multiply_tiles(&whole_operands);
            self.asm.add_number(ROWS[0], ROW);
            self.asm.add_number(RIGHT, TILE as i32 * right);
            self.asm.add_number(AT, -1);
            self.asm.jump_if(Condition::NotEqual, top);
        }
        if rest > 0 {
            self.multiply_tiles(&rest_operands);
            self.asm.add_number(RIGHT, rest as i32 * right);
        }
    }

    fn multiply_tiles(&mut self, operands: &Operands) {
        let Products::Tiles(by) = products(self.tile.instruction) else {
            panic!("{:?} in tiles", self.tile.instruction);
        };
        self.asm
            .load_tile(operands.left, Mem::at(ROWS[0]), LEFT_STRIDE);
        let [first, end] = operands.right;
        for vector in 0..self.vectors {
            let right = Tile(first + vector % (end - first));
            let read = bug("tiles multiply the first vector alone", vector, |_| 0);
            let from = Mem::at(RIGHT).plus(i32::from(read) * ROW);
            self.asm.load_tile(right, from, RIGHT_STRIDE);
            self.asm
                .multiply_tiles(by, Tile(vector), operands.left, right);
            // The tiles of a whole strip together prefetch all of it.
            self.asm
                .prefetch(1, Mem::at(NEXT).plus(i32::from(vector) * ROW));
        }
        self.asm.add_number(NEXT, self.sum_stride());
    }

    /// Emits the epilogue on a tile's accumulators.
    fn emit_tile_epilogue(&mut self, epilogue: &RegisterEpilogue, lines: &Lines, sums: Mem) {
        let free = (0..self.asm.registers()).map(Vreg).collect();
        let (tile, vectors) = (self.tile, self.vectors);
        self.emit_epilogue_on(epilogue, lines, free, |sum| {
            let offset = sum_offset(tile, vectors, [sum.0 / vectors, sum.0 % vectors]);
            LaneLocation::Vector(sums.plus(offset))
        });
    }

    /// Emits the stores of a tile's results.
    fn store_results(&mut self, sums: Mem) {
        let add = self.adds();
        self.asm.mov(ROWS[0], Slot::Out.at());
        for row in 0..self.tile.rows.count {
            for vector in 0..self.vectors {
                // Registers are used in rotation.
                let sum = Vreg((row * self.vectors + vector) % 16);
                let other = Vreg(16 + sum.0);
                let from = sums.plus(sum_offset(self.tile, self.vectors, [row, vector]));
                self.asm.op(op::VMOVUPS, self.width, (sum, from));
                let (address, partial) = (self.result(row, vector), self.is_partial(vector));
                if self.tile.adds {
                    self.load(other, address, partial);
                    self.asm.op(add, self.width, (sum, sum, other));
                }
                self.store(address, sum, partial);
            }
        }
    }

    /// Advances to the next tile. The flags tell whether there is one.
    fn next_tile(&mut self, epilogue: Option<&RegisterEpilogue>, is_last: bool) {
        let [left, rows] = self.tile.strip;
        if is_last {
            let locations = epilogue.map_or(&[][..], |f| &f.locations);
            let accesses = locations.len() as i32;
            for (i, location) in locations.iter().enumerate() {
                if let Some(p) = location.as_ref().filter(|p| p.row * rows != 0) {
                    let bytes = p.row * rows * p.size as i64;
                    self.asm.add_at(access(accesses, i as i32), bytes as i32);
                }
            }
            self.asm
                .add_at(Slot::Out.at(), (rows * self.tile.out) as i32);
        }
        self.asm.add_at(Slot::Sums.at(), self.sum_bytes());
        self.asm.add_at(Slot::Left.at(), left as i32);
        self.asm.add_at(Slot::Tiles.at(), -1);
    }
}

/// Returns the number of whole tiles in K, and the remaining steps.
fn tiles_of(steps: u32) -> [u32; 2] {
    let steps = bug("a row of tiles has a word too few", steps, |n| n.max(1) - 1);
    [steps / TILE, steps % TILE]
}

/// Returns the location of the address of access `i` of `accesses`.
fn access(accesses: i32, i: i32) -> Mem {
    Slot::Accesses.at().plus(8 * (i - accesses))
}

/// Returns the offset of a vector of a row's accumulators within a tile's.
fn sum_offset(tile: &tile::Tile, vectors: u8, [row, vector]: [u8; 2]) -> i32 {
    let row = tile.rows.of_register(row) as i32;
    (row * i32::from(vectors) + i32::from(vector)) * ROW
}
