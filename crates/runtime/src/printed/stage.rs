//! Loops over the lanes of a tile.
//!
//! A printed function is called with a table of addresses, one for each of its operands, and a number of lanes. What
//! is the same for all lanes is computed in front of the loop. Reductions across lanes have 64 lanes of accumulators,
//! which are combined after each block and added to the state of the row, in the order of the interpreter.

use super::Target;
use super::emit::{identity, load_constant};
use super::ir::{Form, Ir, Src, Virt};
use super::lines::{About, Key, Lines, Pinned, Place, Places, Tail, Unprintable, Value, is_wide};
use super::primitive::binary;
use hashbrown::HashSet;
use kiln_base::prim::Reduction;
use kiln_base::{Compute, DType, Scalar};
use kiln_plan::tile::{Inst, Reg};
use kiln_x86::{Asm, Condition, Gpr, Mask, Mem, Vreg, Width, op};

/// How the elements of an operand lie.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Side by side, an element a lane.
    Line,
    /// The same, written past the cache: the first is aligned to a cache line where a call is.
    Stream,
    /// One element for all lanes.
    Splat,
    /// The running value of a reduction across lanes.
    State,
}

/// What is printed: instructions with registers and accesses of their own numbering, each register written once.
#[derive(Clone, Debug, Default)]
pub(crate) struct Body {
    /// The type of each register.
    pub registers: Vec<Compute>,
    pub constants: Vec<(Reg, Scalar)>,
    /// The types of row slots.
    pub slots: Vec<Compute>,
    /// The dtype of each access.
    pub dtypes: Vec<DType>,
    pub code: Vec<Inst>,
    /// Registers that are read elsewhere.
    pub outputs: Vec<Reg>,
    /// The operands, in the order of the table.
    pub operands: Vec<(Key, Kind)>,
    /// Lanes of a block, where reductions are across lanes.
    pub block: Option<u32>,
}

/// Lanes of accumulators that a reduction across lanes has.
const WIDTH: usize = 64;

/// The table, how many lanes there are, the lane at hand, where a block ends, and where its whole groups do or, in
/// its tail, how many lanes are left.
const TABLE: Gpr = Gpr::RDI;
const LANES: Gpr = Gpr::RSI;
const AT: Gpr = Gpr::RAX;
const END: Gpr = Gpr::RDX;
const WHOLE: Gpr = Gpr::R14;
/// For the addresses of operands that have no register.
const SCRATCH: Gpr = Gpr::R15;
/// For those of the others.
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

impl Body {
    fn about<R>(&self, f: impl FnOnce(&About) -> R) -> R {
        f(&About {
            registers: &self.registers,
            constants: &self.constants,
            slots: &self.slots,
            dtypes: &|access| self.dtypes[usize::from(access)],
        })
    }

    pub(crate) fn lines(
        &self,
        target: Target,
        code: &[Inst],
        outputs: &[Reg],
    ) -> Result<Lines, Unprintable> {
        self.about(|about| Lines::new(target, about, code, outputs))
    }

