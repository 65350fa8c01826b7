//! Emission of instructions.

use super::regs::Allocator;
use super::stages::{StagePlan, ValueSource, plan, same, slot_policy};
use crate::affine::estimate;
use crate::kir::{Expr, Kernel, Store, Val};
use hashbrown::HashMap;
use kiln_base::prim::Reduction;
use kiln_base::{Compute, DType, Scalar};
use kiln_plan::tile::{Dynamic, Inst, Reg, Schedule, SerialPoints, Stage, TileProgram};

/// The uses of values, counted over every instruction of every stage.
struct Uses {
    /// For each stage and value, the number of uses there.
    counts: HashMap<(usize, Val), u32>,
    /// For each value, the last stage that uses it.
    last_stage: Vec<usize>,
}

/// Emits the tile program of a kernel with this schedule.
pub(super) fn emit(kernel: &Kernel, schedule: Schedule) -> TileProgram {
    let (plans, slots) = plan(kernel, &slot_policy(kernel, schedule));
    program(kernel, schedule, &plans, &slots)
}

/// Emits the program of a kernel whose stages are planned.
fn program(
    kernel: &Kernel,
    schedule: Schedule,
    plans: &[StagePlan],
    slots: &[Option<u16>],
) -> TileProgram {
    let mut emitter = InstEmitter {
        kernel,
        slots,
        uses: count(kernel, plans),
        regs: Allocator::default(),
        at: vec![None; kernel.body.len()],
        constants: Vec::new(),
        code: Vec::new(),
        stage: 0,
        combines: Vec::new(),
    };
    let mut slot_types: Vec<(u16, Compute)> = Vec::new();
    for (def, slot) in kernel.body.iter().zip(slots) {
        slot_types.extend(slot.map(|s| (s, def.dtype.compute())));
    }
    slot_types.sort();
    let mut slot_types: Vec<Compute> = slot_types.into_iter().map(|s| s.1).collect();
    emitter.combine(&mut slot_types);
    let first = emitter.emit_initial();
    let middle = plans.iter().enumerate();
    let middle: Vec<Stage> = middle.map(|(i, plan)| emitter.stage(i, plan)).collect();
    let last = emitter.emit_final();
    let stages = first.into_iter().chain(middle).chain(last).collect();
    TileProgram {
        name: kernel.name.clone(),
        axes: kernel.axes.clone(),
        inner: kernel.inner.clone(),
        serial: kernel.serial as u16,
        schedule,
        sizes: Default::default(),
        args: kernel.args.clone(),
        accesses: kernel.accesses.clone(),
        registers: emitter.regs.types,
        constants: emitter.constants,
        slots: slot_types,
        stages,
        sites: kernel.sites,
    }
}

fn count(kernel: &Kernel, plans: &[StagePlan]) -> Uses {
    let mut uses = Uses {
        counts: HashMap::new(),
        last_stage: vec![0; kernel.body.len()],
    };
    for (stage, plan) in plans.iter().enumerate() {
        let mut note = |v: Val| {
            let v = same(kernel, v);
            *uses.counts.entry((stage, v)).or_insert(0) += 1;
            uses.last_stage[v.index()] = uses.last_stage[v.index()].max(stage);
        };
        for d in &plan.defs {
            if let ValueSource::Compute(v) = d
                && same(kernel, *v) == *v
            {
                kernel.body[v.index()].expr.operands(&mut note);
            }
        }
        plan.stores.iter().for_each(|s| note(s.value));
    }
    uses
}

struct InstEmitter<'a> {
    kernel: &'a Kernel,
    slots: &'a [Option<u16>],
    uses: Uses,
    regs: Allocator,
    /// The register of each value, if it is in one.
    at: Vec<Option<Reg>>,
    constants: Vec<(Reg, Scalar)>,
    code: Vec<Inst>,
    stage: usize,
    /// The stores that combine.
    combines: Vec<Sum>,
}

/// The accumulator of a store that combines over the points of the serial axes.
struct Sum {
    store: Store,
    op: Reduction,
    slot: u16,
    /// The dtype in which the slot holds it.
    dtype: DType,
}

/// The maximum number of points whose sum an f32 accumulates.
const MAX_IN_F32: i64 = 256;

