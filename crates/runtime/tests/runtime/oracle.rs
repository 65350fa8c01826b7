//! A scalar interpreter of tile programs: the definition, point by point.

use super::build::{levels, plan_of, run};
use kiln_base::prim::{self, Binary, RandomKind, Reduction, Unary};
use kiln_base::{Compute, DType, Scalar, round_float};
use kiln_plan::Kernel;
use kiln_plan::tile::*;
use kiln_runtime::Buffer;

#[derive(Copy, Clone, Debug, PartialEq)]
pub enum Value {
    F(f64),
    I(i64),
}
use Value::{F, I};

impl Value {
    pub fn f(self) -> f64 {
        match self {
            F(x) => x,
            I(x) => x as f64,
        }
    }
    pub fn i(self) -> i64 {
        match self {
            F(x) => panic!("{x} is not an integer"),
            I(x) => x,
        }
    }
}

/// An argument's elements.
pub type Memory = Vec<Value>;

pub fn read(b: &Buffer) -> Memory {
    let (dtype, bytes) = (b.dtype(), b.bytes().unwrap());
    match dtype.is_float() {
        true => dtype.floats(bytes).into_iter().map(F).collect(),
        false => dtype.ints(bytes).into_iter().map(I).collect(),
    }
}

/// `x` as a value of `to`, by the rules of casts.
pub fn cast(x: Value, from: DType, to: DType) -> Value {
    if from == DType::U64
        && to.is_float()
        && let I(v) = x
    {
        return F(round_float(v as u64 as f64, to));
    }
    let scalar = match x {
        F(x) => Scalar::Float(x),
        I(x) => Scalar::Int(x),
    };
    match scalar.cast(to) {
        Scalar::Bool(b) => I(b as i64),
        Scalar::Int(i) => I(i),
        Scalar::Float(f) => F(f),
    }
}

fn plain(ty: Compute) -> DType {
    match ty {
        Compute::F32 => DType::F32,
        Compute::F64 => DType::F64,
        Compute::I32 => DType::I32,
        Compute::I64 => DType::I64,
        Compute::Mask => DType::Bool,
    }
}

pub fn unary(op: Unary, ty: Compute, x: Value) -> Value {
    match (ty, x) {
        (Compute::F32, F(x)) if op.gives_mask() => I(op.eval_f64(x) as i64),
        (Compute::F64, F(x)) if op.gives_mask() => I(op.eval_f64(x) as i64),
        (_, F(x)) => F(round_float(op.eval_f64(x), plain(ty))),
        (Compute::Mask, I(x)) => I(op.eval_f64(x as f64) as i64),
        (_, I(x)) => {
            let y = op.eval_i64(x).unwrap();
            if op.gives_mask() {
                I(y)
            } else {
                cast(I(y), DType::I64, plain(ty))
            }
        }
    }
}

/// `None` for a division by zero.
pub fn binary(op: Binary, ty: Compute, a: Value, b: Value) -> Option<Value> {
    Some(match (a, b) {
        (F(a), F(b)) if op.gives_mask() => I(op.eval_f64(a, b) as i64),
        (F(a), F(b)) if ty == Compute::F32 && matches!(op, Binary::FloorDiv) => {
            F((a as f32 / b as f32).floor() as f64)
        }
        (F(a), F(b)) => F(round_float(op.eval_f64(a, b), plain(ty))),
        (I(a), I(b)) => {
            let y = op.eval_i64(a, b).ok()?;
            if op.gives_mask() {
                I(y)
            } else {
                cast(I(y), DType::I64, plain(ty))
            }
        }
        _ => panic!("operands of two types"),
    })
}

fn at(offset: &kiln_base::Dim, strides: &[kiln_base::Dim], point: &[i64]) -> i64 {
    let c = |d: &kiln_base::Dim| d.as_const().unwrap();
    c(offset)
        + strides
            .iter()
            .zip(point)
            .map(|(s, i)| c(s) * i)
            .sum::<i64>()
}

struct State<'a> {
    p: &'a TileProgram,
    memory: &'a mut [Memory],
    regs: Vec<Value>,
    slots: Vec<Vec<Value>>,
    /// (site, index, bound) of each data error, in order of the points.
    errors: Vec<(u32, i64, i64)>,
}

/// All points of a box, row-major.
pub fn points(extents: &[kiln_base::Dim]) -> Vec<Vec<i64>> {
    let mut all = vec![vec![]];
    for e in extents {
        let e = e.as_const().unwrap();
        all = all
            .into_iter()
            .flat_map(|p: Vec<i64>| {
                (0..e).map(move |i| {
                    let mut q = p.clone();
                    q.push(i);
                    q
                })
            })
            .collect();
    }
    all
}

