//! Emission of register tiles.

mod tiles;

use super::epilogue::RegisterEpilogue;
use super::tile::Tile;
use crate::emission::Target;
use crate::emission::lines::{Key, LaneLocation, Lines, Locations, Pinned, Tail};
use kiln_base::{DType, Features, Instruction};
use kiln_kernel::bugs::bug;
use kiln_plan::schedule::{VECTORS, lanes};
use kiln_x86::{Asm, Condition, Gpr, Mask, Mem, Op, Operand, TileProduct, Vreg, Width, op};

/// The steps of K per iteration of the unrolled loop.
const UNROLL: u32 = 4;

pub(super) const CALL: Gpr = Gpr::RDI;
pub(super) const RIGHT: Gpr = Gpr::RSI;
pub(super) const AT: Gpr = Gpr::RDX;
/// The registers for addresses; the first has that of A.
pub(super) const ROWS: [Gpr; 12] = [
    Gpr::RAX,
    Gpr::RCX,
    Gpr::R8,
    Gpr::R9,
    Gpr::R10,
    Gpr::R11,
    Gpr::RBX,
    Gpr::RBP,
    Gpr::R12,
    Gpr::R13,
    Gpr::R14,
    Gpr::R15,
];
/// The list of taps, the number of taps left, and the first row.
const TAPS: [Gpr; 3] = [Gpr::RCX, Gpr::R8, Gpr::R9];
/// The frame, while there is room on the stack.
pub(super) const FRAME: Gpr = Gpr::RBP;
/// The mask of the last vector.
pub(super) const TAIL: Mask = Mask(1);
const UPPER_TAIL: Mask = Mask(2);

pub(super) struct Emitter<'a> {
    pub(super) tile: &'a Tile,
    /// The instruction that multiplies in vectors.
    by: Instruction,
    pub(super) asm: Asm,
    pub(super) width: Width,
    pub(super) vectors: u8,
    /// The number of lanes in the last vector, if it is partial.
    pub(super) tail: Option<u16>,
    /// A register with the first column of the vectors, if code loops over them.
    pub(super) walked: Option<Gpr>,
    /// The next register for an element of A, or a product.
    next_free: u8,
}

/// The operations of an instruction. One operation on vectors; one whose 16-bit products another adds up, by
/// multiplying with ones; one on pairs of f16 that another widens; or one on AMX tiles.
enum Products {
    Vectors(Op),
    Joined(Op, Op),
    Widened(Op, Op),
    Tiles(TileProduct),
}

/// Maps an instruction to its operations.
fn products(by: Instruction) -> Products {
    match by {
        Instruction::Tdpfp16ps => Products::Tiles(TileProduct::F16),
        Instruction::Tdpbf16ps => Products::Tiles(TileProduct::Bf16),
        Instruction::Tdpbusd => Products::Tiles(TileProduct::U8I8),
        Instruction::Vdpbf16ps => Products::Vectors(op::VDPBF16PS),
        Instruction::Vpdpbusd => Products::Vectors(op::VPDPBUSD),
        Instruction::Vcvtph2ps => Products::Widened(op::VFMADD231PS, op::VCVTPH2PS),
        Instruction::Vpmaddubsw => Products::Joined(op::VPMADDUBSW, op::VPMADDWD),
        Instruction::Vpdpwssd => Products::Vectors(op::VPDPWSSD),
        Instruction::Vpmaddwd => Products::Vectors(op::VPMADDWD),
        Instruction::Vpmulld => Products::Vectors(op::VPMULLD),
        Instruction::Vpmullq => Products::Vectors(op::VPMULLQ),
        Instruction::Vfmadd231ps => Products::Vectors(op::VFMADD231PS),
        Instruction::Vfmadd231pd => Products::Vectors(op::VFMADD231PD),
    }
}

/// Returns the code of a tile.
pub(super) fn emit(tile: &Tile) -> Vec<u8> {
    let mut p = Emitter::new(tile);
    p.function();
    p.asm.finish()
}

