//! Runs tile programs as `kiln_plan::tile` defines them. Tiles are small and unwritten registers are poisoned, to
//! expose wrong programs.

use crate::numbers::{Num, beats, binary, convert, random, scalar, unary};
use crate::run::each_point;
use kiln_base::prim::Reduction;
use kiln_base::{Compute, Dim, Scalar, round_float, wrap_int};
use kiln_ir::eval::Data;
use kiln_plan::tile::{Access, Arg, Inst, Schedule, SerialPoints, Stage, TileProgram};

/// The number of elements of a tile.
const T: i64 = 5;

/// A point of the space: indices of the axes, then of the inner axes.
type Point = Vec<i64>;

struct Machine<'a> {
    p: &'a TileProgram,
    memory: &'a mut [Data],
    args: Vec<usize>,
    symbols: &'a [i64],
    regs: Vec<Vec<Num>>,
    /// By register and lane: the accumulator, and the index of the extreme.
    acc: Vec<Vec<Option<(Num, i64)>>>,
    slots: Vec<Vec<Vec<Num>>>,
    errors: u32,
}

/// Runs a program, and returns true if there was no data error.
pub fn run(
    p: &TileProgram,
    memory: &mut [Data],
    args: &[usize],
    in_place: &[(usize, usize)],
    symbols: &[i64],
) -> bool {
    // A result in place overwrites a copy of the operand.
    let mut storage: Vec<Data> = args.iter().map(|a| memory[*a].clone()).collect();
    let mut buffer_of: Vec<usize> = (0..args.len()).collect();
    let mut taken = Vec::new();
    for (r, w) in in_place {
        if !taken.contains(r) && buffer_of[*w] == *w {
            taken.push(*r);
            buffer_of[*w] = *r;
        }
    }
    let mut m = Machine {
        p,
        memory: &mut storage,
        args: buffer_of.clone(),
        symbols,
        regs: vec![vec![Num::Poison; T as usize]; p.registers.len()],
        acc: vec![vec![]; p.registers.len()],
        slots: vec![vec![]; p.slots.len()],
        errors: 0,
    };
    for (r, s) in &p.constants {
        let c = p.registers[r.0 as usize];
        m.regs[r.0 as usize] = vec![scalar(*s, c).fit(c); T as usize];
    }
    let axes: Vec<i64> = p.axes.iter().map(|d| d.eval(symbols)).collect();
    let inner: Vec<i64> = p.inner.iter().map(|d| d.eval(symbols)).collect();
    match p.schedule {
        Schedule::Rows => each_point(&axes, |at| m.run_row(at, &inner)),
        Schedule::Lanes => m.run_lanes(&axes, &inner),
    }
    let errors = m.errors;
    for (i, a) in args.iter().enumerate() {
        if p.args[i].written {
            memory[*a] = storage[buffer_of[i]].clone();
        }
    }
    errors == 0
}

fn points(extents: &[i64]) -> Vec<Point> {
    let mut points = Vec::new();
    each_point(extents, |point| points.push(point.to_vec()));
    points
}

/// One tile of a stage.
struct Tile {
    points: Vec<Point>,
    /// The index of its part of a row slot.
    slot: usize,
    /// The linear inner index of its first element, and the step to the next.
    inner: (i64, i64),
    /// True if the result is copied to all lanes of the register.
    broadcast: bool,
}

