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

/// The table, the number of lanes, the current lane, the end of a block, and the end of its whole groups; in its tail,
/// the last is the number of remaining lanes.
pub(super) const TABLE: Gpr = Gpr::RDI;
pub(super) const LANES: Gpr = Gpr::RSI;
pub(super) const AT: Gpr = Gpr::RAX;
pub(super) const END: Gpr = Gpr::RDX;
pub(super) const WHOLE: Gpr = Gpr::R14;
/// The register for the addresses of operands without a register of their own.
const SCRATCH: Gpr = Gpr::R15;
/// The registers for the other addresses; with steps, the last one has the current row of the table.
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

/// The places of operands at one point of the code.
struct Env<'a> {
    body: &'a Body,
    table: Table,
    /// The values of hoisted code.
    hoisted: &'a [(Reg, LaneLocation)],
    /// The accumulators of each group, in the order of the reductions.
    accumulators: &'a [(Reg, Vec<LaneLocation>)],
    group: usize,
    /// The first of the groups that are emitted together.
    first: usize,
    lanes: usize,
    /// True if operands move with the lane.
    moves: bool,
    tail: bool,
}

impl Env<'_> {
    fn operand(&self, key: Key) -> usize {
        let found = self.body.operands.iter().position(|(k, _)| *k == key);
        found.unwrap_or_else(|| panic!("{key:?} is not an operand"))
    }
}

impl Locations for Env<'_> {
    fn address_at(&mut self, asm: &mut Asm, key: Key, by: Mem) -> Mem {
        let base = self.table.pointer(asm, self.operand(key));
        if base != SCRATCH {
            asm.mov(SCRATCH, base);
        }
        asm.add(SCRATCH, by);
        let size = self.body.size(key);
        let at = Mem::at(SCRATCH).index(AT, size as u8);
        at.plus((self.group * self.lanes * size) as i32)
    }

    fn report_arguments(&mut self) -> Option<ReportArguments> {
        Some(ReportArguments {
            lane: AT,
            group: (self.group * self.lanes) as i32,
            first: self.table.entry(self.operand(Key::Lane)),
            context: self.table.entry(self.operand(Key::Context)),
        })
    }

    fn select_group(&mut self, group: usize) {
        self.group = self.first + group;
    }

    fn location(&mut self, asm: &mut Asm, key: Key) -> LaneLocation {
        if let Key::Input(r) | Key::Output(r) = key
            && let Some((_, location)) = self.hoisted.iter().find(|(h, _)| *h == r)
            && matches!(key, Key::Input(_)) == self.moves
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
            return LaneLocation::Lanes { first: AT, plus };
        }
        let i = self.operand(key);
        if let Key::Number(_) = key {
            return LaneLocation::Splat(self.table.entry(i));
        }
        let base = self.table.pointer(asm, i);
        let kind = self.body.operands[i].1;
        if matches!(kind, Kind::Splat | Kind::SplatOfRow | Kind::Memory) {
            return LaneLocation::Splat(Mem::at(base));
        }
        let size = self.body.size(key);
        let at = Mem::at(base).index(AT, size as u8);
        let at = at.plus((self.group * self.lanes * size) as i32);
        match kind {
            Kind::Stream if !self.tail => LaneLocation::Stream(at),
            _ => LaneLocation::Vector(at),
        }
    }
}

/// The register of the table's row, and the number of its addresses that are in registers.
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

    /// Returns the place of the address of operand `i`.
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

    /// Loads addresses into registers.
    pub(super) fn read(self, asm: &mut Asm, operands: usize) {
        for (i, r) in POINTERS
            .iter()
            .enumerate()
            .take(operands.min(self.registers))
        {
            asm.mov(*r, self.entry(i));
        }
    }
}

/// The minimum number of instructions of code that is interleaved for two groups.
const CHAIN: usize = 12;

/// The number of registers by which such code may exceed the machine's.
const OVER: usize = 4;