impl Emitter<'_> {
    pub(super) fn new(tile: &Tile) -> Emitter<'_> {
        let lanes = lanes(tile.level, tile.instruction.sums);
        let evex = tile.level.width() == Features::AVX512;
        let over = tile.columns % lanes;
        Emitter {
            tile,
            by: tile.instruction.in_vectors(),
            asm: Asm::new(evex),
            width: if evex { Width::Z } else { Width::Y },
            vectors: tile.columns.div_ceil(lanes) as u8,
            walked: None,
            tail: (over != 0).then_some(over),
            next_free: 0,
        }
    }

    pub(super) fn lanes(&self) -> u16 {
        lanes(self.tile.level, self.by.sums)
    }

    /// True if accumulators, and broadcast elements, have 32 bits.
    fn is_single(&self) -> bool {
        self.by.sums.size() < 8
    }

    pub(super) fn pick(&self, single: Op, double: Op) -> Op {
        if self.is_single() { single } else { double }
    }

    pub(super) fn sum(&self, row: u8, vector: u8) -> Vreg {
        Vreg(row * self.vectors + vector)
    }

    /// True if columns are multiplied once, by a single row: then from memory, where they can be.
    fn has_single_row(&self) -> bool {
        self.tile.rows.count == 1
    }

    /// Returns the register for a vector of columns; a single row needs one at a time.
    fn value(&self, vector: u8) -> Vreg {
        let first = self.tile.rows.count * self.vectors;
        Vreg(if self.has_single_row() {
            first
        } else {
            first + vector
        })
    }

    /// Returns a register for an element of A; the free ones are used in rotation.
    fn broadcast_register(&mut self) -> Vreg {
        let first = self.value(self.vectors.max(1) - 1).0 + 1;
        let free = self.asm.registers() - first - self.vector_masks() - self.by.extra_registers;
        self.next_free = (self.next_free + 1) % free.max(1);
        Vreg(first + self.next_free)
    }

    /// Returns a register for a product with an element.
    fn product_register(&mut self, number: Vreg) -> Vreg {
        let next = self.broadcast_register();
        if next == number {
            self.broadcast_register()
        } else {
            next
        }
    }

    /// Returns the number of vectors that are masks.
    fn vector_masks(&self) -> u8 {
        u8::from(self.tail.is_some() && !self.asm.is_evex())
    }

    /// Returns the vector that masks the last one, with VEX.
    fn tail_vector(&self) -> Vreg {
        Vreg(self.asm.registers() - 1)
    }

    /// Returns a register that the instruction reserves: the first holds 16-bit ones, if products are joined by these.
    fn reserved(&self, i: u8) -> Vreg {
        Vreg(self.asm.registers() - 1 - self.vector_masks() - i)
    }

    fn function(&mut self) {
        let by_tiles = self.tile.is_by_tiles();
        let saved: Vec<Gpr> = (Gpr::SAVED.into_iter())
            .filter(|r| self.is_for_work(*r) || by_tiles && [FRAME, tiles::NEXT].contains(r))
            .collect();
        self.asm.enter(&saved, 0);
        self.prepare_tail();
        match by_tiles {
            true => self.strip(),
            false => self.sums(),
        }
        self.asm.leave(&saved, 0);
    }

    /// Emits one tile, with its accumulators in vectors.
    fn sums(&mut self) {
        self.asm.mov(RIGHT, Mem::at(CALL).plus(8));
        self.init_accumulators();
        self.asm.mov(ROWS[0], Mem::at(CALL));
        if let Products::Joined(..) = products(self.by) {
            let one = bug("a half is added twice", 1, |_| 2);
            let ones = self.asm.constant(&[one, 0].repeat(2));
            self.asm
                .op(op::VBROADCASTSS, self.width, (self.reserved(0), ones));
        }
        self.sum_taps();
        match self.tile.epilogue.clone() {
            Some(epilogue) => self.emit_epilogue(&epilogue),
            None => self.store_accumulators(),
        }
    }

    /// True if the epilogue keeps an address in this register, or the stack frame.
    pub(super) fn is_for_work(&self, r: Gpr) -> bool {
        let epilogue = self.tile.epilogue.as_ref();
        epilogue.is_some_and(|f| ROWS.iter().take(f.locations.len()).any(|b| *b == r) || r == FRAME)
    }

    pub(super) fn prepare_tail(&mut self) {
        let Some(tail) = self.tail else { return };
        let tail = bug("the last vector has a lane too many", tail, |n| n + 1);
        if self.asm.is_evex() {
            self.asm.mov_number(AT, (1 << tail) - 1);
            self.asm.kmov(TAIL, AT);
            // In an epilogue with 64-bit elements a vector holds half as many.
            self.asm.mov_number(AT, ((1 << tail) - 1) >> 8);
            self.asm.kmov(UPPER_TAIL, AT);
        } else {
            let lane = self.by.sums.size();
            let ones = usize::from(tail) * lane;
            let mask: Vec<u8> = (0..32).map(|i| if i < ones { 0xFF } else { 0 }).collect();
            let mask = self.asm.constant(&mask);
            let to = self.tail_vector();
            self.asm.op(op::VMOVUPS, self.width, (to, mask));
        }
    }

    /// Loads a vector of columns; the last one may be partial.
    pub(super) fn load(&mut self, to: Vreg, from: Mem, partial: bool) {
        match partial {
            false => self.asm.op(op::VMOVUPS, self.width, (to, from)),
            true if self.asm.is_evex() => {
                let load = self.pick(op::VMOVUPS, op::VMOVUPD);
                self.asm.masked(load, self.width, (TAIL, true), (to, from));
            }
            true => {
                let (load, mask) = (
                    self.pick(op::VMASKMOVPS, op::VMASKMOVPD),
                    self.tail_vector(),
                );
                self.asm.op(load, self.width, (to, mask, from));
            }
        }
    }

    /// Loads elements, and widens them if they have fewer bits than accumulators.
    pub(super) fn load_wide(&mut self, to: Vreg, from: Mem, dtype: DType, partial: bool) {
        let load = match dtype {
            DType::F16 => op::VCVTPH2PS,
            DType::BF16 => op::VPMOVZXWD,
            DType::U8 => op::VPMOVZXBD,
            DType::I8 => op::VPMOVSXBD,
            DType::I16 => op::VPMOVSXWD,
            _ => return self.load(to, from, partial),
        };
        match partial {
            true => self.asm.masked(load, self.width, (TAIL, true), (to, from)),
            false => self.asm.op(load, self.width, (to, from)),
        }
        if dtype == DType::BF16 {
            let bits = bug("a half is widened by a bit too few", 16, |n| n - 1);
            self.asm.op(op::VPSLLD, self.width, (to, to, bits));
        }
    }

    pub(super) fn store(&mut self, to: Mem, from: Vreg, partial: bool) {
        match partial {
            false => self.asm.op(op::VMOVUPS_STORE, self.width, (to, from)),
            true if self.asm.is_evex() => {
                let store = self.pick(op::VMOVUPS_STORE, op::VMOVUPD_STORE);
                self.asm
                    .masked(store, self.width, (TAIL, false), (to, from));
            }
            true => {
                let store = self.pick(op::VMASKMOVPS_STORE, op::VMASKMOVPD_STORE);
                let mask = self.tail_vector();
                self.asm.op(store, self.width, (to, mask, from));
            }
        }
    }

    fn is_partial(&self, vector: u8) -> bool {
        self.tail.is_some() && vector + 1 == self.vectors
    }

    /// Returns the address of a vector of the result.
    fn result(&self, row: u8, vector: u8) -> Mem {
        let row = self.tile.rows.result(row) * self.tile.out;
        let vector = i32::from(vector) * self.width.bytes() as i32;
        Mem::at(ROWS[0]).plus(row as i32 + vector)
    }

    /// Initialises the accumulators.
    fn init_accumulators(&mut self) {
        let finished = self.tile.epilogue.is_some();
        self.asm.mov(ROWS[0], Mem::at(CALL).plus(16));
        for row in 0..self.tile.rows.count {
            for vector in 0..self.vectors {
                let sum = self.sum(row, vector);
                let at = self.result(row, vector);
                if self.tile.adds {
                    self.load(sum, at, self.is_partial(vector));
                    continue;
                }
                match self.tile.has_initial_row {
                    true => {
                        let bytes = self.tile.right_vector(vector);
                        self.load(sum, Mem::at(RIGHT).plus(bytes as i32), false);
                    }
                    false => self.asm.op(op::VXORPS, self.width, (sum, sum, sum)),
                }
                if !finished {
                    self.asm.prefetch(0, at);
                }
            }
        }
        if self.tile.has_initial_row {
            self.asm.add_number(RIGHT, self.tile.right.step as i32);
        }
    }

    fn store_accumulators(&mut self) {
        self.asm.mov(ROWS[0], Mem::at(CALL).plus(16));
        for row in 0..self.tile.rows.count {
            for vector in 0..self.vectors {
                let at = self.result(row, vector);
                self.store(at, self.sum(row, vector), self.is_partial(vector));
            }
        }
    }

    /// Returns a vector of columns of the step at an address: in its register, or in memory.
    fn columns(&mut self, vector: u8, at: Mem) -> Operand {
        let partial = self.is_partial(vector) && !self.tile.right.padded;
        let to = self.value(vector);
        let next = bug("a panel is read twice", vector, |v| v % VECTORS as u8);
        let from = at.plus(self.tile.right_vector(next) as i32);
        match self.tile.right.half_dtype {
            Some(half) => self.load_wide(to, from, half, false),
            None if self.has_single_row() && !partial => return from.into(),
            None => self.load(to, from, partial),
        }
        to.into()
    }

    /// Emits the products of one step of K, `behind` steps after the one that the registers point at.
    fn step(&mut self, behind: u32) {
        let bytes = self.width.bytes() as i32;
        let at = Mem::at(RIGHT).plus(behind as i32 * self.tile.right.step as i32);
        let held = if self.has_single_row() {
            0
        } else {
            self.vectors
        };
        let values: Vec<Operand> = (0..held).map(|vector| self.columns(vector, at)).collect();
        if self.tile.right.ahead != 0 {
            for vector in 0..self.vectors {
                let from = at.plus(self.tile.right.ahead as i32 + i32::from(vector) * bytes);
                match bug("what is fetched ahead is read", false, |_| true) {
                    false => self.asm.prefetch(1, from),
                    true => self.load(self.value(vector), from, false),
                }
            }
        }
        let broadcast = self.pick(op::VBROADCASTSS, op::VBROADCASTSD);
        for row in 0..self.tile.rows.count {
            let number = self.broadcast_register();
            let read = bug("a row multiplies what the first does", row, |_| 0);
            let left = self.tile.rows.left(read) + i64::from(behind) * self.tile.step;
            let left = Mem::at(ROWS[0]).plus(left as i32);
            self.asm.op(broadcast, self.width, (number, left));
            for vector in 0..self.vectors {
                let sum = self.sum(row, vector);
                let value = match values.get(usize::from(vector)) {
                    Some(value) => *value,
                    None => self.columns(vector, at),
                };
                // The last product may overwrite the element.
                let product = match self.by.has_product && vector + 1 < self.vectors {
                    true => self.product_register(number),
                    false => number,
                };
                self.add_product(self.by, sum, (number, value), product);
            }
        }
    }

    /// Adds a product to an accumulator; some instructions need a register for the product.
    pub(super) fn add_product(
        &mut self,
        by: Instruction,
        sum: Vreg,
        (number, value): (Vreg, Operand),
        product: Vreg,
    ) {
        let width = self.width;
        let to = if by.has_product { product } else { sum };
        match products(by) {
            Products::Vectors(op) => self.asm.op(op, width, (to, number, value)),
            Products::Joined(op, join) => {
                self.asm.op(op, width, (to, number, value));
                self.asm.op(join, width, (to, to, self.reserved(0)));
            }
            Products::Widened(op, widen) => {
                // The second terms first, as VDPBF16PS does.
                for bits in [16u8, 0] {
                    let half_dtype = [self.reserved(0), self.reserved(1)];
                    for (half, pair) in half_dtype.into_iter().zip([number.into(), value]) {
                        self.asm.op(op::VPSRLD, width, (half, pair, bits));
                        self.asm.op(op::VPMOVDW, width, (half, half));
                        self.asm.op(widen, width, (half, half));
                    }
                    self.asm.op(op, width, (to, half_dtype[0], half_dtype[1]));
                }
            }
            Products::Tiles(_) => panic!("{by:?} in vectors"),
        }
        if by.has_product {
            self.asm.op(self.adds(), width, (sum, sum, product));
        }
    }

    /// Returns the operation that adds vectors of accumulators.
    pub(super) fn adds(&self) -> Op {
        match self.by.sums.is_float() {
            true => self.pick(op::VADDPS, op::VADDPD),
            false => self.pick(op::VPADDD, op::VPADDQ),
        }
    }

    /// Emits the loop over the taps.
    fn sum_taps(&mut self) {
        let [list, count, first] = TAPS;
        match self.tile.taps {
            _ if self.tile.steps == 0 => {}
            0 => {}
            1 => self.sum_steps(),
            taps => {
                self.asm.mov(first, ROWS[0]);
                self.asm.mov(list, Mem::at(CALL).plus(32));
                self.asm.mov_number(count, i64::from(taps));
                let top = self.asm.here();
                let next = bug("a tap is read where the one behind it lies", 0, |_| 8);
                self.asm.mov(ROWS[0], Mem::at(list).plus(next));
                self.asm.add(ROWS[0], first);
                self.asm.add_number(list, 8);
                self.sum_steps();
                self.asm.add_number(count, -1);
                self.asm.jump_if(Condition::NotEqual, top);
            }
        }
    }

    /// Emits the loop over the steps of K of a tap.
    fn sum_steps(&mut self) {
        let (steps, right) = (self.tile.steps, self.tile.right.step as i32);
        let steps = bug("a tap has a step too few", steps, |n| n - 1);
        let (turns, rest) = (steps / UNROLL, steps % UNROLL);
        if turns > 0 {
            self.asm.mov_number(AT, i64::from(turns));
            self.asm.align(32);
            let top = self.asm.here();
            (0..UNROLL).for_each(|behind| self.step(behind));
            let step = UNROLL as i32 * self.tile.step as i32;
            self.asm.add_number(ROWS[0], step);
            self.asm.add_number(RIGHT, UNROLL as i32 * right);
            self.asm.add_number(AT, -1);
            self.asm.jump_if(Condition::NotEqual, top);
        }
        (0..rest).for_each(|behind| self.step(behind));
        let goes_on = bug("the next tap has the weights of the last", rest > 0, |_| {
            false
        });
        if goes_on && self.tile.taps > 1 {
            self.asm.add_number(RIGHT, rest as i32 * right);
        }
    }
}