    /// All that the code depends on, as bytes.
    pub(crate) fn key(&self, target: Target) -> Vec<u8> {
        let mut key = vec![b's', u8::from(target.evex)];
        #[cfg(test)]
        key.push(super::bugs::mark());
        let mut number = |n: u64| key.extend((n as u32).to_le_bytes());
        number(self.registers.len() as u64);
        self.registers.iter().for_each(|t| number(*t as u64));
        number(self.constants.len() as u64);
        for (r, x) in &self.constants {
            let ty = self.registers[usize::from(r.0)];
            let bits = crate::tile::scalar_bits(*x, ty);
            number(u64::from(r.0));
            number(bits);
            number(bits >> 32);
        }
        number(self.slots.len() as u64);
        self.slots.iter().for_each(|t| number(*t as u64));
        number(self.dtypes.len() as u64);
        self.dtypes.iter().for_each(|t| number(*t as u64));
        number(self.outputs.len() as u64);
        self.outputs.iter().for_each(|r| number(u64::from(r.0)));
        number(self.operands.len() as u64);
        for (key, kind) in &self.operands {
            let (tag, n) = match *key {
                Key::Access(n) => (0, n),
                Key::Slot(n) => (1, n),
                Key::Input(r) => (2, r.0),
                Key::Output(r) => (3, r.0),
                Key::Accumulator(r) => (4, r.0),
                Key::Ahead(n) => (5, n),
            };
            number(tag);
            number(u64::from(n));
            number(*kind as u64);
        }
        number(self.block.map_or(0, u64::from));
        for inst in &self.code {
            let mut list = |list: &[u64]| list.iter().for_each(|n| number(*n));
            let r = |r: &Reg| u64::from(r.0);
            match inst {
                Inst::Load { dst, access } => list(&[0, r(dst), u64::from(*access)]),
                Inst::Store { access, src } => list(&[1, u64::from(*access), r(src)]),
                Inst::Unary { op, dst, a } => list(&[2, *op as u64, r(dst), r(a)]),
                Inst::Binary { op, dst, a, b, .. } => list(&[3, *op as u64, r(dst), r(a), r(b)]),
                Inst::Select { dst, mask, a, b } => list(&[4, r(dst), r(mask), r(a), r(b)]),
                Inst::Convert { dst, a, from, to } => {
                    list(&[5, r(dst), r(a), *from as u64, *to as u64]);
                }
                Inst::Reduce { op, acc, a } => list(&[6, *op as u64, r(acc), r(a)]),
                Inst::Keep { slot, src } => list(&[7, u64::from(*slot), r(src)]),
                Inst::Kept { dst, slot } => list(&[8, r(dst), u64::from(*slot)]),
                // These are not printed.
                Inst::LoadAt { .. }
                | Inst::Index { .. }
                | Inst::Random { .. }
                | Inst::ArgReduce { .. } => list(&[9]),
            }
        }
        key
    }

    /// The code in front of the loop, and that in it.
    fn split(&self) -> (Vec<Inst>, Vec<Inst>) {
        let mut same: HashSet<u16> = self.constants.iter().map(|(r, _)| r.0).collect();
        let splat = |key: Key| self.operands.contains(&(key, Kind::Splat));
        for r in 0..self.registers.len() as u16 {
            if splat(Key::Input(Reg(r))) {
                same.insert(r);
            }
        }
        let of_one = |same: &HashSet<u16>, list: &[&Reg]| list.iter().all(|r| same.contains(&r.0));
        self.code.iter().cloned().partition(|inst| {
            let (dst, once) = match inst {
                Inst::Load { dst, access } => (dst, splat(Key::Access(*access))),
                Inst::Unary { dst, a, .. } | Inst::Convert { dst, a, .. } => {
                    (dst, of_one(&same, &[a]))
                }
                Inst::Binary { dst, a, b, .. } => (dst, of_one(&same, &[a, b])),
                Inst::Select { dst, mask, a, b } => (dst, of_one(&same, &[mask, a, b])),
                _ => return false,
            };
            if once {
                same.insert(dst.0);
            }
            once
        })
    }

    /// Registers that `code` reads before it writes them, constants excepted.
    fn entering(&self, code: &[Inst], outputs: &[Reg]) -> Vec<Reg> {
        let mut written: HashSet<u16> = self.constants.iter().map(|(r, _)| r.0).collect();
        let mut found = vec![];
        let mut read = |r: &Reg, written: &mut HashSet<u16>| {
            if written.insert(r.0) {
                found.push(*r);
            }
        };
        for inst in code {
            let (reads, writes) = crate::tile::operands(inst);
            reads.iter().for_each(|r| read(r, &mut written));
            if let (Some(w), false) = (writes, matches!(inst, Inst::Reduce { .. })) {
                written.insert(w.0);
            }
        }
        outputs.iter().for_each(|r| read(r, &mut written));
        found
    }
}

/// Where things are at one place of the code.
struct Env<'a> {
    body: &'a Body,
    /// Values of the code in front of the loop.
    hoisted: &'a [(Reg, Place)],
    /// Those of each group, in the order of the reductions.
    accumulators: &'a [(Reg, Vec<Place>)],
    group: usize,
    /// The first of those that are printed together.
    first: usize,
    lanes: usize,
    /// Whether operands move with the lane.
    moves: bool,
    tail: bool,
}

