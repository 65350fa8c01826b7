//! The function of a body: hoisted code, and a loop over groups of lanes.

use super::{Body, Kind};
use crate::emission::Target;
use crate::emission::lines::{
    Key, LaneLocation, Lines, Locations, NotEmitted, Pinned, ReportArguments, Tail,
};
use crate::emission::value::is_wide;
use hashbrown::HashSet;
use kiln_base::Compute;
use kiln_base::prim::Reduction;
use kiln_plan::tile::{Inst, Reg};
use kiln_x86::{Asm, Condition, Gpr, Mask, Mem, Vreg, Width, op};

/// The lanes of accumulators of a reduction across lanes.
const WIDTH: usize = 64;

/// The table, the number of lanes, the current lane, the end of a block, and a limit: the end of the block's full
/// groups, or in its tail the number of remaining lanes.
pub(super) const TABLE: Gpr = Gpr::RDI;
pub(super) const LANES: Gpr = Gpr::RSI;
pub(super) const LANE: Gpr = Gpr::RAX;
pub(super) const END: Gpr = Gpr::RDX;
pub(super) const LIMIT: Gpr = Gpr::R14;
/// The register for addresses without a register of their own.
const SCRATCH: Gpr = Gpr::R15;
/// The registers for the first addresses. With steps, the last one holds the current row of the table.
const POINTERS: [Gpr; 8] = [
    Gpr::RCX,
    Gpr::R8,
    Gpr::R9,
    Gpr::R10,
    Gpr::R11,
    Gpr::RBX,
    Gpr::R12,
    Gpr::R13,
];
const SAVED: [Gpr; 5] = [Gpr::RBX, Gpr::R12, Gpr::R13, Gpr::R14, Gpr::R15];

/// The locations of operands for one group of lanes.
struct StageLocations<'a> {
    body: &'a Body,
    table: Table,
    /// The locations of hoisted values.
    hoisted: &'a [(Reg, LaneLocation)],
    /// The accumulators of each group, in the order of the reductions.
    accumulators: &'a [(Reg, Vec<LaneLocation>)],
    group: usize,
    /// The first of several interleaved groups.
    first_group: usize,
    lanes: usize,
    /// True in the loop over lanes, false in hoisted code.
    in_loop: bool,
    tail: bool,
}

impl StageLocations<'_> {
    fn operand(&self, key: Key) -> usize {
        let index = self.body.operands.iter().position(|(k, _)| *k == key);
        index.unwrap_or_else(|| panic!("{key:?} is not an operand"))
    }
}

impl Locations for StageLocations<'_> {
    fn address_at(&mut self, asm: &mut Asm, key: Key, by: Mem) -> Mem {
        let base = self.table.pointer(asm, self.operand(key));
        if base != SCRATCH {
            asm.mov(SCRATCH, base);
        }
        asm.add(SCRATCH, by);
        let size = self.body.size(key);
        let element = Mem::at(SCRATCH).index(LANE, size as u8);
        element.plus((self.group * self.lanes * size) as i32)
    }

    fn report_arguments(&mut self) -> Option<ReportArguments> {
        Some(ReportArguments {
            lane: LANE,
            group: (self.group * self.lanes) as i32,
            first: self.table.entry(self.operand(Key::Lane)),
            context: self.table.entry(self.operand(Key::Context)),
        })
    }

    fn select_group(&mut self, group: usize) {
        self.group = self.first_group + group;
    }

    fn location(&mut self, asm: &mut Asm, key: Key) -> LaneLocation {
        if let Key::Input(r) | Key::Output(r) = key
            && let Some((_, location)) = self.hoisted.iter().find(|(h, _)| *h == r)
            && matches!(key, Key::Input(_)) == self.in_loop
        {
            return *location;
        }
        if let Key::Accumulator(r) = key
            && let Some((_, groups)) = self.accumulators.iter().find(|(a, _)| *a == r)
        {
            return groups[self.group];
        }
        if key == Key::Lane {
            let plus = (self.group * self.lanes) as i32;
            return LaneLocation::Lanes { first: LANE, plus };
        }
        let i = self.operand(key);
        if let Key::Number(_) = key {
            return LaneLocation::Splat(self.table.entry(i));
        }
        let base = self.table.pointer(asm, i);
        let kind = self.body.operands[i].1;
        if matches!(kind, Kind::Splat | Kind::RowSplat | Kind::Memory) {
            return LaneLocation::Splat(Mem::at(base));
        }
        let size = self.body.size(key);
        let element = Mem::at(base).index(LANE, size as u8);
        let element = element.plus((self.group * self.lanes * size) as i32);
        match kind {
            Kind::Stream if !self.tail => LaneLocation::Stream(element),
            _ => LaneLocation::Vector(element),
        }
    }
}