/// The places of operands while one vector of accumulators is processed.
struct Sums<'a> {
    epilogue: &'a RegisterEpilogue,
    /// The place of the accumulators: a register, or the stack.
    sums: LaneLocation,
    row: i64,
    /// The offset of the vector's first column in bytes of f32, and a register with further columns to add.
    column: i64,
    walked: Option<Gpr>,
}

impl Locations for Sums<'_> {
    fn location(&mut self, asm: &mut Asm, key: Key) -> LaneLocation {
        let Key::Access(access) = key else {
            panic!("{key:?} behind a product");
        };
        let Some(location) = &self.epilogue.locations[usize::from(access)] else {
            return self.sums;
        };
        let base = match ROWS.get(usize::from(access)) {
            Some(r) if *r != FRAME && Some(*r) != self.walked => *r,
            _ => {
                asm.mov(AT, Mem::at(RIGHT).plus(8 * i32::from(access)));
                AT
            }
        };
        let at =
            (self.row * location.row + self.column / 4 * location.column) * location.size as i64;
        let at = Mem::at(base).plus(at as i32);
        match (location.column, self.walked) {
            (0, _) => LaneLocation::Splat(at),
            (_, None) => LaneLocation::Vector(at),
            (_, Some(columns)) => LaneLocation::Vector(at.index(columns, location.size as u8)),
        }
    }
}

