//! Lowering from vector code with virtual registers to machine code.
//!
//! The code has no branches, so registers are allocated in one pass. If there are too few, the value whose next use is
//! farthest is spilled.

use super::ir::{Constant, Do, Form, Ir, Key, Src, Step, Virt};
use super::locations::{LaneLocation, Locations, Tail};
use super::pressure::uses;
use kiln_kernel::bugs::bug;
use kiln_x86::{Asm, Mask, Mem, Operand, Operands, Vreg, Width, op};

/// The masks that code uses; those before are the tail's.
const MASKS: [Mask; 5] = [Mask(3), Mask(4), Mask(5), Mask(6), Mask(7)];

/// The location of a value.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum At {
    Nowhere,
    Vector(Vreg),
    Mask(Mask),
    Stack(u32),
}

/// Emits the code of `ir`.
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
    pub(super) at: Vec<At>,
    /// The steps that use each value, the last first.
    uses: Vec<Vec<u32>>,
    /// True for values in registers that belong to the caller.
    pub(super) borrowed: Vec<bool>,
    /// The register that each value must be in at the end.
    pub(super) wanted: Vec<Option<Vreg>>,
    slots: u32,
    free_slots: Vec<u32>,
    /// The registers that only the current step uses; and the value that it produces, once that has a register.
    pub(super) temporary: Vec<Vreg>,
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
            let at = asm.constant(&x.to_le_bytes());
            asm.op(op::VBROADCASTSS, width, (to, at));
        }
        Constant::Lanes64(x) => {
            let at = asm.constant(&x.to_le_bytes());
            asm.op(op::VBROADCASTSD, width, (to, at));
        }
        Constant::Vector(x) => {
            let at = asm.constant(x);
            asm.op(op::VMOVUPS, width, (to, at));
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
            at: vec![At::Nowhere; ir.masks.len()],
            uses: uses(ir),
            borrowed: vec![false; ir.masks.len()],
            wanted: vec![None; ir.masks.len()],
            slots: 0,
            free_slots: vec![],
            temporary: vec![],
            defined: None,
        }
    }

    /// Emits all steps.
    pub(super) fn run(mut self) {
        let ir = self.ir;
        // Values that are stored to an accumulator are computed in its register.
        for step in &ir.steps {
            if let (
                Do::Store {
                    to: key @ Key::Accumulator(_),
                    form,
                },
                Some(Src::Virt(v)),
            ) = (step.what, step.from[0])
                && let LaneLocation::Register { at, .. } = self.find(key, step)
            {
                self.wanted[v.0 as usize] = Some(at[part(form)]);
            }
        }
        for (i, step) in ir.steps.iter().enumerate() {
            self.step(i as u32, step);
            let temporary = std::mem::take(&mut self.temporary);
            self.free.extend(temporary);
            self.defined = None;
        }
    }

    /// Returns the place of an operand, for the group of lanes that a step belongs to.
    pub(super) fn find(&mut self, key: Key, step: &Step) -> LaneLocation {
        self.locations.select_group(usize::from(step.group));
        self.locations.location(self.asm, key)
    }

    pub(super) fn full(&self) -> Width {
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

    /// Returns a free vector register. It does not spill `busy` values, or the current step's result.
    pub(super) fn take(&mut self, now: u32, busy: &[Option<Src>]) -> Vreg {
        if let Some(r) = self.free.pop() {
            return r;
        }
        let defined = bug("what is made goes to the stack", self.defined, |_| None);
        let stays = |v: usize| {
            let v = Virt(v as u32);
            busy.contains(&Some(Src::Virt(v))) || defined == Some(v)
        };
        let candidates = (0..self.at.len())
            .filter(|v| matches!(self.at[*v], At::Vector(_)) && !self.borrowed[*v] && !stays(*v));
        let last = candidates.max_by_key(|v| self.next_use(*v, now));
        let Some(v) = last else {
            panic!("too few vector registers");
        };
        let At::Vector(r) = self.at[v] else {
            panic!("a candidate is in a register");
        };
        let slot = self.new_slot();
        let (to, width) = (self.slot(slot), self.full());
        self.asm.op(op::VMOVUPS_STORE, width, (to, r));
        self.at[v] = At::Stack(slot);
        r
    }

    pub(super) fn take_mask(&mut self, now: u32, busy: &[Option<Src>]) -> Mask {
        if let Some(k) = self.masks.pop() {
            return k;
        }
        let stays = |v: usize| busy.contains(&Some(Src::Virt(Virt(v as u32))));
        let candidates =
            (0..self.at.len()).filter(|v| matches!(self.at[*v], At::Mask(_)) && !stays(*v));
        let last = candidates.max_by_key(|v| self.next_use(*v, now));
        let Some(v) = last else {
            panic!("too few mask registers");
        };
        let At::Mask(k) = self.at[v] else {
            panic!("a candidate is in a register");
        };
        let slot = self.new_slot();
        let to = self.slot(slot);
        self.asm.kmov_store(to, k);
        self.at[v] = At::Stack(slot);
        k
    }

    /// Returns a register for the current step alone.
    pub(super) fn temporary(&mut self, now: u32, busy: &[Option<Src>]) -> Vreg {
        let r = self.take(now, busy);
        self.temporary.push(r);
        r
    }

    /// Reloads a value if it is spilled.
    fn bring(&mut self, v: Virt, now: u32, busy: &[Option<Src>]) {
        let At::Stack(slot) = self.at[v.0 as usize] else {
            return;
        };
        let from = self.slot(slot);
        self.at[v.0 as usize] = if self.ir.masks[v.0 as usize] {
            let k = self.take_mask(now, busy);
            self.asm.kmov_load(k, from);
            At::Mask(k)
        } else {
            let r = self.take(now, busy);
            let width = self.full();
            self.asm.op(op::VMOVUPS, width, (r, from));
            At::Vector(r)
        };
        self.free_slots.push(slot);
    }

    pub(super) fn vector(&self, v: Virt) -> Vreg {
        match self.at[v.0 as usize] {
            At::Vector(r) => r,
            at => panic!("a vector is {at:?}"),
        }
    }

    pub(super) fn mask(&self, v: Virt) -> Mask {
        match self.at[v.0 as usize] {
            At::Mask(k) => k,
            at => panic!("a mask is {at:?}"),
        }
    }

    /// Returns a value's register, as an operand of its kind.
    pub(super) fn operand_of(&self, v: Virt) -> Operand {
        match self.ir.masks[v.0 as usize] {
            true => self.mask(v).into(),
            false => self.vector(v).into(),
        }
    }

    /// Returns a source in a register.
    pub(super) fn register(&mut self, s: Src, now: u32, busy: &[Option<Src>]) -> Vreg {
        match s {
            Src::Virt(v) => self.vector(v),
            Src::Const(c) => {
                if let Some(r) = self.pinned[c as usize] {
                    return r;
                }
                let r = self.temporary(now, busy);
                let width = self.full();
                load_constant(self.asm, &self.ir.constants[c as usize], width, r);
                r
            }
        }
    }

    /// Returns a source as an operand, which may be memory.
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

    /// True if a value is not used after a step.
    pub(super) fn dies(&self, v: Virt, now: u32) -> bool {
        self.uses[v.0 as usize].first().is_none_or(|u| *u <= now)
    }

    pub(super) fn release(&mut self, v: Virt) {
        match std::mem::replace(&mut self.at[v.0 as usize], At::Nowhere) {
            At::Vector(r) if !self.borrowed[v.0 as usize] => self.free.push(r),
            At::Mask(k) => self.masks.push(k),
            At::Stack(slot) => self.free_slots.push(slot),
            At::Vector(_) | At::Nowhere => {}
        }
    }

    /// Releases the registers of the sources whose last use is this step.
    pub(super) fn end(&mut self, step: &Step, now: u32) {
        for s in step.from.iter().flatten() {
            if let Src::Virt(v) = s
                && self.dies(*v, now)
            {
                self.release(*v);
            }
        }
    }

    /// Returns a register for the result. Sources with their last use here are already released.
    pub(super) fn result(&mut self, to: Virt, now: u32, busy: &[Option<Src>]) -> Vreg {
        let r = match self.wanted[to.0 as usize] {
            Some(r) if self.is_unused(r) => {
                self.borrowed[to.0 as usize] = true;
                r
            }
            _ => self.take(now, busy),
        };
        self.location(to, r);
        r
    }

    /// True if no value is in a register of the caller's.
    pub(super) fn is_unused(&self, r: Vreg) -> bool {
        !self.at.contains(&At::Vector(r))
    }

    pub(super) fn location(&mut self, to: Virt, r: Vreg) {
        self.at[to.0 as usize] = At::Vector(r);
        self.defined = Some(to);
        if self.uses[to.0 as usize].is_empty() {
            self.release(to);
        }
    }

    fn step(&mut self, now: u32, step: &Step) {
        let busy = &step.from;
        for s in busy.iter().flatten() {
            if let Src::Virt(v) = s {
                self.bring(*v, now, busy);
            }
        }
        match step.what {
            Do::Op {
                op,
                width,
                immediate,
                memory,
                tied: false,
            } => {
                let count = busy.iter().flatten().count();
                let mut list = [Operand::Immediate(0); 4];
                for (i, s) in busy.iter().flatten().enumerate() {
                    let memory = memory && i + 1 == count;
                    list[i + 1] = self.operand(*s, memory, width, now, busy);
                }
                let mut n = count + 1;
                if let Some(x) = immediate {
                    list[n] = Operand::Immediate(x);
                    n += 1;
                }
                self.end(step, now);
                list[0] = self.target(step, now, busy);
                self.asm.op(op, width, List(list, n));
            }
            Do::Op {
                op,
                width,
                tied: true,
                ..
            } => self.tied(op, width, step, now),
            Do::Fma { negated, wide } => self.fma(negated, wide, step, now),
            Do::Blend { wide } => self.blend(wide, step, now),
            Do::Masks(what) => {
                let [a, b] = [0, 1].map(|i| self.mask_source(step, i));
                self.end(step, now);
                let to = self.mask_result(step, now);
                self.asm.mask_op(what, to, a, b);
            }
            Do::UpperBits => {
                let a = self.mask_source(step, 0);
                self.end(step, now);
                let to = self.mask_result(step, now);
                self.asm.kshiftr(to, a, 8);
            }
            Do::JoinBits => {
                let [low, high] = [0, 1].map(|i| self.mask_source(step, i));
                self.end(step, now);
                let to = self.mask_result(step, now);
                self.asm.kunpack(to, high, low);
            }
            Do::Load { from, form } => self.load(from, form, step, now),
            Do::Store { to, form } => self.store(to, form, step, now),
            Do::Gather { from, wide } => self.gather(from, wide, step, now),
            Do::Call(native) => self.call(native, step, now),
            Do::Neutral { op, wide, float } => self.neutral((op, wide, float), step, now),
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
            panic!("a mask is made for nothing");
        };
        let k = self.take_mask(now, &[]);
        self.at[to.0 as usize] = At::Mask(k);
        if self.uses[to.0 as usize].is_empty() {
            self.release(to);
        }
        k
    }

    pub(super) fn target(&mut self, step: &Step, now: u32, busy: &[Option<Src>]) -> Operand {
        let Some(to) = step.to else {
            panic!("a result for nothing");
        };
        if self.ir.masks[to.0 as usize] {
            return self.mask_result(step, now).into();
        }
        // This very instruction reads the sources, so its result may use their registers.
        let busy = if busy.iter().flatten().count() > 0 {
            busy
        } else {
            &[]
        };
        self.result(to, now, busy).into()
    }

    fn load(&mut self, key: Key, form: Form, step: &Step, now: u32) {
        let mut location = self.find(key, step);
        let Some(to) = step.to else {
            panic!("a load for nothing");
        };
        if let Some(Src::Virt(bytes)) = step.from[0] {
            let slot = self.new_slot();
            let (at, bytes) = (self.slot(slot), self.vector(bytes));
            self.asm.op(op::VMOVSD_STORE, Width::X, (at, bytes));
            location = LaneLocation::Vector(self.locations.address_at(self.asm, key, at));
            self.free_slots.push(slot);
            self.end(step, now);
        }
        if let LaneLocation::Register { at, last } = location {
            self.at[to.0 as usize] = At::Vector(at[part(form)]);
            self.borrowed[to.0 as usize] = !last;
            return;
        }
        if form == Form::Bits {
            let k = self.mask_result(step, now);
            let r = self.temporary(now, &[]);
            self.load_bits(location, k, r);
            return;
        }
        let r = self.result(to, now, &[]);
        self.load_vector(location, form, r, now);
    }

    fn store(&mut self, key: Key, form: Form, step: &Step, now: u32) {
        let Some(value) = step.from[0] else {
            panic!("a store of nothing");
        };
        let location = self.find(key, step);
        if let LaneLocation::Register { at, .. } = location {
            let from = self.register(value, now, &step.from);
            let to = at[part(form)];
            if from != to {
                let width = self.full();
                self.asm.op(op::VMOVAPS, width, (to, from));
            }
        } else if form == Form::Bits {
            let k = self.mask_source(step, 0);
            let r = self.temporary(now, &step.from);
            self.store_bits(location, k, r);
        } else {
            let from = self.register(value, now, &step.from);
            self.store_vector(location, form, from, now, &step.from);
        }
        self.end(step, now);
    }
}

/// Returns the register of a two-register value that a form stands for.
pub(super) fn part(form: Form) -> usize {
    match form {
        Form::Double(p) | Form::Unsigned(p) => usize::from(p),
        _ => 0,
    }
}
