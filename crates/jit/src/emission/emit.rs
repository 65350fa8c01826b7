//! Lowering from vector code with virtual registers to machine code.
//!
//! Code without branches needs one pass of register allocation. If registers are exhausted, the value with the farthest
//! next use is spilled.

use super::ir::{Action, Constant, Form, Ir, Key, Src, Step, Virt};
use super::locations::{LaneLocation, Locations, Tail};
use super::pressure::uses_by_value;
use kiln_kernel::bugs::bug;
use kiln_x86::{Asm, Mask, Mem, Operand, Operands, Vreg, Width, op};

/// The mask registers for values. Masks 1 and 2 hold the tail.
const MASKS: [Mask; 5] = [Mask(3), Mask(4), Mask(5), Mask(6), Mask(7)];

/// The current location of a value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    None,
    Vector(Vreg),
    Mask(Mask),
    Stack(u32),
}

/// An emitter of the machine code of `ir`.
pub(super) struct Emit<'a, P> {
    pub ir: &'a Ir,
    pub asm: &'a mut Asm,
    pub locations: &'a mut P,
    pub tail: Option<Tail>,
    /// The spill area.
    pub stack: Mem,
    /// The constants that are in registers.
    pub pinned: &'a [Option<Vreg>],
    free: Vec<Vreg>,
    pub(super) masks: Vec<Mask>,
    pub(super) values: Vec<Location>,
    /// The steps that use each value, in descending order.
    uses: Vec<Vec<u32>>,
    /// True for values in registers that belong to the caller.
    pub(super) borrowed: Vec<bool>,
    /// The accumulator's register that each value should be computed in.
    pub(super) preferred: Vec<Option<Vreg>>,
    slots: u32,
    free_slots: Vec<u32>,
    /// The registers that only the current step uses.
    pub(super) temporaries: Vec<Vreg>,
    /// The result of the current step, once it has a register.
    defined: Option<Virt>,
}

/// Operands in a list.
struct List([Operand; 4], usize);

impl Operands for List {
    fn list(self) -> ([Operand; 4], usize) {
        (self.0, self.1)
    }
}

/// Loads a constant into a register.
pub(super) fn load_constant(asm: &mut Asm, c: &Constant, width: Width, to: Vreg) {
    match c {
        Constant::Lanes32(0) | Constant::Lanes64(0) => asm.op(op::VXORPS, width, (to, to, to)),
        Constant::Lanes32(x) => {
            let memory = asm.constant(&x.to_le_bytes());
            asm.op(op::VBROADCASTSS, width, (to, memory));
        }
        Constant::Lanes64(x) => {
            let memory = asm.constant(&x.to_le_bytes());
            asm.op(op::VBROADCASTSD, width, (to, memory));
        }
        Constant::Vector(x) => {
            let memory = asm.constant(x);
            asm.op(op::VMOVUPS, width, (to, memory));
        }
    }
}

