//! One stage: instructions become drafts with virtual registers, then code with physical ones.

use super::call::{self, Place, Printed};
use super::code::{Code, Op};
use super::frame::Frame;
use super::walk::Shape;
use super::{cast, gather, kernels, load};
use crate::simd::Level;
use kiln_base::{Compute, DType};

/// What a code names beside its operands.
#[derive(Copy, Clone)]
pub(super) enum Hidden {
    None,
    /// A list of dynamic address parts.
    Dynamics(u32),
    /// An accumulator and the register beside it.
    Reduce {
        acc: u32,
        beside: u32,
    },
}

/// A value: one register definition within a stage, or a register that outlives stages.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Index into the stage's definitions.
    Local(usize),
    /// A physical register.
    Global(u32),
}

/// What a draft does.
#[derive(Copy, Clone)]
pub(super) enum Make {
    /// This function.
    Plain(Op),
    Load {
        shape: Shape,
        dtype: DType,
    },
    Store {
        shape: Shape,
        dtype: DType,
        stream: bool,
    },
    Keep(Compute),
    Kept(Compute),
    /// The printed function of this number, whose registers are in [`Stage::printed`].
    Printed(usize),
}

/// A printed function before registers are allocated.
pub(super) struct Function {
    pub printed: Printed,
    /// Values of operands that are registers, by position, and whether they are written.
    pub values: Vec<(usize, Value, bool)>,
}

/// An instruction before registers are allocated.
#[derive(Copy, Clone)]
pub(super) struct Draft {
    pub make: Make,
    pub dst: Option<Value>,
    pub sources: [Option<Value>; 3],
    pub x: u32,
    /// A physical register that the code names beside its operands.
    pub hidden: Hidden,
}

/// The drafts of a stage, the types of its local values, and what of it is printed.
#[derive(Default)]
pub(super) struct Stage {
    pub drafts: Vec<Draft>,
    pub types: Vec<Compute>,
    pub functions: Vec<Function>,
}

impl Stage {
    pub(super) fn local(&mut self, ty: Compute) -> Value {
        self.types.push(ty);
        Value::Local(self.types.len() - 1)
    }

    /// Adds a draft; a result that is also an operand goes through a value of its own, because
    /// loops assume that they differ in memory.
    pub(super) fn push(&mut self, mut draft: Draft, ty: Compute, level: Level) {
        match draft.dst {
            Some(dst) if draft.sources.contains(&Some(dst)) => {
                let through = self.local(ty);
                draft.dst = Some(through);
                self.drafts.push(draft);
                self.drafts.push(Draft {
                    make: Make::Plain(kernels::copy(ty, level)),
                    dst: Some(dst),
                    sources: [Some(through), None, None],
                    x: 0,
                    hidden: Hidden::None,
                });
            }
            _ => self.drafts.push(draft),
        }
    }

    /// The local values that a draft reads, and those it writes.
    fn uses(&self, d: &Draft) -> (Vec<usize>, Vec<usize>) {
        let local = |v: &Value| match v {
            Value::Local(v) => Some(*v),
            Value::Global(_) => None,
        };
        let mut reads: Vec<usize> = d.sources.iter().flatten().filter_map(local).collect();
        let mut writes: Vec<usize> = d.dst.iter().filter_map(local).collect();
        if let Make::Printed(f) = d.make {
            for (_, value, written) in &self.functions[f].values {
                let list = if *written { &mut writes } else { &mut reads };
                list.extend(local(value));
            }
        }
        (reads, writes)
    }

    /// Where each local value is defined and last used.
    fn lifetimes(&self) -> Vec<(usize, usize)> {
        let mut lives = vec![(0, 0); self.types.len()];
        for (i, d) in self.drafts.iter().enumerate() {
            let (reads, writes) = self.uses(d);
            for v in reads {
                lives[v].1 = i;
            }
            for v in writes {
                lives[v] = (i, i);
            }
        }
        lives
    }

    /// Whether the value of the load or `Kept` at `i` may be read where it lies until `last`: nothing
    /// that could overwrite it comes before its last use.
    fn stays(&self, i: usize, last: usize) -> bool {
        let kept = matches!(self.drafts[i].make, Make::Kept(_));
        let slot = self.drafts[i].x;
        !self.drafts[i + 1..=last]
            .iter()
            .enumerate()
            .any(|(k, d)| match d.make {
                Make::Keep(_) => kept && d.x == slot,
                // A plain store may be the last use: it moves the very elements.
                Make::Store { shape, dtype, .. } if !kept => {
                    let plain = shape == Shape::Contiguous && load::is_direct(dtype);
                    !(plain && i + 1 + k == last)
                }
                // They may write anything.
                Make::Printed(_) => true,
                _ => false,
            })
    }

    /// The slot that the value defined at `i` may be written straight into, and the `Keep` that
    /// this replaces.
    fn aims(&self, i: usize, last: usize, v: usize) -> Option<(u32, usize)> {
        if !matches!(self.drafts[i].make, Make::Plain(_)) {
            return None;
        }
        let keeps =
            |d: &Draft| matches!(d.make, Make::Keep(_)) && d.sources[0] == Some(Value::Local(v));
        let at = i + 1 + self.drafts[i + 1..=last].iter().position(keeps)?;
        let slot = self.drafts[at].x;
        let conflict = |d: &Draft| matches!(d.make, Make::Keep(_) | Make::Kept(_)) && d.x == slot;
        // A value kept there earlier may still be read where it lies.
        let before = self.drafts[..at].iter().any(conflict);
        let after = self.drafts[at + 1..=last]
            .iter()
            .any(|d| matches!(d.make, Make::Keep(_)) && d.x == slot);
        (!before && !after).then_some((slot, at))
    }

