//! Emission of instructions.

use super::regs::Allocator;
use super::stages::{StagePlan, ValueSource, plan, slot_policy, without_casts};
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
        uses: count_uses(kernel, plans),
        regs: Allocator::default(),
        registers: vec![None; kernel.body.len()],
        constants: Vec::new(),
        code: Vec::new(),
        stage: 0,
        accumulators: Vec::new(),
    };
    let mut slot_types: Vec<(u16, Compute)> = Vec::new();
    for (def, slot) in kernel.body.iter().zip(slots) {
        slot_types.extend(slot.map(|s| (s, def.dtype.compute())));
    }
    slot_types.sort();
    let mut slot_types: Vec<Compute> = slot_types.into_iter().map(|s| s.1).collect();
    emitter.add_accumulators(&mut slot_types);
    let first = emitter.emit_initial();
    let middle = plans.iter().enumerate();
    let middle = middle.map(|(i, plan)| emitter.emit_stage(i, plan));
    let middle: Vec<Stage> = middle.collect();
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

fn count_uses(kernel: &Kernel, plans: &[StagePlan]) -> Uses {
    let mut uses = Uses {
        counts: HashMap::new(),
        last_stage: vec![0; kernel.body.len()],
    };
    for (stage, plan) in plans.iter().enumerate() {
        let mut count = |v: Val| {
            let v = without_casts(kernel, v);
            *uses.counts.entry((stage, v)).or_insert(0) += 1;
            uses.last_stage[v.index()] = uses.last_stage[v.index()].max(stage);
        };
        for d in &plan.defs {
            if let ValueSource::Compute(v) = d
                && without_casts(kernel, *v) == *v
            {
                kernel.body[v.index()].expr.operands(&mut count);
            }
        }
        plan.stores.iter().for_each(|s| count(s.value));
    }
    uses
}

struct InstEmitter<'a> {
    kernel: &'a Kernel,
    slots: &'a [Option<u16>],
    uses: Uses,
    regs: Allocator,
    /// The register of each value, if it is in one.
    registers: Vec<Option<Reg>>,
    constants: Vec<(Reg, Scalar)>,
    code: Vec<Inst>,
    stage: usize,
    /// The accumulators over serial points.
    accumulators: Vec<Accumulator>,
}

/// The accumulator of a store that combines over the points of the serial axes.
struct Accumulator {
    store: Store,
    op: Reduction,
    slot: u16,
    /// The dtype of the slot.
    dtype: DType,
}

/// The maximum number of points that an f32 sums.
const MAX_IN_F32: i64 = 256;