impl<'a, P: Locations> Emit<'a, P> {
    pub(super) fn new(
        ir: &'a Ir,
        asm: &'a mut Asm,
        locations: &'a mut P,
        free: &[Vreg],
        stack: Mem,
        pinned: &'a [Option<Vreg>],
        tail: Option<Tail>,
    ) -> Emit<'a, P> {
        Emit {
            ir,
            asm,
            locations,
            tail,
            stack,
            pinned,
            free: free.iter().rev().copied().collect(),
            masks: MASKS.into_iter().rev().collect(),
            values: vec![Location::None; ir.masks.len()],
            uses: uses_by_value(ir),
            borrowed: vec![false; ir.masks.len()],
            preferred: vec![None; ir.masks.len()],
            slots: 0,
            free_slots: vec![],
            temporaries: vec![],
            defined: None,
        }
    }

    /// Emits all steps.
    pub(super) fn run(mut self) {
        let ir = self.ir;
        // Values that are stored to an accumulator are computed in its register if possible.
        for step in &ir.steps {
            if let (
                Action::Store {
                    to: key @ Key::Accumulator(_),
                    form,
                },
                Some(Src::Virt(v)),
            ) = (step.action, step.from[0])
                && let LaneLocation::Register { registers, .. } = self.lane_location(key, step)
            {
                self.preferred[v.0 as usize] = Some(registers[form_part(form)]);
            }
        }
        for (i, step) in ir.steps.iter().enumerate() {
            self.emit_step(i as u32, step);
            let temporaries = std::mem::take(&mut self.temporaries);
            self.free.extend(temporaries);
            self.defined = None;
        }
    }

    /// Returns the location of an operand, for the lane group of a step.
    pub(super) fn lane_location(&mut self, key: Key, step: &Step) -> LaneLocation {
        self.locations.select_group(usize::from(step.group));
        self.locations.location(self.asm, key)
    }

    pub(super) fn full_width(&self) -> Width {
        self.ir.target.width()
    }

    fn slot(&self, slot: u32) -> Mem {
        self.stack.plus(slot as i32 * 64)
    }

    fn new_slot(&mut self) -> u32 {
        self.free_slots.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        })
    }

    fn next_use(&self, v: usize, now: u32) -> u32 {
        let next = self.uses[v].iter().rev().find(|u| **u >= now);
        next.copied().unwrap_or(u32::MAX)
    }

    /// Takes a free vector register, or spills a value that is neither `busy` nor the result of the current step.
    pub(super) fn take_register(&mut self, now: u32, busy: &[Option<Src>]) -> Vreg {
        if let Some(r) = self.free.pop() {
            return r;
        }
        let defined = bug("the result of a step is spilled", self.defined, |_| None);
        let is_pinned = |v: usize| {
            let v = Virt(v as u32);
            busy.contains(&Some(Src::Virt(v))) || defined == Some(v)
        };
        let candidates = (0..self.values.len()).filter(|v| {
            matches!(self.values[*v], Location::Vector(_)) && !self.borrowed[*v] && !is_pinned(*v)
        });
        let farthest = candidates.max_by_key(|v| self.next_use(*v, now));
        let Some(v) = farthest else {
            panic!("too few vector registers");
        };
        let Location::Vector(r) = self.values[v] else {
            panic!("a candidate is in a register");
        };
        let slot = self.new_slot();
        let (to, width) = (self.slot(slot), self.full_width());
        self.asm.op(op::VMOVUPS_STORE, width, (to, r));
        self.values[v] = Location::Stack(slot);
        r
    }

    pub(super) fn take_mask(&mut self, now: u32, busy: &[Option<Src>]) -> Mask {
        if let Some(k) = self.masks.pop() {
            return k;
        }
        let is_pinned = |v: usize| busy.contains(&Some(Src::Virt(Virt(v as u32))));
        let candidates = (0..self.values.len())
            .filter(|v| matches!(self.values[*v], Location::Mask(_)) && !is_pinned(*v));
        let farthest = candidates.max_by_key(|v| self.next_use(*v, now));
        let Some(v) = farthest else {
            panic!("too few mask registers");
        };
        let Location::Mask(k) = self.values[v] else {
            panic!("a candidate is in a register");
        };
        let slot = self.new_slot();
        let to = self.slot(slot);
        self.asm.kmov_store(to, k);
        self.values[v] = Location::Stack(slot);
        k
    }

    /// Takes a register until the end of the current step.
    pub(super) fn take_temporary(&mut self, now: u32, busy: &[Option<Src>]) -> Vreg {
        let r = self.take_register(now, busy);
        self.temporaries.push(r);
        r
    }

    /// Reloads a value if it is spilled.
    fn reload(&mut self, v: Virt, now: u32, busy: &[Option<Src>]) {
        let Location::Stack(slot) = self.values[v.0 as usize] else {
            return;
        };
        let from = self.slot(slot);
        self.values[v.0 as usize] = if self.ir.masks[v.0 as usize] {
            let k = self.take_mask(now, busy);
            self.asm.kmov_load(k, from);
            Location::Mask(k)
        } else {
            let r = self.take_register(now, busy);
            let width = self.full_width();
            self.asm.op(op::VMOVUPS, width, (r, from));
            Location::Vector(r)
        };
        self.free_slots.push(slot);
    }

    pub(super) fn vector(&self, v: Virt) -> Vreg {
        match self.values[v.0 as usize] {
            Location::Vector(r) => r,
            at => panic!("a vector is {at:?}"),
        }
    }

    pub(super) fn mask(&self, v: Virt) -> Mask {
        match self.values[v.0 as usize] {
            Location::Mask(k) => k,
            at => panic!("a mask is {at:?}"),
        }
    }

    /// Returns the vector or mask register of a value as an operand.
    pub(super) fn register_operand(&self, v: Virt) -> Operand {
        match self.ir.masks[v.0 as usize] {
            true => self.mask(v).into(),
            false => self.vector(v).into(),
        }
    }

    /// Returns the vector register of a source; constants are loaded if they are not pinned.
    pub(super) fn register(&mut self, s: Src, now: u32, busy: &[Option<Src>]) -> Vreg {
        match s {
            Src::Virt(v) => self.vector(v),
            Src::Const(c) => {
                if let Some(r) = self.pinned[c as usize] {
                    return r;
                }
                let r = self.take_temporary(now, busy);
                let width = self.full_width();
                load_constant(self.asm, &self.ir.constants[c as usize], width, r);
                r
            }
        }
    }

    /// Returns a source as an operand. Constants are read from memory if `memory` allows it.
    pub(super) fn operand(
        &mut self,
        s: Src,
        memory: bool,
        width: Width,
        now: u32,
        busy: &[Option<Src>],
    ) -> Operand {
        match s {
            Src::Virt(v) if self.ir.masks[v.0 as usize] => self.mask(v).into(),
            Src::Const(c) if memory && self.pinned[c as usize].is_none() => {
                let evex = self.ir.target.evex;
                let lanes = width.bytes();
                match &self.ir.constants[c as usize] {
                    Constant::Lanes32(x) if evex => self.asm.constant(&x.to_le_bytes()).broadcast(),
                    Constant::Lanes64(x) if evex => self.asm.constant(&x.to_le_bytes()).broadcast(),
                    Constant::Lanes32(x) => {
                        let bytes = x.to_le_bytes().repeat(lanes / 4);
                        self.asm.constant(&bytes).into()
                    }
                    Constant::Lanes64(x) => {
                        let bytes = x.to_le_bytes().repeat(lanes / 8);
                        self.asm.constant(&bytes).into()
                    }
                    Constant::Vector(x) => self.asm.constant(&x[..lanes]).into(),
                }
            }
            s => self.register(s, now, busy).into(),
        }
    }

    /// True if a value has no use after a step.
    pub(super) fn dies(&self, v: Virt, now: u32) -> bool {
        self.uses[v.0 as usize].first().is_none_or(|u| *u <= now)
    }

    pub(super) fn release(&mut self, v: Virt) {
        match std::mem::replace(&mut self.values[v.0 as usize], Location::None) {
            Location::Vector(r) if !self.borrowed[v.0 as usize] => self.free.push(r),
            Location::Mask(k) => self.masks.push(k),
            Location::Stack(slot) => self.free_slots.push(slot),
            Location::Vector(_) | Location::None => {}
        }
    }

    /// Releases the registers of the sources whose last use is this step.
    pub(super) fn release_dead_sources(&mut self, step: &Step, now: u32) {
        for s in step.from.iter().flatten() {
            if let Src::Virt(v) = s
                && self.dies(*v, now)
            {
                self.release(*v);
            }
        }
    }

    /// Takes a register for the result, after sources with their last use here are released.
    pub(super) fn result_register(&mut self, to: Virt, now: u32, busy: &[Option<Src>]) -> Vreg {
        let r = match self.preferred[to.0 as usize] {
            Some(r) if self.is_unused(r) => {
                self.borrowed[to.0 as usize] = true;
                r
            }
            _ => self.take_register(now, busy),
        };
        self.assign_register(to, r);
        r
    }

    /// True if no value is in a register of the caller.
    pub(super) fn is_unused(&self, r: Vreg) -> bool {
        !self.values.contains(&Location::Vector(r))
    }

    pub(super) fn assign_register(&mut self, to: Virt, r: Vreg) {
        self.values[to.0 as usize] = Location::Vector(r);
        self.defined = Some(to);
        if self.uses[to.0 as usize].is_empty() {
            self.release(to);
        }
    }

    /// Emits one step; `now` is its index.
    fn emit_step(&mut self, now: u32, step: &Step) {
        let busy = &step.from;
        for s in busy.iter().flatten() {
            if let Src::Virt(v) = s {
                self.reload(*v, now, busy);
            }
        }
        match step.action {
            Action::Op {
                op,
                width,
                immediate,
                memory,
                tied: false,
            } => {
                let count = busy.iter().flatten().count();
                let mut operands = [Operand::Immediate(0); 4];
                for (i, s) in busy.iter().flatten().enumerate() {
                    let memory = memory && i + 1 == count;
                    operands[i + 1] = self.operand(*s, memory, width, now, busy);
                }
                let mut n = count + 1;
                if let Some(x) = immediate {
                    operands[n] = Operand::Immediate(x);
                    n += 1;
                }
                self.release_dead_sources(step, now);
                operands[0] = self.destination(step, now, busy);
                self.asm.op(op, width, List(operands, n));
            }
            Action::Op {
                op,
                width,
                tied: true,
                ..
            } => self.emit_tied(op, width, step, now),
            Action::Fma { negated, wide } => self.emit_fma(negated, wide, step, now),
            Action::Blend { wide } => self.emit_blend(wide, step, now),
            Action::Masks(mask_op) => {
                let [a, b] = [0, 1].map(|i| self.mask_source(step, i));
                self.release_dead_sources(step, now);
                let to = self.mask_result(step, now);
                self.asm.mask_op(mask_op, to, a, b);
            }
            Action::UpperBits => {
                let a = self.mask_source(step, 0);
                self.release_dead_sources(step, now);
                let to = self.mask_result(step, now);
                self.asm.kshiftr(to, a, 8);
            }
            Action::JoinBits => {
                let [low, high] = [0, 1].map(|i| self.mask_source(step, i));
                self.release_dead_sources(step, now);
                let to = self.mask_result(step, now);
                self.asm.kunpack(to, high, low);
            }
            Action::Load { from, form } => self.emit_load(from, form, step, now),
            Action::Store { to, form } => self.emit_store(to, form, step, now),
            Action::Gather { from, wide } => self.emit_gather(from, wide, step, now),
            Action::Call(native) => self.emit_call(native, step, now),
            Action::Fill { op, wide, float } => self.emit_fill((op, wide, float), step, now),
        }
    }

    fn mask_source(&self, step: &Step, i: usize) -> Mask {
        match step.from[i] {
            Some(Src::Virt(v)) => self.mask(v),
            s => panic!("a mask is {s:?}"),
        }
    }

    pub(super) fn mask_result(&mut self, step: &Step, now: u32) -> Mask {
        let Some(to) = step.to else {
            panic!("the step has no result");
        };
        let k = self.take_mask(now, &[]);
        self.values[to.0 as usize] = Location::Mask(k);
        if self.uses[to.0 as usize].is_empty() {
            self.release(to);
        }
        k
    }

    pub(super) fn destination(&mut self, step: &Step, now: u32, busy: &[Option<Src>]) -> Operand {
        let Some(to) = step.to else {
            panic!("the step has no result");
        };
        if self.ir.masks[to.0 as usize] {
            return self.mask_result(step, now).into();
        }
        // The instruction reads its sources before it writes, so its result may use their registers.
        let busy = if busy.iter().flatten().count() > 0 {
            busy
        } else {
            &[]
        };
        self.result_register(to, now, busy).into()
    }

    fn emit_load(&mut self, key: Key, form: Form, step: &Step, now: u32) {
        let mut location = self.lane_location(key, step);
        let Some(to) = step.to else {
            panic!("a load has no result");
        };
        if let Some(Src::Virt(bytes)) = step.from[0] {
            let slot = self.new_slot();
            let (address, bytes) = (self.slot(slot), self.vector(bytes));
            self.asm.op(op::VMOVSD_STORE, Width::X, (address, bytes));
            location = LaneLocation::Vector(self.locations.address_at(self.asm, key, address));
            self.free_slots.push(slot);
            self.release_dead_sources(step, now);
        }
        if let LaneLocation::Register { registers, last } = location {
            self.values[to.0 as usize] = Location::Vector(registers[form_part(form)]);
            self.borrowed[to.0 as usize] = !last;
            return;
        }
        if form == Form::Bits {
            let k = self.mask_result(step, now);
            let r = self.take_temporary(now, &[]);
            self.load_bits(location, k, r);
            return;
        }
        let r = self.result_register(to, now, &[]);
        self.load_vector(location, form, r, now);
    }

    fn emit_store(&mut self, key: Key, form: Form, step: &Step, now: u32) {
        let Some(value) = step.from[0] else {
            panic!("a store has no source");
        };
        let location = self.lane_location(key, step);
        if let LaneLocation::Register { registers, .. } = location {
            let from = self.register(value, now, &step.from);
            let to = registers[form_part(form)];
            if from != to {
                let width = self.full_width();
                self.asm.op(op::VMOVAPS, width, (to, from));
            }
        } else if form == Form::Bits {
            let k = self.mask_source(step, 0);
            let r = self.take_temporary(now, &step.from);
            self.store_bits(location, k, r);
        } else {
            let from = self.register(value, now, &step.from);
            self.store_vector(location, form, from, now, &step.from);
        }
        self.release_dead_sources(step, now);
    }
}

/// Returns the index of the register of a value that a form loads or stores.
pub(super) fn form_part(form: Form) -> usize {
    match form {
        Form::Double(p) | Form::Unsigned(p) => usize::from(p),
        _ => 0,
    }
}