impl Emitter<'_> {
    /// Emits the epilogue on all accumulators. Those of the first rows come first. If registers are missing, as many of
    /// the last accumulators wait on the stack.
    pub(super) fn emit_epilogue(&mut self, epilogue: &RegisterEpilogue) {
        let lines = self.lines_of(epilogue);
        let bytes = self.width.bytes() as i32;
        let sums = self.tile.rows.count * self.vectors;
        let all = self.asm.registers();
        let mut free: Vec<Vreg> = (sums..all).map(Vreg).collect();
        let needs = lines
            .pressure()
            .clamp(Lines::MIN_REGISTERS, usize::from(all));
        let missing = needs.saturating_sub(free.len()).min(usize::from(sums));
        let kept = sums - missing as u8;
        self.asm.mov(FRAME, Gpr::RSP);
        self.asm
            .add_number(Gpr::RSP, -(missing as i32 * bytes + lines.stack() as i32));
        self.asm.and_number(Gpr::RSP, -64);
        let waiting = Mem::at(Gpr::RSP).plus(lines.stack() as i32);
        let waits = bug("a sum that waits lies where another does", 0, |_| 1);
        for sum in kept..sums {
            let to = waiting.plus(i32::from(sum - kept) * bytes);
            self.asm.op(op::VMOVUPS_STORE, self.width, (to, Vreg(sum)));
            free.push(Vreg(sum));
        }
        let location = |sum: Vreg| match sum.0 < kept {
            true => LaneLocation::Register {
                registers: [sum; 2],
                last: false,
            },
            false => LaneLocation::Vector(waiting.plus((i32::from(sum.0 - kept) - waits) * bytes)),
        };
        self.asm.mov(RIGHT, Mem::at(CALL).plus(24));
        self.emit_epilogue_on(epilogue, &lines, free, location);
        self.asm.mov(Gpr::RSP, FRAME);
    }

    pub(super) fn lines_of(&self, epilogue: &RegisterEpilogue) -> Lines {
        let target = Target {
            evex: self.asm.is_evex(),
        };
        match RegisterEpilogue::lines(&epilogue.body, target) {
            Some(lines) => lines,
            None => panic!("an epilogue that is not emitted"),
        }
    }

    /// Emits the epilogue on accumulators in these places, with some free registers. The addresses of its accesses are
    /// in a list at [`RIGHT`].
    pub(super) fn emit_epilogue_on(
        &mut self,
        epilogue: &RegisterEpilogue,
        lines: &Lines,
        mut free: Vec<Vreg>,
        location: impl Fn(Vreg) -> LaneLocation,
    ) {
        let bytes = self.width.bytes() as i32;
        for (i, r) in ROWS.iter().enumerate().take(epilogue.locations.len()) {
            if *r != FRAME && Some(*r) != self.walked {
                self.asm.mov(*r, Mem::at(RIGHT).plus(8 * i as i32));
            }
        }
        let tail = self.tail.map(|lanes| {
            if self.asm.is_evex() {
                return Tail::Bits {
                    low: TAIL,
                    high: UPPER_TAIL,
                };
            }
            Tail::in_memory(&mut self.asm, lanes.into(), CALL)
        });
        for row in 0..self.tile.rows.count {
            for vector in 0..self.vectors {
                let sum = self.sum(row, vector);
                let at = location(sum);
                let mut locations = Sums {
                    epilogue,
                    sums: at,
                    row: bug(
                        "work on sums is that of the next row",
                        self.tile.rows.result(row),
                        |n| n + 1,
                    ),
                    column: i64::from(vector) * i64::from(bytes),
                    walked: self.walked,
                };
                let tail = tail.filter(|_| self.is_partial(vector));
                let stack = Mem::at(Gpr::RSP);
                lines.emit(
                    &mut self.asm,
                    &mut locations,
                    (&free, stack),
                    &Pinned::default(),
                    tail,
                );
                if let LaneLocation::Register { .. } = at {
                    free.push(sum);
                }
            }
        }
    }
}