/// Returns the code of a function over lanes.
///
/// # Errors
/// If some instruction can't be emitted.
pub fn emit(body: &Body, target: Target) -> Result<Vec<u8>, NotEmitted> {
    let (before, inside) = body.split();
    let entering = body.entering(&inside, &body.outputs);
    let made: HashSet<u16> = before
        .iter()
        .filter_map(|i| i.operands().1)
        .map(|r| r.0)
        .collect();
    let splat = |r: &Reg| body.operands.contains(&(Key::Input(*r), Kind::Splat));
    let hoisted: Vec<Reg> = entering
        .into_iter()
        .filter(|r| made.contains(&r.0) || splat(r))
        .collect();
    let front = body.lines(target, &before, &hoisted)?;
    let lines = body.lines(target, &inside, &body.outputs)?;
    let mut asm = Asm::new(target.evex);
    let twice = lines.twice();
    let registers = usize::from(asm.registers());
    let in_turns = lines.instructions() >= CHAIN && twice.needs() <= registers + OVER;
    let pair = in_turns.then_some(&twice);
    let lines = (&lines, pair);
    let mut emitter = StageEmitter::new(&mut asm, body, target, &front, lines, &inside, &hoisted);
    emitter.function()?;
    Ok(asm.finish())
}

pub(super) struct StageEmitter<'a> {
    pub asm: &'a mut Asm,
    pub body: &'a Body,
    pub table: Table,
    pub target: Target,
    front: &'a Lines,
    pub lines: &'a Lines,
    /// The code of two groups, if they are emitted together.
    pub pair: Option<&'a Lines>,
    /// The groups of lanes per iteration of the loop.
    pub groups: usize,
    pub reductions: Vec<(Reduction, Reg)>,
    hoisted: Vec<(Reg, LaneLocation)>,
    pub accumulators: Vec<(Reg, Vec<LaneLocation>)>,
    /// The registers that hold nothing permanently.
    pub free: Vec<Vreg>,
    /// The registers for constants.
    constants: Vec<Vreg>,
    /// The place of the mask of the tail's lanes, with VEX.
    mask: Mem,
    pub spills: Mem,
    room: i32,
}

/// Returns the number of registers of a value: two for 64 bits per lane, otherwise one.
pub(super) fn parts(ty: Compute) -> usize {
    if is_wide(ty) { 2 } else { 1 }
}