impl Places for Env<'_> {
    fn turn(&mut self, group: usize) {
        self.group = self.first + group;
    }

    fn place(&mut self, asm: &mut Asm, key: Key) -> Place {
        if let Key::Input(r) | Key::Output(r) = key
            && let Some((_, place)) = self.hoisted.iter().find(|(h, _)| *h == r)
            && matches!(key, Key::Input(_)) == self.moves
        {
            return *place;
        }
        if let Key::Accumulator(r) = key
            && let Some((_, groups)) = self.accumulators.iter().find(|(a, _)| *a == r)
        {
            return groups[self.group];
        }
        let found = self.body.operands.iter().position(|(k, _)| *k == key);
        let Some(i) = found else {
            panic!("{key:?} is no operand");
        };
        let base = pointer(asm, i);
        let kind = self.body.operands[i].1;
        if kind == Kind::Splat {
            return Place::Splat(Mem::at(base));
        }
        let size = self.body.size(key);
        let at = Mem::at(base).index(AT, size as u8);
        let at = at.plus((self.group * self.lanes * size) as i32);
        match kind {
            Kind::Stream if !self.tail => Place::Stream(at),
            _ => Place::Vector(at),
        }
    }
}

/// A register with the address of operand `i`.
fn pointer(asm: &mut Asm, i: usize) -> Gpr {
    match POINTERS.get(i) {
        Some(r) => *r,
        None => {
            asm.mov(SCRATCH, Mem::at(TABLE).plus(8 * i as i32));
            SCRATCH
        }
    }
}

impl Body {
    /// Bytes of an element.
    pub(crate) fn size(&self, key: Key) -> usize {
        match key {
            Key::Access(a) | Key::Ahead(a) => self.dtypes[usize::from(a)].size(),
            Key::Slot(s) => self.slots[usize::from(s)].size(),
            Key::Input(r) | Key::Output(r) | Key::Accumulator(r) => {
                self.registers[usize::from(r.0)].size()
            }
        }
    }
}

/// Code from this length on is of two groups, step by step in turns.
const CHAIN: usize = 12;

/// How many more registers that may want than there are.
const OVER: usize = 4;

/// The code of a function over lanes.
///
/// # Errors
/// If something in it is not printed.
pub(crate) fn print(body: &Body, target: Target) -> Result<Vec<u8>, Unprintable> {
    let (before, inside) = body.split();
    let entering = body.entering(&inside, &body.outputs);
    let made: HashSet<u16> = before
        .iter()
        .filter_map(|i| crate::tile::operands(i).1)
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
    let in_turns = lines.len() >= CHAIN && twice.needs() <= registers + OVER;
    let pair = in_turns.then_some(&twice);
    let lines = (&lines, pair);
    let mut printer = Printer::new(&mut asm, body, target, &front, lines, &inside, &hoisted);
    printer.function()?;
    Ok(asm.finish())
}

struct Printer<'a> {
    asm: &'a mut Asm,
    body: &'a Body,
    target: Target,
    front: &'a Lines,
    lines: &'a Lines,
    /// Those of two groups, if they are printed together.
    pair: Option<&'a Lines>,
    /// Groups of lanes in a turn of the loop.
    groups: usize,
    reductions: Vec<(Reduction, Reg)>,
    hoisted: Vec<(Reg, Place)>,
    accumulators: Vec<(Reg, Vec<Place>)>,
    /// Registers that nothing stays in.
    free: Vec<Vreg>,
    /// Registers for constants.
    constants: Vec<Vreg>,
    /// Where the tail's lanes are, with VEX.
    mask: Mem,
    spills: Mem,
    room: i32,
}

/// The types of two registers' elements are as wide as a vector has 64 bits.
fn parts(ty: Compute) -> usize {
    if is_wide(ty) { 2 } else { 1 }
}