    /// Allocates registers and gives the code.
    pub(super) fn emit(
        &self,
        frame: &mut Frame,
        printed: &mut Vec<Printed>,
        level: Level,
    ) -> Vec<Code> {
        let lives = self.lifetimes();
        let mut place: Vec<u32> = vec![0; self.types.len()];
        let mut pointable: Vec<bool> = vec![false; self.types.len()];
        let mut skip = vec![false; self.drafts.len()];
        let mut code = Vec::new();
        frame.begin_stage();
        for (i, d) in self.drafts.iter().enumerate() {
            let mut direct = false;
            if let Some(Value::Local(v)) = d.dst {
                let (ty, last) = (self.types[v], lives[v].1);
                let aim = self.aims(i, last, v).filter(|_| !skip[i]);
                direct = match d.make {
                    // A splat writes its register, which must then be its own memory.
                    Make::Load { shape, dtype } => {
                        shape != Shape::Splat && load::is_direct(dtype) && self.stays(i, last)
                    }
                    Make::Kept(_) => self.stays(i, last),
                    _ => false,
                };
                pointable[v] = direct || aim.is_some();
                place[v] = frame.take(ty, pointable[v]);
                if let Some((slot, keep)) = aim {
                    skip[keep] = true;
                    code.push(plain(load::aim(ty), place[v], slot));
                }
            }
            if let Make::Printed(f) = d.make {
                for (_, value, written) in &self.functions[f].values {
                    if let (Value::Local(v), true) = (value, written) {
                        place[*v] = frame.take(self.types[*v], false);
                    }
                }
                code.push(self.call(f, &place, printed));
            } else if !skip[i] {
                self.code(i, &place, direct, frame, level, &mut code);
            }
            let (reads, writes) = self.uses(d);
            let mut ended = [reads, writes].concat();
            ended.sort_unstable();
            ended.dedup();
            for v in ended.into_iter().filter(|v| lives[*v].1 == i) {
                frame.give(self.types[v], pointable[v], place[v]);
            }
        }
        code
    }

    /// The call of a printed function.
    fn call(&self, f: usize, place: &[u32], printed: &mut Vec<Printed>) -> Code {
        let mut function = self.functions[f].printed.clone();
        for (operand, value, _) in &self.functions[f].values {
            let r = match value {
                Value::Local(v) => place[*v],
                Value::Global(p) => *p,
            };
            function.operands[*operand].place = Place::Register(r);
        }
        printed.push(function);
        Code {
            is_call: true,
            ..plain(call::call, 0, printed.len() as u32 - 1)
        }
    }

    fn code(
        &self,
        i: usize,
        place: &[u32],
        direct: bool,
        frame: &mut Frame,
        level: Level,
        out: &mut Vec<Code>,
    ) {
        let d = &self.drafts[i];
        let at = |v: Option<Value>| match v {
            Some(Value::Local(v)) => place[v],
            Some(Value::Global(p)) => p,
            None => 0,
        };
        let mut c = Code {
            dst: at(d.dst),
            a: at(d.sources[0]),
            b: at(d.sources[1]),
            c: at(d.sources[2]),
            ..plain(load::index(Level::Baseline), 0, d.x)
        };
        match d.hidden {
            Hidden::None => {}
            Hidden::Dynamics(n) => c.a = n,
            Hidden::Reduce { acc, beside } => (c.dst, c.b) = (acc, beside),
        }
        c.f = match d.make {
            Make::Plain(f) => f,
            Make::Load { shape, dtype } => {
                c.b = direct as u32;
                load::load(shape, dtype, direct, level)
            }
            Make::Store {
                shape,
                dtype,
                stream,
            } => load::store(shape, dtype, stream, level),
            Make::Printed(_) => return,
            Make::Keep(ty) => load::keep(ty, level),
            Make::Kept(ty) if direct => load::aim(ty),
            Make::Kept(ty) => {
                let through = frame.take(ty, true);
                out.push(plain(load::aim(ty), through, d.x));
                frame.give(ty, true, through);
                c.a = through;
                kernels::copy(ty, level)
            }
        };
        out.push(c);
    }
}

/// Code without operands.
pub(super) fn plain(f: Op, dst: u32, x: u32) -> Code {
    Code {
        f,
        dst,
        a: 0,
        b: 0,
        c: 0,
        x,
        is_call: false,
    }
}

/// The draft of a plain instruction.
pub(super) fn draft(f: Op, dst: Value, sources: [Option<Value>; 3], x: u32) -> Draft {
    Draft {
        make: Make::Plain(f),
        dst: Some(dst),
        sources,
        x,
        hidden: Hidden::None,
    }
}

/// The functions of instructions that need nothing but types.
pub(super) fn load_at(dtype: DType, level: Level) -> Op {
    gather::load_at(dtype, level)
}

/// The conversion between register types.
pub(super) fn convert(from: DType, to: DType, level: Level) -> Op {
    cast::cast(from, to, level)
}