/// Runs a program on its arguments' memory; returns the data errors.
pub fn interpret(p: &TileProgram, memory: &mut [Memory]) -> Vec<(u32, i64, i64)> {
    let inner = points(&p.inner);
    let mut s = State {
        p,
        memory,
        regs: p
            .registers
            .iter()
            .map(|t| if t.is_float() { F(0.0) } else { I(0) })
            .collect(),
        slots: p.slots.iter().map(|_| vec![F(0.0); inner.len()]).collect(),
        errors: vec![],
    };
    for (r, v) in &p.constants {
        let ty = plain(p.registers[r.0 as usize]);
        s.regs[r.0 as usize] = cast(
            match v.cast(ty) {
                Scalar::Float(f) => F(f),
                other => I(other.as_i64()),
            },
            ty,
            ty,
        );
    }
    for axes in points(&p.axes) {
        let serial = axes.iter().zip(&p.axes).rev().take(p.serial.into());
        let (mut first, mut last) = (true, true);
        for (i, n) in serial {
            first &= *i == 0;
            last &= n.is(*i + 1);
        }
        for stage in &p.stages {
            match stage.serial_points {
                SerialPoints::First if !first => {}
                SerialPoints::Last if !last => {}
                _ => s.stage(stage, &axes, &inner),
            }
        }
    }
    s.errors
}

impl State<'_> {
    fn stage(&mut self, stage: &Stage, axes: &[i64], inner: &[Vec<i64>]) {
        if !stage.over_inner {
            let mut point = axes.to_vec();
            point.resize(axes.len() + self.p.inner.len(), 0);
            for inst in &stage.code {
                self.inst(inst, &point, 0, &mut []);
            }
            return;
        }
        let mut accs: Vec<(Reg, Reduction, bool, Vec<Value>)> = vec![];
        for inst in &stage.code {
            match inst {
                Inst::Reduce { op, acc, .. } => accs.push((*acc, *op, false, vec![])),
                Inst::ArgReduce { op, acc, .. } => accs.push((*acc, *op, true, vec![])),
                _ => {}
            }
        }
        for (linear, i) in inner.iter().enumerate() {
            let point: Vec<i64> = axes.iter().chain(i).copied().collect();
            for inst in &stage.code {
                self.inst(inst, &point, linear, &mut accs);
            }
        }
        for (acc, op, arg, values) in accs {
            let ty = self.p.registers[acc.0 as usize];
            self.regs[acc.0 as usize] = if arg {
                I(arg_of(op, &values))
            } else {
                fold(op, ty, &values)
            };
        }
    }

    fn inst(
        &mut self,
        inst: &Inst,
        point: &[i64],
        linear: usize,
        accs: &mut [(Reg, Reduction, bool, Vec<Value>)],
    ) {
        let get = |r: &Reg, s: &Self| s.regs[r.0 as usize];
        let ty = |r: &Reg, s: &Self| s.p.registers[r.0 as usize];
        let (dst, value) = match inst {
            Inst::Load { dst, access } => (dst, self.load(*access, point, &[])),
            Inst::LoadAt {
                dst,
                access,
                dynamic,
            } => (dst, self.load(*access, point, dynamic)),
            Inst::Index {
                dst,
                offset,
                strides,
            } => (dst, I(at(offset, strides, point))),
            Inst::Unary { op, dst, a } => (dst, unary(*op, ty(a, self), get(a, self))),
            Inst::Binary {
                op,
                dst,
                a,
                b,
                site,
            } => {
                let (x, y) = (get(a, self), get(b, self));
                let v = binary(*op, ty(a, self), x, y).unwrap_or_else(|| {
                    self.errors.push((*site, x.i(), 0));
                    I(0)
                });
                (dst, v)
            }
            Inst::Select { dst, mask, a, b } => (
                dst,
                if get(mask, self).i() != 0 {
                    get(a, self)
                } else {
                    get(b, self)
                },
            ),
            Inst::Convert { dst, a, from, to } => (dst, cast(get(a, self), *from, *to)),
            Inst::Random {
                dst,
                kind,
                seed,
                offset,
                index,
            } => {
                let counter = get(offset, self).i().wrapping_add(get(index, self).i());
                let wide = ty(dst, self).size() == 8;
                let seed = get(seed, self).i() as u64;
                let w = prim::random_words(*kind, wide, counter as u64, seed);
                let v = match kind {
                    RandomKind::Bits => I(prim::random_bits(w)),
                    RandomKind::Uniform if wide => F(prim::random_uniform_f64(w)),
                    RandomKind::Uniform => F(prim::random_uniform_f32(w) as f64),
                    RandomKind::Normal if wide => F(prim::random_normal_f64(w)),
                    RandomKind::Normal => F(prim::random_normal_f32(w) as f32 as f64),
                };
                (dst, v)
            }
            Inst::Reduce { acc, a, .. } | Inst::ArgReduce { acc, a, .. } => {
                let v = get(a, self);
                accs.iter_mut().find(|x| x.0 == *acc).unwrap().3.push(v);
                return;
            }
            Inst::Keep { slot, src } => {
                self.slots[*slot as usize][linear] = get(src, self);
                return;
            }
            Inst::Kept { dst, slot } => (dst, self.slots[*slot as usize][linear]),
            Inst::Store { access, src } => {
                let a = &self.p.accesses[*access as usize];
                if holds(a, point) {
                    let dtype = self.p.args[a.arg as usize].dtype;
                    let v = cast(get(src, self), plain(ty(src, self)), dtype);
                    self.memory[a.arg as usize][at(&a.offset, &a.strides, point) as usize] = v;
                }
                return;
            }
        };
        self.regs[dst.0 as usize] = value;
    }

    fn load(&mut self, access: u16, point: &[i64], dynamic: &[Dynamic]) -> Value {
        let a = &self.p.accesses[access as usize];
        let dtype = self.p.args[a.arg as usize].dtype;
        if !holds(a, point) {
            return match a.fill.cast(dtype) {
                Scalar::Float(f) => F(f),
                other => I(other.as_i64()),
            };
        }
        let mut address = at(&a.offset, &a.strides, point);
        for d in dynamic {
            let (i, extent) = (
                self.regs[d.index.0 as usize].i(),
                d.extent.as_const().unwrap(),
            );
            if (0..extent).contains(&i) {
                address += i * d.stride.as_const().unwrap();
            } else {
                self.errors.push((d.site, i, extent));
            }
        }
        self.memory[a.arg as usize][address as usize]
    }
}