impl<'a> Printer<'a> {
    fn new(
        asm: &'a mut Asm,
        body: &'a Body,
        target: Target,
        front: &'a Lines,
        (lines, pair): (&'a Lines, Option<&'a Lines>),
        inside: &[Inst],
        hoisted: &[Reg],
    ) -> Printer<'a> {
        let across = body.block.is_some();
        let reductions: Vec<(Reduction, Reg)> = inside
            .iter()
            .filter_map(|i| match i {
                Inst::Reduce { op, acc, .. } if across => Some((*op, *acc)),
                _ => None,
            })
            .collect();
        let groups = match reductions.is_empty() {
            false => WIDTH / target.lanes(),
            true if pair.is_some() || lines.len() < CHAIN => 2,
            true => 1,
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
        let needs = pair.unwrap_or(lines).needs().max(Lines::LEAST);
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
                let mut place = || match next.next() {
                    Some(first) => {
                        let second = if n == 2 { next.next() } else { None };
                        let at = [first, second.unwrap_or(first)];
                        Place::Register { at, last: false }
                    }
                    None => Place::Vector(memory(bytes * n as i32)),
                };
                (*r, (0..groups).map(|_| place()).collect())
            })
            .collect();
        let hoisted = hoisted
            .iter()
            .map(|r| {
                let ty = body.registers[usize::from(r.0)];
                let n = parts(ty);
                let registers = (ty != Compute::Mask).then(|| take(n)).flatten();
                let place = match registers {
                    Some(at) => Place::Register {
                        at: [at[0], at[n - 1]],
                        last: false,
                    },
                    None => Place::Vector(memory(bytes * n as i32)),
                };
                (*r, place)
            })
            .collect();
        let rest = free.len().saturating_sub(needs).min(lines.constants());
        let constants = free.split_off(free.len() - rest);
        let stack = pair.unwrap_or(lines).stack().max(lines.stack());
        let spills = memory(stack.max(front.stack()) as i32);
        // The code that combines accumulators has few values, but for those of 64 bits.
        memory(64 * 40);
        Printer {
            asm,
            body,
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

    fn function(&mut self) -> Result<(), Unprintable> {
        self.asm.enter(&SAVED, self.room);
        for (i, r) in POINTERS.iter().enumerate().take(self.body.operands.len()) {
            self.asm.mov(*r, Mem::at(TABLE).plus(8 * i as i32));
        }
        let front = self.front;
        let none = Pinned::default();
        self.code(front, &none, (0, false), None);
        let constants = std::mem::take(&mut self.constants);
        let pinned = self.lines.pin(self.asm, &constants);
        self.asm.mov_number(AT, 0);
        match self.body.block {
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

    /// Prints lines for one group of lanes.
    fn code(
        &mut self,
        lines: &Lines,
        pinned: &Pinned,
        (group, moves): (usize, bool),
        tail: Option<Tail>,
    ) {
        let mut env = Env {
            body: self.body,
            hoisted: &self.hoisted,
            accumulators: &self.accumulators,
            group,
            first: group,
            lanes: self.target.lanes(),
            moves,
            tail: tail.is_some(),
        };
        let memory = (&self.free[..], self.spills);
        lines.print(self.asm, &mut env, memory, pinned, tail);
    }

    /// The lanes up to the end of the block.
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
        let lines = self.lines;
        for group in 0..self.groups {
            self.ahead(group);
            match self.pair {
                None => self.code(lines, pinned, (group, true), None),
                Some(pair) if group % 2 == 0 => self.code(pair, pinned, (group, true), None),
                Some(_) => {}
            }
        }
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
            self.code(lines, pinned, (group, true), Some(tail));
        }
        self.asm.bind(done);
    }

    /// Asks for what is wanted later, a cache line at a time.
    fn ahead(&mut self, group: usize) {
        const LINE: usize = 64;
        for (i, (key, _)) in self.body.operands.iter().enumerate() {
            let Key::Ahead(_) = key else {
                continue;
            };
            let size = self.body.size(*key);
            let bytes = self.target.lanes() * size;
            let from = group * bytes;
            // Where a group has less than a line, one of several groups asks for it.
            if !from.is_multiple_of(LINE) {
                continue;
            }
            let base = pointer(self.asm, i);
            for line in (0..bytes).step_by(LINE) {
                let at = Mem::at(base).index(AT, size as u8);
                self.asm.prefetch(1, at.plus((from + line) as i32));
            }
        }
    }

    /// The lanes that are left, up to those of a group.
    fn tail(&mut self) -> Tail {
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
        asm.lea(SCRATCH, table.plus(32));
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

    /// Accumulators become what changes nothing.
    fn start(&mut self) {
        let width = self.target.width();
        for ((op, r), (_, groups)) in self.reductions.iter().zip(&self.accumulators) {
            let ty = self.body.registers[usize::from(r.0)];
            let constant = identity(*op, is_wide(ty), ty.is_float());
            let source = match groups[0] {
                Place::Register { at, .. } => at[0],
                _ => self.free[0],
            };
            load_constant(self.asm, &constant, width, source);
            for place in groups {
                for part in 0..parts(ty) {
                    match place {
                        Place::Register { at, .. } if at[part] != source => {
                            self.asm.op(op::VMOVAPS, width, (at[part], source));
                        }
                        Place::Register { .. } => {}
                        Place::Vector(m) => {
                            let m = m.plus((part * width.bytes()) as i32);
                            self.asm.op(op::VMOVUPS_STORE, width, (m, source));
                        }
                        _ => panic!("accumulators are in registers or memory"),
                    }
                }
            }
        }
    }

    /// Combines the lanes of each reduction, and adds the result to its state.
    fn fold(&mut self) -> Result<(), Unprintable> {
        let accumulators = std::mem::take(&mut self.accumulators);
        for ((op, r), (_, groups)) in self.reductions.iter().zip(&accumulators) {
            let ty = self.body.registers[usize::from(r.0)];
            let ir = fold(self.target, *op, ty, self.groups)?;
            let state = Key::Accumulator(*r);
            let Some(i) = self.body.operands.iter().position(|(k, _)| *k == state) else {
                panic!("a reduction without a state");
            };
            let mut places = FoldPlaces { groups, operand: i };
            let stack = (&self.free[..], self.spills);
            super::emit::Emit::new(
                &ir,
                self.asm,
                &mut places,
                stack.0,
                stack.1,
                &vec![None; ir.constants.len()],
                None,
            )
            .run();
        }
        self.accumulators = accumulators;
        Ok(())
    }
}

/// Accumulators of group `n` are slot `n`, the state is the output.
struct FoldPlaces<'a> {
    groups: &'a [Place],
    operand: usize,
}