impl InstEmitter<'_> {
    fn emit_stage(&mut self, stage: usize, plan: &StagePlan) -> Stage {
        self.stage = stage;
        // The remaining uses of values that are live in this stage only.
        let mut local: HashMap<Val, u32> = HashMap::new();
        let mut defined: Vec<Val> = Vec::new();
        // Accumulators are live from the start of the loop.
        for d in &plan.defs {
            if let ValueSource::Compute(v) = d
                && self.kernel.body[v.index()].expr.is_reduction()
            {
                let reg = self.allocate(*v);
                self.registers[v.index()] = Some(reg);
            }
        }
        for d in &plan.defs {
            let (ValueSource::Compute(v) | ValueSource::InSlot(v)) = *d;
            if without_casts(self.kernel, v) != v {
                continue;
            }
            let is_reduction = self.kernel.body[v.index()].expr.is_reduction();
            let mut operands: Vec<Val> = Vec::new();
            match d {
                ValueSource::InSlot(v) => {
                    let dst = self.allocate(*v);
                    self.registers[v.index()] = Some(dst);
                    let slot = self.slots[v.index()].expect("kept values have slots");
                    self.code.push(Inst::Kept { dst, slot });
                }
                ValueSource::Compute(v) => operands = self.compute(*v),
            }
            if !is_reduction {
                let outlives_stage = self.uses.last_stage[v.index()] > stage && !plan.over_inner;
                if !outlives_stage {
                    local.insert(v, self.uses.counts.get(&(stage, v)).copied().unwrap_or(0));
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
            match self.accumulators.iter().position(|acc| acc.store == *s) {
                Some(acc) => self.accumulate(acc, src),
                None => self.code.push(Inst::Store {
                    access: s.access,
                    src,
                }),
            }
            self.consume(without_casts(self.kernel, s.value), &mut local);
        }
        for v in defined {
            if local.contains_key(&v) {
                self.free(v);
            }
        }
        // Free the values of earlier stages that no later one uses.
        for i in 0..self.registers.len() {
            if self.registers[i].is_some() && self.uses.last_stage[i] <= stage {
                self.free(Val(i as u32));
            }
        }
        self.take_stage(plan.over_inner, SerialPoints::Every)
    }

    fn take_stage(&mut self, over_inner: bool, serial_points: SerialPoints) -> Stage {
        Stage {
            over_inner,
            serial_points,
            code: std::mem::take(&mut self.code),
        }
    }

    /// Adds an accumulator for each store that combines, with a slot after the existing ones.
    fn add_accumulators(&mut self, slots: &mut Vec<Compute>) {
        let kernel = self.kernel;
        let serial = &kernel.axes[kernel.axes.len() - kernel.serial..];
        let points = serial.iter().fold(1, |n, d| estimate(d).saturating_mul(n));
        for store in &kernel.stores {
            let Some(op) = store.combine else { continue };
            let dtype = match kernel.body[store.value.index()].dtype {
                DType::F32 if op == Reduction::Sum && points > MAX_IN_F32 => DType::F64,
                dtype => dtype,
            };
            self.accumulators.push(Accumulator {
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
        for i in 0..self.accumulators.len() {
            let Accumulator {
                op, slot, dtype, ..
            } = self.accumulators[i];
            let src = self.constant(op.identity(dtype), dtype.compute());
            self.code.push(Inst::Keep { slot, src });
        }
        (!self.accumulators.is_empty()).then(|| self.take_stage(true, SerialPoints::First))
    }

    /// Emits the combination of accumulator `i` with a point's value.
    fn accumulate(&mut self, i: usize, src: Reg) {
        let Accumulator {
            op, slot, dtype, ..
        } = self.accumulators[i];
        let from = self.kernel.body[self.accumulators[i].store.value.index()].dtype;
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

    /// Emits a conversion, and returns a register that is valid for the next instruction only.
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
        for i in 0..self.accumulators.len() {
            let Accumulator { slot, dtype, .. } = self.accumulators[i];
            let Store { access, value, .. } = self.accumulators[i].store;
            let to = self.kernel.body[value.index()].dtype;
            let kept = self.regs.take(dtype.compute());
            self.code.push(Inst::Kept { dst: kept, slot });
            self.regs.give_back(kept);
            let src = self.convert(kept, dtype, to);
            self.code.push(Inst::Store { access, src });
        }
        (!self.accumulators.is_empty()).then(|| self.take_stage(true, SerialPoints::Last))
    }

    /// Counts a use of a value, and frees its register after the last one.
    fn consume(&mut self, v: Val, local: &mut HashMap<Val, u32>) {
        if let Some(uses_left) = local.get_mut(&v) {
            *uses_left -= 1;
            if *uses_left == 0 {
                local.remove(&v);
                self.free(v);
            }
        }
    }

    fn allocate(&mut self, v: Val) -> Reg {
        let dtype = self.kernel.body[v.index()].dtype;
        self.regs.take(dtype.compute())
    }

    fn free(&mut self, v: Val) {
        if let Some(reg) = self.registers[v.index()].take() {
            self.regs.give_back(reg);
        }
    }

    /// Returns the register that holds a value.
    fn reg(&mut self, v: Val) -> Reg {
        let v = without_casts(self.kernel, v);
        let def = &self.kernel.body[v.index()];
        if let Expr::Const(c) = def.expr {
            return self.constant(c, def.dtype.compute());
        }
        self.registers[v.index()].expect("values are defined before they are used")
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

    /// Emits the definition of a value, and returns its operands.
    fn compute(&mut self, v: Val) -> Vec<Val> {
        let def = self.kernel.body[v.index()].clone();
        let mut operands = Vec::new();
        def.expr
            .operands(|o| operands.push(without_casts(self.kernel, o)));
        if def.expr.is_reduction() {
            let (acc, a) = (self.reg(v), self.reg(operands[0]));
            self.code.push(match def.expr {
                Expr::ArgReduce { op, .. } => Inst::ArgReduce { op, acc, a },
                Expr::Reduce { op, .. } => Inst::Reduce { op, acc, a },
                _ => unreachable!("is_reduction covers these"),
            });
            return operands;
        }
        let regs: Vec<Reg> = operands.iter().map(|o| self.reg(*o)).collect();
        let dst = self.allocate(v);
        self.registers[v.index()] = Some(dst);
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