fn holds(a: &Access, point: &[i64]) -> bool {
    a.bounds.iter().all(|b| {
        let v = at(&b.offset, &b.strides, point);
        (0..b.extent.as_const().unwrap()).contains(&v)
    })
}

fn fold(op: Reduction, ty: Compute, values: &[Value]) -> Value {
    if ty.is_float() {
        let combine = |a: f64, b: &Value| op.combine().eval_f64(a, b.f());
        return F(round_float(
            values.iter().fold(op.identity_f64(), combine),
            plain(ty),
        ));
    }
    let identity = match (op, ty) {
        (Reduction::Sum, _) => 0,
        (Reduction::Prod, _) => 1,
        (Reduction::Max, Compute::I32) => i32::MIN as i64,
        (Reduction::Min, Compute::I32) => i32::MAX as i64,
        (Reduction::Max, Compute::Mask) => 0,
        (Reduction::Min, Compute::Mask) => 1,
        (Reduction::Max, _) => i64::MIN,
        (Reduction::Min, _) => i64::MAX,
    };
    values.iter().fold(I(identity), |a, b| {
        let op = if ty == Compute::Mask && op == Reduction::Prod {
            Binary::And
        } else {
            op.combine()
        };
        binary(op, ty, a, *b).unwrap()
    })
}

fn arg_of(op: Reduction, values: &[Value]) -> i64 {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        let (x, y) = (v.f(), values[best].f());
        let ints = matches!((v, values[best]), (I(_), I(_)));
        let better = match op {
            Reduction::Max if ints => v.i() > values[best].i(),
            _ if ints => v.i() < values[best].i(),
            Reduction::Max => x > y || x.is_nan() && !y.is_nan(),
            _ => x < y || x.is_nan() && !y.is_nan(),
        };
        if better {
            best = i;
        }
    }
    best as i64
}

/// True if `got` is `want` up to a relative and absolute error.
pub fn close(got: Value, want: Value, tolerance: f64) -> bool {
    match (got, want) {
        (F(a), F(b)) => {
            a == b
                || a.is_nan() && b.is_nan()
                || (a - b).abs() <= tolerance * b.abs().max(1e-30)
                || tolerance > 0.0 && (a - b).abs() < 1e-44
        }
        (a, b) => a == b,
    }
}

/// Runs a program over `inputs` (for its read-only arguments) at every level and compares every
/// written argument, of the given lengths, with the interpreter.
pub fn check(p: &TileProgram, inputs: &[Buffer], outputs: &[i64], tolerance: f64) {
    let mut memory = vec![];
    let mut args = vec![];
    let (mut ins, mut outs) = (inputs.iter(), outputs.iter());
    for a in &p.args {
        if a.written {
            let len = *outs.next().unwrap();
            memory.push(vec![
                if a.dtype.is_float() { F(0.0) } else { I(0) };
                len as usize
            ]);
            args.push((a.dtype, len, true));
        } else {
            let b = ins.next().unwrap();
            memory.push(read(b));
            args.push((a.dtype, b.len() as i64, false));
        }
    }
    let errors = interpret(p, &mut memory);
    assert_eq!(errors, [], "the reference met data errors");
    let plan = plan_of(Kernel::Tile(p.clone()), &args);
    let before: Vec<Vec<u8>> = inputs.iter().map(|b| b.bytes().unwrap().to_vec()).collect();
    let results = run(&plan, inputs);
    for (before, after) in before.iter().zip(inputs) {
        assert!(
            before == after.bytes().unwrap(),
            "an input was overwritten\n{p:#?}"
        );
    }
    for (result, level) in results.into_iter().zip(levels()) {
        let got = result.unwrap_or_else(|e| panic!("{level:?}: {e}\n{p:#?}"));
        let written = (p.args.iter().zip(&memory)).filter(|(a, _)| a.written);
        for (o, ((_, want), got)) in written.zip(&got).enumerate() {
            for (i, (g, w)) in read(got).into_iter().zip(want).enumerate() {
                assert!(
                    close(g, *w, tolerance),
                    "{level:?}: output {o}, element {i}: {g:?}, expected {w:?}\n{:?}",
                    p.stages
                );
            }
        }
    }
}