impl InstEmitter<'_> {
    fn stage(&mut self, at: usize, plan: &StagePlan) -> Stage {
        self.stage = at;
        // Values that live in this stage only, to be freed when their uses are done.
        let mut local: HashMap<Val, u32> = HashMap::new();
        let mut defined: Vec<Val> = Vec::new();
        // Accumulators exist from the start of the walk.
        for d in &plan.defs {
            if let ValueSource::Compute(v) = d
                && self.kernel.body[v.index()].expr.is_reduction()
            {
                let reg = self.fresh(*v);
                self.at[v.index()] = Some(reg);
            }
        }
        for d in &plan.defs {
            let (ValueSource::Compute(v) | ValueSource::InSlot(v)) = *d;
            if same(self.kernel, v) != v {
                continue;
            }
            let is_reduction = self.kernel.body[v.index()].expr.is_reduction();
            let mut operands: Vec<Val> = Vec::new();
            match d {
                ValueSource::InSlot(v) => {
                    let dst = self.fresh(*v);
                    self.at[v.index()] = Some(dst);
                    let slot = self.slots[v.index()].expect("kept values have slots");
                    self.code.push(Inst::Kept { dst, slot });
                }
                ValueSource::Compute(v) => operands = self.compute(*v),
            }
            if !is_reduction {
                let outlives_stage = self.uses.last_stage[v.index()] > at && !plan.over_inner;
                if !outlives_stage {
                    local.insert(v, self.uses.counts.get(&(at, v)).copied().unwrap_or(0));
                    defined.push(v);
                }
            }
            for o in operands {
                self.consume(o, &mut local);
            }
            if local.get(&v) == Some(&0) {
                self.free(v);
                local.remove(&v);
            }
        }
        for s in &plan.stores {
            let src = self.reg(s.value);
            match self.combines.iter().position(|sum| sum.store == *s) {
                Some(sum) => self.add(sum, src),
                None => self.code.push(Inst::Store {
                    access: s.access,
                    src,
                }),
            }
            self.consume(same(self.kernel, s.value), &mut local);
        }
        for v in defined {
            if local.contains_key(&v) {
                self.free(v);
            }
        }
        // Values of earlier stages that nothing after this one needs.
        for i in 0..self.at.len() {
            if self.at[i].is_some() && self.uses.last_stage[i] <= at {
                self.free(Val(i as u32));
            }
        }
        self.end(plan.over_inner, SerialPoints::Every)
    }

    fn end(&mut self, over_inner: bool, serial_points: SerialPoints) -> Stage {
        Stage {
            over_inner,
            serial_points,
            code: std::mem::take(&mut self.code),
        }
    }

    /// Gives each store that combines a slot after the existing ones.
    fn combine(&mut self, slots: &mut Vec<Compute>) {
        let kernel = self.kernel;
        let serial = &kernel.axes[kernel.axes.len() - kernel.serial..];
        let points = serial.iter().fold(1, |n, d| estimate(d).saturating_mul(n));
        for store in &kernel.stores {
            let Some(op) = store.combine else { continue };
            let dtype = match kernel.body[store.value.index()].dtype {
                DType::F32 if op == Reduction::Sum && points > MAX_IN_F32 => DType::F64,
                dtype => dtype,
            };
            self.combines.push(Sum {
                store: store.clone(),
                op,
                slot: slots.len() as u16,
                dtype,
            });
            slots.push(dtype.compute());
        }
    }

    /// Emits the stage that initialises the accumulators over serial points.
    fn emit_initial(&mut self) -> Option<Stage> {
        for i in 0..self.combines.len() {
            let Sum {
                op, slot, dtype, ..
            } = self.combines[i];
            let start = op.identity(dtype);
            let src = self.constant(start, dtype.compute());
            self.code.push(Inst::Keep { slot, src });
        }
        (!self.combines.is_empty()).then(|| self.end(true, SerialPoints::First))
    }

    /// Emits the addition of a point's value to an accumulator.
    fn add(&mut self, at: usize, src: Reg) {
        let Sum {
            op, slot, dtype, ..
        } = self.combines[at];
        let from = self.kernel.body[self.combines[at].store.value.index()].dtype;
        let ty = dtype.compute();
        let (old, new) = (self.regs.take(ty), self.regs.take(ty));
        self.code.push(Inst::Kept { dst: old, slot });
        let b = self.convert(src, from, dtype);
        self.code.push(Inst::Binary {
            op: op.combine(),
            dst: new,
            a: old,
            b,
            site: 0,
        });
        self.code.push(Inst::Keep { slot, src: new });
        self.regs.give_back(old);
        self.regs.give_back(new);
    }

    /// Converts a number to another dtype, in a register for the next instruction.
    fn convert(&mut self, a: Reg, from: DType, to: DType) -> Reg {
        if from.compute() == to.compute() {
            return a;
        }
        let dst = self.regs.take(to.compute());
        self.code.push(Inst::Convert { dst, a, from, to });
        self.regs.give_back(dst);
        dst
    }

    /// Emits the stage that stores the accumulators over serial points.
    fn emit_final(&mut self) -> Option<Stage> {
        for at in 0..self.combines.len() {
            let Sum { slot, dtype, .. } = self.combines[at];
            let Store { access, value, .. } = self.combines[at].store;
            let to = self.kernel.body[value.index()].dtype;
            let kept = self.regs.take(dtype.compute());
            self.code.push(Inst::Kept { dst: kept, slot });
            self.regs.give_back(kept);
            let src = self.convert(kept, dtype, to);
            self.code.push(Inst::Store { access, src });
        }
        (!self.combines.is_empty()).then(|| self.end(true, SerialPoints::Last))
    }

    /// Notes that one use of a value is done.
    fn consume(&mut self, v: Val, local: &mut HashMap<Val, u32>) {
        if let Some(uses_left) = local.get_mut(&v) {
            *uses_left -= 1;
            if *uses_left == 0 {
                local.remove(&v);
                self.free(v);
            }
        }
    }

    fn fresh(&mut self, v: Val) -> Reg {
        let dtype = self.kernel.body[v.index()].dtype;
        self.regs.take(dtype.compute())
    }

    fn free(&mut self, v: Val) {
        if let Some(reg) = self.at[v.index()].take() {
            self.regs.give_back(reg);
        }
    }

    /// Returns the register that holds a value.
    fn reg(&mut self, v: Val) -> Reg {
        let v = same(self.kernel, v);
        let def = &self.kernel.body[v.index()];
        if let Expr::Const(c) = def.expr {
            return self.constant(c, def.dtype.compute());
        }
        self.at[v.index()].expect("values are defined before they are used")
    }

    /// Returns the register that holds a number.
    fn constant(&mut self, c: Scalar, compute: Compute) -> Reg {
        let mut existing = self.constants.iter();
        let existing = existing.find(|(r, s)| *s == c && self.regs.types[r.0 as usize] == compute);
        if let Some((r, _)) = existing {
            return *r;
        }
        let reg = self.regs.reserve(compute);
        self.constants.push((reg, c));
        reg
    }

    /// Emits the definition of a value. Returns the values that it has used.
    fn compute(&mut self, v: Val) -> Vec<Val> {
        let def = self.kernel.body[v.index()].clone();
        let mut operands = Vec::new();
        def.expr.operands(|o| operands.push(same(self.kernel, o)));
        if def.expr.is_reduction() {
            let (acc, a) = (self.reg(v), self.reg(operands[0]));
            self.code.push(match def.expr {
                Expr::ArgReduce { op, .. } => Inst::ArgReduce { op, acc, a },
                Expr::Reduce { op, .. } => Inst::Reduce { op, acc, a },
                _ => unreachable!("these are the reductions"),
            });
            return operands;
        }
        let regs: Vec<Reg> = operands.iter().map(|o| self.reg(*o)).collect();
        let dst = self.fresh(v);
        self.at[v.index()] = Some(dst);
        let inst = match def.expr {
            Expr::Load { access } => Inst::Load { dst, access },
            Expr::LoadAt { access, dynamic } => Inst::LoadAt {
                dst,
                access,
                dynamic: dynamic
                    .into_iter()
                    .zip(regs)
                    .map(|(d, index)| Dynamic {
                        index,
                        stride: d.stride,
                        extent: d.extent,
                        site: d.site,
                    })
                    .collect(),
            },
            Expr::Index { offset, strides } => Inst::Index {
                dst,
                offset,
                strides,
            },
            Expr::Unary(op, _) => Inst::Unary {
                op,
                dst,
                a: regs[0],
            },
            Expr::Binary { op, site, .. } => Inst::Binary {
                op,
                dst,
                a: regs[0],
                b: regs[1],
                site,
            },
            Expr::Select { .. } => Inst::Select {
                dst,
                mask: regs[0],
                a: regs[1],
                b: regs[2],
            },
            Expr::Convert { from, .. } => Inst::Convert {
                dst,
                a: regs[0],
                from,
                to: def.dtype,
            },
            Expr::Random { kind, .. } => Inst::Random {
                dst,
                kind,
                seed: regs[0],
                offset: regs[1],
                index: regs[2],
            },
            Expr::Const(_) | Expr::Reduce { .. } | Expr::ArgReduce { .. } => {
                unreachable!("constants are hoisted and reductions are emitted above")
            }
        };
        self.code.push(inst);
        if let Some(slot) = self.slots[v.index()] {
            self.code.push(Inst::Keep { slot, src: dst });
        }
        operands
    }
}