impl Places for FoldPlaces<'_> {
    fn place(&mut self, asm: &mut Asm, key: Key) -> Place {
        match key {
            Key::Slot(group) => self.groups[usize::from(group)],
            Key::Input(_) => Place::Splat(Mem::at(pointer(asm, self.operand))),
            _ => Place::Vector(Mem::at(pointer(asm, self.operand))),
        }
    }
}

/// Combines 64 lanes with those half of them further on, and so on, and the last with the state.
fn fold(target: Target, op: Reduction, ty: Compute, groups: usize) -> Result<Ir, Unprintable> {
    let mut ir = Ir::new(target);
    let wide = is_wide(ty);
    let combine = |ir: &mut Ir, a: Src, b: Src| -> Result<Src, Unprintable> {
        // One register of a value that may have two.
        let of = |part: Src| Value {
            ty,
            parts: [part, part],
        };
        Ok(binary(ir, op.combine(), of(a), of(b))?.parts[0])
    };
    let form = |p: u8| match wide {
        true => Form::Double(p),
        false => Form::Word,
    };
    let mut vectors: Vec<Src> = vec![];
    for group in 0..groups as u16 {
        for p in 0..parts(ty) as u8 {
            vectors.push(ir.load(Key::Slot(group), form(p), false).into());
        }
    }
    while vectors.len() > 1 {
        let upper = vectors.split_off(vectors.len() / 2);
        for (a, b) in vectors.iter_mut().zip(upper) {
            *a = combine(&mut ir, *a, b)?;
        }
    }
    let mut sum = vectors[0];
    if target.evex {
        let upper = ir.upper(sum);
        sum = combine(&mut ir, sum, upper.into())?;
    }
    let upper = ir.op1_of(op::VEXTRACT128, Width::Y, Some(1), sum);
    sum = combine(&mut ir, sum, upper.into())?;
    for order in if wide { &[0x0E][..] } else { &[0x0E, 0x01] } {
        let other = ir.op1_of(op::VPERMILPS, Width::X, Some(*order), sum);
        sum = combine(&mut ir, sum, other.into())?;
    }
    let state = Key::Input(Reg(0));
    let total: Virt = if op == Reduction::Sum && ty == Compute::F32 {
        let sum = ir.op1_of(op::VCVTPS2PD, Width::X, None, sum);
        let before = ir.load(state, Form::Double(0), false);
        ir.op2(op::VADDPD, before, sum)
    } else {
        let before = ir.load(state, form(0), false);
        match combine(&mut ir, before.into(), sum)? {
            Src::Virt(v) => v,
            Src::Const(_) => return Err(Unprintable),
        }
    };
    ir.store(Key::Output(Reg(0)), Form::Bytes, total.into());
    Ok(ir)
}