/// The register of the table's current row, and the number of addresses that are in registers.
#[derive(Copy, Clone)]
pub(super) struct Table {
    pub row: Gpr,
    registers: usize,
}

impl Table {
    fn of(body: &Body) -> Table {
        let registers = POINTERS.len() - usize::from(body.steps);
        let row = POINTERS.get(registers).copied().unwrap_or(TABLE);
        Table { row, registers }
    }

    /// Returns the memory operand of the address of operand `i`.
    fn entry(self, i: usize) -> Mem {
        Mem::at(self.row).plus(8 * i as i32)
    }

    /// Returns a register with the address of operand `i`.
    pub(super) fn pointer(self, asm: &mut Asm, i: usize) -> Gpr {
        if i < self.registers {
            return POINTERS[i];
        }
        asm.mov(SCRATCH, self.entry(i));
        SCRATCH
    }

    /// Loads the first addresses into registers.
    pub(super) fn load_pointers(self, asm: &mut Asm, operands: usize) {
        for (i, r) in POINTERS
            .iter()
            .enumerate()
            .take(operands.min(self.registers))
        {
            asm.mov(*r, self.entry(i));
        }
    }
}

/// The minimum number of instructions for which the code of two groups is interleaved.
const MIN_INTERLEAVED: usize = 12;

/// The maximum number of registers by which interleaved code may exceed the machine's.
const MAX_SPILLED: usize = 4;

/// Returns the machine code of a function over lanes.
///
/// # Errors
/// If some instruction can't be emitted.
pub fn emit(body: &Body, target: Target) -> Result<Vec<u8>, NotEmitted> {
    let (setup_code, inner) = body.split_hoisted();
    let live_in = body.live_in(&inner, &body.outputs);
    let defined: HashSet<u16> = setup_code
        .iter()
        .filter_map(|i| i.operands().1)
        .map(|r| r.0)
        .collect();
    let is_splat = |r: &Reg| body.operands.contains(&(Key::Input(*r), Kind::Splat));
    let hoisted: Vec<Reg> = live_in
        .into_iter()
        .filter(|r| defined.contains(&r.0) || is_splat(r))
        .collect();
    let setup = body.lines(target, &setup_code, &hoisted)?;
    let lines = body.lines(target, &inner, &body.outputs)?;
    let mut asm = Asm::new(target.evex);
    let interleaved = lines.interleave_groups();
    let registers = usize::from(asm.registers());
    let pays = lines.instruction_count() >= MIN_INTERLEAVED
        && interleaved.pressure() <= registers + MAX_SPILLED;
    let pair = pays.then_some(&interleaved);
    let lines = (&lines, pair);
    let mut emitter = StageEmitter::new(&mut asm, body, target, &setup, lines, &inner, &hoisted);
    emitter.emit_function()?;
    Ok(asm.finish())
}

/// An emitter of the function of one body.
pub(super) struct StageEmitter<'a> {
    pub asm: &'a mut Asm,
    pub body: &'a Body,
    pub table: Table,
    pub target: Target,
    setup: &'a Lines,
    pub lines: &'a Lines,
    /// The interleaved code of two groups, if it pays.
    pub pair: Option<&'a Lines>,
    /// The groups of lanes per iteration of the loop.
    pub groups: usize,
    pub reductions: Vec<(Reduction, Reg)>,
    hoisted: Vec<(Reg, LaneLocation)>,
    pub accumulators: Vec<(Reg, Vec<LaneLocation>)>,
    /// The registers for temporaries.
    pub free: Vec<Vreg>,
    /// The registers for constants.
    constants: Vec<Vreg>,
    /// The stack slot of the tail's mask, with VEX.
    mask: Mem,
    pub spills: Mem,
    frame_bytes: i32,
}

/// Returns the number of registers of a value: two for 64 bits per lane, otherwise one.
pub(super) fn register_count(ty: Compute) -> usize {
    if is_wide(ty) { 2 } else { 1 }
}