impl Machine<'_> {
    fn run_row(&mut self, axes: &[i64], inner: &[i64]) {
        let inner_points = points(inner);
        let (mut is_first, mut is_last) = (true, true);
        let serial = axes.iter().zip(&self.p.axes).rev();
        for (i, n) in serial.take(self.p.serial.into()) {
            is_first &= *i == 0;
            is_last &= n.is(*i + 1);
        }
        if is_first {
            self.clear_slots(inner_points.len() / T as usize + 1);
        }
        for stage in &self.p.stages {
            match stage.serial_points {
                SerialPoints::First if !is_first => continue,
                SerialPoints::Last if !is_last => continue,
                _ => {}
            }
            self.begin_stage(stage);
            if !stage.over_inner {
                let point: Point = axes
                    .iter()
                    .copied()
                    .chain(inner.iter().map(|_| 0))
                    .collect();
                self.run_code(
                    stage,
                    &Tile {
                        points: vec![point],
                        slot: 0,
                        inner: (0, 0),
                        broadcast: true,
                    },
                );
                continue;
            }
            for (slot, tile) in inner_points.chunks(T as usize).enumerate() {
                let join = |at: &Point| axes.iter().chain(at).copied().collect();
                let points = tile.iter().map(join).collect();
                let inner = (slot as i64 * T, 1);
                self.run_code(
                    stage,
                    &Tile {
                        points,
                        slot,
                        inner,
                        broadcast: false,
                    },
                );
            }
            self.end_stage(stage, Schedule::Rows);
        }
    }

    fn run_lanes(&mut self, axes: &[i64], inner: &[i64]) {
        let inner_points = points(inner);
        for tile in points(axes).chunks(T as usize) {
            self.clear_slots(inner_points.len());
            for stage in &self.p.stages {
                self.begin_stage(stage);
                let once = [vec![0; inner.len()]];
                let over: &[Point] = if stage.over_inner {
                    &inner_points
                } else {
                    &once
                };
                for (slot, at) in over.iter().enumerate() {
                    let join = |a: &Point| a.iter().chain(at).copied().collect();
                    let points = tile.iter().map(join).collect();
                    let inner = (slot as i64, 0);
                    self.run_code(
                        stage,
                        &Tile {
                            points,
                            slot,
                            inner,
                            broadcast: false,
                        },
                    );
                }
                self.end_stage(stage, Schedule::Lanes);
            }
        }
    }

    fn clear_slots(&mut self, parts: usize) {
        for slot in &mut self.slots {
            *slot = vec![vec![Num::Poison; T as usize]; parts];
        }
    }

    /// Resets the accumulators of a stage, and poisons their registers, which are not readable during accumulation.
    fn begin_stage(&mut self, stage: &Stage) {
        for inst in &stage.code {
            if let Inst::Reduce { acc, .. } | Inst::ArgReduce { acc, .. } = inst {
                assert!(stage.over_inner);
                let r = acc.0 as usize;
                self.regs[r] = vec![Num::Poison; T as usize];
                self.acc[r] = vec![None; T as usize];
            }
        }
    }

    /// Writes the accumulators of a stage to their registers.
    fn end_stage(&mut self, stage: &Stage, schedule: Schedule) {
        for inst in &stage.code {
            let (acc, op, arg) = match inst {
                Inst::Reduce { acc, op, .. } => (acc, *op, false),
                Inst::ArgReduce { acc, op, .. } => (acc, *op, true),
                _ => continue,
            };
            let r = acc.0 as usize;
            let identity = self.identity(r, op);
            let mut lanes: Vec<Num> = self.acc[r]
                .iter()
                .map(|a| match a {
                    Some((_, at)) if arg => Num::I(*at),
                    Some((x, _)) => *x,
                    None => identity,
                })
                .collect();
            if schedule == Schedule::Rows {
                lanes = vec![lanes[0]; T as usize];
            }
            self.regs[r] = lanes;
        }
    }

    fn identity(&self, r: usize, op: Reduction) -> Num {
        let c = self.p.registers[r];
        match (c, op) {
            (Compute::I32, Reduction::Max) => Num::I(i32::MIN as i64),
            (Compute::I32, Reduction::Min) => Num::I(i32::MAX as i64),
            (Compute::I64, Reduction::Max) => Num::I(i64::MIN),
            (Compute::I64, Reduction::Min) => Num::I(i64::MAX),
            _ => scalar(Scalar::Float(op.identity_f64()), c),
        }
    }

    fn affine(&self, offset: &Dim, strides: &[Dim], at: &Point) -> i64 {
        assert_eq!(strides.len(), at.len());
        let steps = strides.iter().zip(at);
        steps.fold(offset.eval(self.symbols), |n, (s, i)| {
            n + s.eval(self.symbols) * i
        })
    }

    fn address(&self, access: &Access, at: &Point) -> Option<i64> {
        let inside = access.bounds.iter().all(|b| {
            let index = self.affine(&b.offset, &b.strides, at);
            (0..b.extent.eval(self.symbols)).contains(&index)
        });
        inside.then(|| self.affine(&access.offset, &access.strides, at))
    }

    fn run_code(&mut self, stage: &Stage, tile: &Tile) {
        for inst in &stage.code {
            self.run_inst(inst, tile);
        }
    }

    fn run_inst(&mut self, inst: &Inst, tile: &Tile) {
        let n = tile.points.len();
        let get = |m: &Self, r: kiln_plan::tile::Reg, l: usize| m.regs[r.0 as usize][l];
        let mut out: Vec<Num> = Vec::with_capacity(n);
        let dst = match inst {
            Inst::Load { dst, access } => {
                for at in &tile.points {
                    out.push(self.load(&self.p.accesses[*access as usize], at, 0));
                }
                dst
            }
            Inst::LoadAt {
                dst,
                access,
                dynamic,
            } => {
                for (l, at) in tile.points.iter().enumerate() {
                    let mut extra = 0;
                    for d in dynamic {
                        let i = get(self, d.index, l).i();
                        let inside = (0..d.extent.eval(self.symbols)).contains(&i);
                        self.errors += !inside as u32;
                        extra += if inside {
                            i * d.stride.eval(self.symbols)
                        } else {
                            0
                        };
                    }
                    out.push(self.load(&self.p.accesses[*access as usize], at, extra));
                }
                dst
            }
            Inst::Index {
                dst,
                offset,
                strides,
            } => {
                out.extend(
                    tile.points
                        .iter()
                        .map(|at| Num::I(self.affine(offset, strides, at))),
                );
                dst
            }
            Inst::Unary { op, dst, a } => {
                let mask = self.p.registers[a.0 as usize] == Compute::Mask;
                out.extend((0..n).map(|l| unary(*op, get(self, *a, l), mask)));
                dst
            }
            Inst::Binary { op, dst, a, b, .. } => {
                for l in 0..n {
                    let r = binary(*op, get(self, *a, l), get(self, *b, l));
                    self.errors += r.is_none() as u32;
                    out.push(r.unwrap_or(Num::I(0)));
                }
                dst
            }
            Inst::Select { dst, mask, a, b } => {
                out.extend((0..n).map(|l| match get(self, *mask, l).i() != 0 {
                    true => get(self, *a, l),
                    false => get(self, *b, l),
                }));
                dst
            }
            Inst::Convert { dst, a, from, to } => {
                assert_eq!(self.p.registers[a.0 as usize], from.compute());
                assert_eq!(self.p.registers[dst.0 as usize], to.compute());
                out.extend((0..n).map(|l| convert(get(self, *a, l), *from, *to)));
                dst
            }
            Inst::Random {
                dst,
                kind,
                seed,
                offset,
                index,
            } => {
                let c = self.p.registers[dst.0 as usize];
                out.extend((0..n).map(|l| {
                    let counter = get(self, *offset, l)
                        .i()
                        .wrapping_add(get(self, *index, l).i());
                    let seed = get(self, *seed, l).i() as u64;
                    random(*kind, counter as u64, seed, c)
                }));
                dst
            }
            Inst::Reduce { op, acc, a } | Inst::ArgReduce { op, acc, a } => {
                let arg = matches!(inst, Inst::ArgReduce { .. });
                let rows = self.p.schedule == Schedule::Rows;
                for l in 0..n {
                    let x = get(self, *a, l);
                    let r = acc.0 as usize;
                    let lane = if rows { 0 } else { l };
                    let at = tile.inner.0 + l as i64 * tile.inner.1;
                    let next = match self.acc[r][lane] {
                        None if arg => (x, at),
                        Some((best, _)) if arg && beats(*op, x, best) => (x, at),
                        Some(best) if arg => best,
                        old => {
                            let old = old.map_or_else(|| self.identity(r, *op), |o| o.0);
                            let sum = binary(op.combine(), old, x).unwrap();
                            (sum.fit(self.p.registers[r]), 0)
                        }
                    };
                    self.acc[r][lane] = Some(next);
                }
                return;
            }
            Inst::Keep { slot, src } => {
                let kept = self.regs[src.0 as usize].clone();
                self.slots[*slot as usize][tile.slot] = kept;
                return;
            }
            Inst::Kept { dst, slot } => {
                let kept = &self.slots[*slot as usize][tile.slot];
                out.extend(kept[..n].iter().copied());
                dst
            }
            Inst::Store { access, src } => {
                let access = &self.p.accesses[*access as usize];
                for (l, at) in tile.points.iter().enumerate() {
                    let value = get(self, *src, l);
                    if let Some(to) = self.address(access, at) {
                        self.write(access.arg, to, value);
                    }
                }
                return;
            }
        };
        let c = self.p.registers[dst.0 as usize];
        let mut out: Vec<Num> = out.into_iter().map(|x| x.fit(c)).collect();
        if tile.broadcast {
            out = vec![out[0]; T as usize];
        }
        out.resize(T as usize, Num::Poison);
        self.regs[dst.0 as usize] = out;
    }

    fn load(&self, access: &Access, at: &Point, extra: i64) -> Num {
        let Arg { dtype, .. } = self.p.args[access.arg as usize];
        match self.address(access, at) {
            None => scalar(access.fill, dtype.compute()),
            Some(from) => match &self.memory[self.args[access.arg as usize]] {
                Data::Float(v) => Num::F(v[(from + extra) as usize]),
                Data::Int(v) => Num::I(v[(from + extra) as usize]),
            },
        }
    }

    fn write(&mut self, arg: u16, to: i64, value: Num) {
        let dtype = self.p.args[arg as usize].dtype;
        match &mut self.memory[self.args[arg as usize]] {
            Data::Float(v) => v[to as usize] = round_float(value.f(), dtype),
            Data::Int(v) => v[to as usize] = wrap_int(value.i(), dtype),
        }
    }
}