impl<'a> StageEmitter<'a> {
    fn new(
        asm: &'a mut Asm,
        body: &'a Body,
        target: Target,
        front: &'a Lines,
        (lines, pair): (&'a Lines, Option<&'a Lines>),
        inside: &[Inst],
        hoisted: &[Reg],
    ) -> StageEmitter<'a> {
        let kept = body.block.is_some() || body.steps;
        let reductions: Vec<(Reduction, Reg)> = inside
            .iter()
            .filter_map(|i| match i {
                Inst::Reduce { op, acc, .. } if kept => Some((*op, *acc)),
                _ => None,
            })
            .collect();
        let groups = match reductions.is_empty() {
            false if !body.steps => WIDTH / target.lanes(),
            _ if body.steps && lines.instructions() < CHAIN => 4,
            _ if pair.is_some() || lines.instructions() < CHAIN => 2,
            _ => 1,
        };
        let bytes = target.width().bytes() as i32;
        let mut room = 64;
        let mask = Mem::at(Gpr::RSP);
        let mut memory = |bytes: i32| {
            let at = Mem::at(Gpr::RSP).plus(room);
            room += bytes;
            at
        };
        let all = if target.evex { 32 } else { 16 };
        let mut free: Vec<Vreg> = (0..all).map(Vreg).collect();
        let needs = pair.unwrap_or(lines).needs().max(Lines::MIN_REGISTERS);
        let mut take = |n: usize| {
            let fits = free.len() >= needs + n;
            fits.then(|| free.split_off(free.len() - n))
        };
        let wanted: usize = (reductions.iter())
            .map(|(_, r)| groups * parts(body.registers[usize::from(r.0)]))
            .sum();
        let registers = take(wanted);
        let mut next = registers.into_iter().flatten();
        let accumulators = (reductions.iter())
            .map(|(_, r)| {
                let n = parts(body.registers[usize::from(r.0)]);
                let mut location = || match next.next() {
                    Some(first) => {
                        let second = if n == 2 { next.next() } else { None };
                        let at = [first, second.unwrap_or(first)];
                        LaneLocation::Register { at, last: false }
                    }
                    None => LaneLocation::Vector(memory(bytes * n as i32)),
                };
                (*r, (0..groups).map(|_| location()).collect())
            })
            .collect();
        let hoisted = hoisted
            .iter()
            .map(|r| {
                let ty = body.registers[usize::from(r.0)];
                let n = parts(ty);
                let registers = (ty != Compute::Mask).then(|| take(n)).flatten();
                let location = match registers {
                    Some(at) => LaneLocation::Register {
                        at: [at[0], at[n - 1]],
                        last: false,
                    },
                    None => LaneLocation::Vector(memory(bytes * n as i32)),
                };
                (*r, location)
            })
            .collect();
        let rest = free.len().saturating_sub(needs).min(lines.constants());
        let constants = free.split_off(free.len() - rest);
        let stack = pair.unwrap_or(lines).stack().max(lines.stack());
        let spills = memory(stack.max(front.stack()) as i32);
        // The code that combines accumulators has few values, except with 64 bits.
        memory(64 * 40);
        StageEmitter {
            asm,
            body,
            table: Table::of(body),
            target,
            front,
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
            room,
        }
    }

    fn function(&mut self) -> Result<(), NotEmitted> {
        self.asm.enter(&SAVED, self.room);
        if self.body.steps {
            self.begin_steps();
        }
        let constants = std::mem::take(&mut self.constants);
        let pinned = self.lines.pin(self.asm, &constants);
        let row = self.asm.here();
        self.table.read(self.asm, self.body.operands.len());
        self.asm.mov_number(AT, 0);
        let front = self.front;
        let none = Pinned::default();
        self.code(front, &none, (0, false), None);
        match self.body.block {
            _ if self.body.by_row() => {
                self.steps(&pinned);
                self.next_row(row);
            }
            _ if self.body.steps => self.steps(&pinned),
            Some(block) if !self.reductions.is_empty() => {
                let top = self.asm.here();
                let whole = self.asm.label();
                self.asm.lea(END, Mem::at(AT).plus(block as i32));
                self.asm.cmp(END, LANES);
                self.asm.jump_if(Condition::BelowOrEqual, whole);
                self.asm.mov(END, LANES);
                self.asm.bind(whole);
                self.start();
                self.block(&pinned);
                self.fold()?;
                self.asm.mov(AT, END);
                self.asm.cmp(AT, LANES);
                self.asm.jump_if(Condition::Below, top);
            }
            _ => {
                self.asm.mov(END, LANES);
                self.block(&pinned);
            }
        }
        self.asm.leave(&SAVED, self.room);
        Ok(())
    }

    /// Emits lines for one group of lanes.
    pub(super) fn code(
        &mut self,
        lines: &Lines,
        pinned: &Pinned,
        (group, moves): (usize, bool),
        tail: Option<Tail>,
    ) {
        let mut env = Env {
            body: self.body,
            table: self.table,
            hoisted: &self.hoisted,
            accumulators: &self.accumulators,
            group,
            first: group,
            lanes: self.target.lanes(),
            moves,
            tail: tail.is_some(),
        };
        let memory = (&self.free[..], self.spills);
        lines.emit(self.asm, &mut env, memory, pinned, tail);
    }

    /// Emits the lanes up to the end of the block.
    fn block(&mut self, pinned: &Pinned) {
        let lanes = self.target.lanes();
        let step = (lanes * self.groups) as i32;
        let (tail, done) = (self.asm.label(), self.asm.label());
        self.asm.mov(WHOLE, END);
        self.asm.sub(WHOLE, AT);
        self.asm.and_number(WHOLE, -step);
        self.asm.add(WHOLE, AT);
        self.asm.cmp(AT, WHOLE);
        self.asm.jump_if(Condition::AboveOrEqual, tail);
        self.asm.align(32);
        let top = self.asm.here();
        for group in 0..self.groups {
            self.prefetches(group);
        }
        self.groups(pinned);
        self.asm.add_number(AT, step);
        self.asm.cmp(AT, WHOLE);
        self.asm.jump_if(Condition::Below, top);
        self.asm.bind(tail);
        for group in 0..self.groups {
            self.asm.mov(WHOLE, END);
            self.asm.sub(WHOLE, AT);
            if group > 0 {
                self.asm.add_number(WHOLE, -((group * lanes) as i32));
            }
            self.asm.cmp_number(WHOLE, 0);
            self.asm.jump_if(Condition::LessOrEqual, done);
            let tail = self.tail();
            self.code(self.lines, pinned, (group, true), Some(tail));
        }
        self.asm.bind(done);
    }

    /// Emits lines for the groups of an iteration.
    pub(super) fn groups(&mut self, pinned: &Pinned) {
        for group in 0..self.groups {
            match self.pair {
                None => self.code(self.lines, pinned, (group, true), None),
                Some(pair) if group % 2 == 0 => self.code(pair, pinned, (group, true), None),
                Some(_) => {}
            }
        }
    }

    /// Emits software prefetches of the operands for later, a cache line at a time.
    fn prefetches(&mut self, group: usize) {
        const LINE: usize = 64;
        for (i, (key, _)) in self.body.operands.iter().enumerate() {
            let Key::Prefetch(_) = key else {
                continue;
            };
            let size = self.body.size(*key);
            let bytes = self.target.lanes() * size;
            let from = group * bytes;
            // If a group has less than a line, one of several groups prefetches it.
            if !from.is_multiple_of(LINE) {
                continue;
            }
            let base = self.table.pointer(self.asm, i);
            for line in (0..bytes).step_by(LINE) {
                let at = Mem::at(base).index(AT, size as u8);
                self.asm.prefetch(1, at.plus((from + line) as i32));
            }
        }
    }

    /// Prepares the mask of the remaining lanes, fewer than those of a group.
    pub(super) fn tail(&mut self) -> Tail {
        let free = self.free[0];
        if self.target.evex {
            let (low, high) = (Mask(1), Mask(2));
            let order: Vec<u8> = (0..16i32).flat_map(i32::to_le_bytes).collect();
            let order = self.asm.constant(&order);
            let asm = &mut self.asm;
            asm.op(op::VPBROADCASTD_GPR, Width::Z, (free, WHOLE));
            asm.op(op::VPCMPUD, Width::Z, (low, free, order, 6u8));
            asm.kshiftr(high, low, 8);
            return Tail::Bits { low, high };
        }
        let table: Vec<u8> = (0..16)
            .flat_map(|i| [if i < 8 { 0xff } else { 0u8 }; 4])
            .collect();
        let table = self.asm.constant(&table);
        let asm = &mut self.asm;
        let few = asm.label();
        asm.cmp_number(WHOLE, 8);
        asm.jump_if(Condition::LessOrEqual, few);
        asm.mov_number(WHOLE, 8);
        asm.bind(few);
        asm.lea(SCRATCH, table);
        asm.add_number(SCRATCH, 32);
        for _ in 0..4 {
            asm.sub(SCRATCH, WHOLE);
        }
        asm.op(op::VMOVUPS, Width::Y, (free, Mem::at(SCRATCH)));
        asm.op(op::VMOVUPS_STORE, Width::Y, (self.mask, free));
        Tail::Memory {
            mask: self.mask,
            lanes: WHOLE,
        }
    }
}