impl<'a> StageEmitter<'a> {
    fn new(
        asm: &'a mut Asm,
        body: &'a Body,
        target: Target,
        setup: &'a Lines,
        (lines, pair): (&'a Lines, Option<&'a Lines>),
        inner: &[Inst],
        hoisted: &[Reg],
    ) -> StageEmitter<'a> {
        let keeps_accumulators = body.block.is_some() || body.steps;
        let reductions: Vec<(Reduction, Reg)> = inner
            .iter()
            .filter_map(|i| match i {
                Inst::Reduce { op, acc, .. } if keeps_accumulators => Some((*op, *acc)),
                _ => None,
            })
            .collect();
        let groups = match reductions.is_empty() {
            false if !body.steps => WIDTH / target.lanes(),
            _ if body.steps && lines.instruction_count() < MIN_INTERLEAVED => 4,
            _ if pair.is_some() || lines.instruction_count() < MIN_INTERLEAVED => 2,
            _ => 1,
        };
        let bytes = target.width().bytes() as i32;
        let mut frame_bytes = 64;
        let mask = Mem::at(Gpr::RSP);
        let mut allocate = |bytes: i32| {
            let slot = Mem::at(Gpr::RSP).plus(frame_bytes);
            frame_bytes += bytes;
            slot
        };
        let machine_registers = if target.evex { 32 } else { 16 };
        let mut free: Vec<Vreg> = (0..machine_registers).map(Vreg).collect();
        let pressure = pair.unwrap_or(lines).pressure().max(Lines::MIN_REGISTERS);
        let mut take_registers = |n: usize| {
            let fits = free.len() >= pressure + n;
            fits.then(|| free.split_off(free.len() - n))
        };
        let accumulator_registers: usize = (reductions.iter())
            .map(|(_, r)| groups * register_count(body.registers[usize::from(r.0)]))
            .sum();
        let registers = take_registers(accumulator_registers);
        let mut next = registers.into_iter().flatten();
        let accumulators = (reductions.iter())
            .map(|(_, r)| {
                let n = register_count(body.registers[usize::from(r.0)]);
                let mut location = || match next.next() {
                    Some(first) => {
                        let second = if n == 2 { next.next() } else { None };
                        let registers = [first, second.unwrap_or(first)];
                        LaneLocation::Register {
                            registers,
                            last: false,
                        }
                    }
                    None => LaneLocation::Vector(allocate(bytes * n as i32)),
                };
                (*r, (0..groups).map(|_| location()).collect())
            })
            .collect();
        let hoisted = hoisted
            .iter()
            .map(|r| {
                let ty = body.registers[usize::from(r.0)];
                let n = register_count(ty);
                let registers = (ty != Compute::Mask).then(|| take_registers(n)).flatten();
                let location = match registers {
                    Some(r) => LaneLocation::Register {
                        registers: [r[0], r[n - 1]],
                        last: false,
                    },
                    None => LaneLocation::Vector(allocate(bytes * n as i32)),
                };
                (*r, location)
            })
            .collect();
        let count = free.len().saturating_sub(pressure).min(lines.constants());
        let constants = free.split_off(free.len() - count);
        let spill_bytes = pair.unwrap_or(lines).stack().max(lines.stack());
        let spills = allocate(spill_bytes.max(setup.stack()) as i32);
        // The spill area of the code that combines accumulators, which has few values except with 64 bits.
        allocate(64 * 40);
        StageEmitter {
            asm,
            body,
            table: Table::of(body),
            target,
            setup,
            lines,
            pair,
            groups,
            reductions,
            hoisted,
            accumulators,
            free,
            constants,
            mask,
            spills,
            frame_bytes,
        }
    }

    fn emit_function(&mut self) -> Result<(), NotEmitted> {
        self.asm.enter(&SAVED, self.frame_bytes);
        if self.body.steps {
            self.store_table_end();
        }
        let constants = std::mem::take(&mut self.constants);
        let pinned = self.lines.pin_constants(self.asm, &constants);
        let row_start = self.asm.here();
        self.table.load_pointers(self.asm, self.body.operands.len());
        self.asm.mov_number(LANE, 0);
        let setup = self.setup;
        let unpinned = Pinned::default();
        self.emit_group(setup, &unpinned, (0, false), None);
        match self.body.block {
            _ if self.body.runs_by_row() => {
                self.emit_steps(&pinned);
                self.jump_if_next_row(row_start);
            }
            _ if self.body.steps => self.emit_steps(&pinned),
            Some(block) if !self.reductions.is_empty() => {
                let top = self.asm.here();
                let full_block = self.asm.label();
                self.asm.lea(END, Mem::at(LANE).plus(block as i32));
                self.asm.cmp(END, LANES);
                self.asm.jump_if(Condition::BelowOrEqual, full_block);
                self.asm.mov(END, LANES);
                self.asm.bind(full_block);
                self.initialize_accumulators();
                self.emit_block(&pinned);
                self.fold_accumulators()?;
                self.asm.mov(LANE, END);
                self.asm.cmp(LANE, LANES);
                self.asm.jump_if(Condition::Below, top);
            }
            _ => {
                self.asm.mov(END, LANES);
                self.emit_block(&pinned);
            }
        }
        self.asm.leave(&SAVED, self.frame_bytes);
        Ok(())
    }

    /// Emits code for one group of lanes, or for two with interleaved code.
    pub(super) fn emit_group(
        &mut self,
        lines: &Lines,
        pinned: &Pinned,
        (group, in_loop): (usize, bool),
        tail: Option<Tail>,
    ) {
        let mut locations = StageLocations {
            body: self.body,
            table: self.table,
            hoisted: &self.hoisted,
            accumulators: &self.accumulators,
            group,
            first_group: group,
            lanes: self.target.lanes(),
            in_loop,
            tail: tail.is_some(),
        };
        let memory = (&self.free[..], self.spills);
        lines.emit(self.asm, &mut locations, memory, pinned, tail);
    }

    /// Emits the loop over the lanes of a block.
    fn emit_block(&mut self, pinned: &Pinned) {
        let lanes = self.target.lanes();
        let step = (lanes * self.groups) as i32;
        let (tail, done) = (self.asm.label(), self.asm.label());
        self.asm.mov(LIMIT, END);
        self.asm.sub(LIMIT, LANE);
        self.asm.and_number(LIMIT, -step);
        self.asm.add(LIMIT, LANE);
        self.asm.cmp(LANE, LIMIT);
        self.asm.jump_if(Condition::AboveOrEqual, tail);
        self.asm.align(32);
        let top = self.asm.here();
        for group in 0..self.groups {
            self.emit_prefetches(group);
        }
        self.emit_groups(pinned);
        self.asm.add_number(LANE, step);
        self.asm.cmp(LANE, LIMIT);
        self.asm.jump_if(Condition::Below, top);
        self.asm.bind(tail);
        for group in 0..self.groups {
            self.asm.mov(LIMIT, END);
            self.asm.sub(LIMIT, LANE);
            if group > 0 {
                self.asm.add_number(LIMIT, -((group * lanes) as i32));
            }
            self.asm.cmp_number(LIMIT, 0);
            self.asm.jump_if(Condition::LessOrEqual, done);
            let tail = self.emit_tail_mask();
            self.emit_group(self.lines, pinned, (group, true), Some(tail));
        }
        self.asm.bind(done);
    }

    /// Emits the code of an iteration, for all its groups.
    pub(super) fn emit_groups(&mut self, pinned: &Pinned) {
        for group in 0..self.groups {
            match self.pair {
                None => self.emit_group(self.lines, pinned, (group, true), None),
                Some(pair) if group % 2 == 0 => self.emit_group(pair, pinned, (group, true), None),
                Some(_) => {}
            }
        }
    }

    /// Emits software prefetches, one per cache line.
    fn emit_prefetches(&mut self, group: usize) {
        const LINE: usize = 64;
        for (i, (key, _)) in self.body.operands.iter().enumerate() {
            let Key::Prefetch(_) = key else {
                continue;
            };
            let size = self.body.size(*key);
            let bytes = self.target.lanes() * size;
            let start = group * bytes;
            // Groups smaller than a line share a prefetch.
            if !start.is_multiple_of(LINE) {
                continue;
            }
            let base = self.table.pointer(self.asm, i);
            for line in (0..bytes).step_by(LINE) {
                let element = Mem::at(base).index(LANE, size as u8);
                self.asm.prefetch(1, element.plus((start + line) as i32));
            }
        }
    }

    /// Emits the mask of the remaining lanes, which are fewer than a group.
    pub(super) fn emit_tail_mask(&mut self) -> Tail {
        let register = self.free[0];
        if self.target.evex {
            let (low, high) = (Mask(1), Mask(2));
            let indices: Vec<u8> = (0..16i32).flat_map(i32::to_le_bytes).collect();
            let indices = self.asm.constant(&indices);
            let asm = &mut self.asm;
            asm.op(op::VPBROADCASTD_GPR, Width::Z, (register, LIMIT));
            asm.op(op::VPCMPUD, Width::Z, (low, register, indices, 6u8));
            asm.kshiftr(high, low, 8);
            return Tail::Bits { low, high };
        }
        let ones_then_zeros: Vec<u8> = (0..16)
            .flat_map(|i| [if i < 8 { 0xff } else { 0u8 }; 4])
            .collect();
        let ones_then_zeros = self.asm.constant(&ones_then_zeros);
        let asm = &mut self.asm;
        let at_most_8 = asm.label();
        asm.cmp_number(LIMIT, 8);
        asm.jump_if(Condition::LessOrEqual, at_most_8);
        asm.mov_number(LIMIT, 8);
        asm.bind(at_most_8);
        asm.lea(SCRATCH, ones_then_zeros);
        asm.add_number(SCRATCH, 32);
        for _ in 0..4 {
            asm.sub(SCRATCH, LIMIT);
        }
        asm.op(op::VMOVUPS, Width::Y, (register, Mem::at(SCRATCH)));
        asm.op(op::VMOVUPS_STORE, Width::Y, (self.mask, register));
        Tail::Memory {
            mask: self.mask,
            lanes: LIMIT,
        }
    }
}
