//! The construction of an emitted body, instruction by instruction.

use super::blocks;
use super::code::Op;
use super::emit::{kind_of, min_run};
use super::emitted::{EmittedOperand, OperandLocation};
use super::link::{Linker, instruction};
use super::linked::Stage;
use super::load;
use super::prefetch;
use super::walk::{Shape, Walk};
use hashbrown::{HashMap, HashSet};
use kiln_base::{Compute, DType};
use kiln_jit::emission::lines::Key;
use kiln_jit::emission::stage::{Body, Kind};
use kiln_kernel::error::{Result, damaged};
use kiln_plan::tile::{Inst, Reg, Schedule, TILE};

/// A body under construction.
pub(super) struct BodyBuilder {
    pub(super) stage: usize,
    /// True if its lanes are the elements of a row.
    by_row: bool,
    /// True if there is one lane.
    pub(super) scalar: bool,
    /// True if lanes are reduced separately.
    pub(super) by_lane: bool,
    pub body: Body,
    pub operands: Vec<EmittedOperand>,
    pub walks: Vec<u32>,
    /// The body's registers with the current values of the program's registers.
    current: HashMap<u16, Reg>,
    /// The body's registers with the inputs of the body, by the program's registers.
    inputs: HashMap<u16, Reg>,
    /// The accesses of loads, by walk.
    loads: HashMap<u32, u16>,
    /// The registers with the affine numbers of a walk.
    pub(super) numbers: HashMap<u32, Reg>,
    slots: HashMap<u16, u16>,
    /// The physical registers that hold copies of the body's registers.
    homes: HashMap<u16, u32>,
    /// The emitted reductions: the instruction, and the operand of its accumulator.
    pub reductions: Vec<(usize, usize)>,
    /// The instructions after the emitted function.
    pub deferred: Vec<DetachedInst>,
    /// The arguments with stores.
    pub(super) stored: HashSet<u16>,
    /// The arguments with deferred stores.
    stored_late: HashSet<u16>,
}

/// An instruction after the emitted function, and the physical register that it reads.
pub(super) struct DetachedInst {
    pub inst: usize,
    pub src: u32,
}

impl BodyBuilder {
    pub(super) fn new(linker: &Linker, stage: usize) -> BodyBuilder {
        let program = linker.bound.program;
        let rows = program.schedule == Schedule::Rows;
        let source = &program.stages[stage];
        let by_row = rows && source.over_inner;
        let reduces = source.code.iter().any(|i| is_emitted_reduction(linker, i));
        let tile = program.sizes.tile.map_or(TILE, usize::from).clamp(1, TILE);
        BodyBuilder {
            stage,
            by_row,
            scalar: rows && !source.over_inner,
            by_lane: !rows && source.over_inner,
            body: Body {
                block: (by_row && reduces).then_some(tile as u32),
                steps: !rows && source.over_inner,
                ..Body::default()
            },
            operands: vec![],
            walks: vec![],
            current: HashMap::new(),
            inputs: HashMap::new(),
            loads: HashMap::new(),
            numbers: HashMap::new(),
            slots: HashMap::new(),
            homes: HashMap::new(),
            reductions: vec![],
            deferred: vec![],
            stored: HashSet::new(),
            stored_late: HashSet::new(),
        }
    }

    pub(super) fn register(&mut self, ty: Compute) -> Result<Reg> {
        let n = u16::try_from(self.body.registers.len());
        self.body.registers.push(ty);
        Ok(Reg(n.map_err(|_| damaged!("a stage of too many values"))?))
    }

    pub(super) fn add_operand(&mut self, key: Key, kind: Kind, location: OperandLocation) -> usize {
        let size = self.body.size(key);
        self.body.operands.push((key, kind));
        self.operands.push(EmittedOperand {
            location,
            size,
            step: match kind {
                Kind::Lanes | Kind::Stream => size,
                _ => 0,
            },
            streams: kind == Kind::Stream,
            number: kind == Kind::Number,
        });
        self.operands.len() - 1
    }

    /// Returns the body's register for a read of the program's register `r`.
    fn read(&mut self, linker: &mut Linker, r: Reg) -> Result<Reg> {
        if let Some(r) = self.current.get(&r.0).or_else(|| self.inputs.get(&r.0)) {
            return Ok(*r);
        }
        let program = linker.bound.program;
        let new = self.register(program.registers[usize::from(r.0)])?;
        self.inputs.insert(r.0, new);
        let constant = program.constants.iter().find(|(c, _)| *c == r);
        if let Some((_, x)) = constant {
            self.body.constants.push((new, *x));
            return Ok(new);
        }
        // Stages where the register is not live may use it for another value.
        let mut stages = (0..program.stages.len())
            .filter(|s| program.stages[*s].over_inner && linker.fixed[*s].contains(&r.0));
        let varies = stages.any(|s| {
            program.stages[s].code.iter().any(|i| {
                let reduces = matches!(i, Inst::Reduce { .. } | Inst::ArgReduce { .. });
                !reduces && i.operands().1 == Some(r)
            })
        });
        let is_uniform = self.by_row && !varies;
        if self.by_row && varies {
            linker.broadcast.insert(r.0);
        }
        let kind = if is_uniform { Kind::Splat } else { Kind::Lanes };
        let location = OperandLocation::Register(linker.physical(r.0));
        self.add_operand(Key::Input(new), kind, location);
        Ok(new)
    }

    /// Adds an interpreted instruction before the emitted function, and returns the register that it writes. It runs
    /// once for all steps of a tile if `once`, or else at each step, and a call then has one step.
    pub(super) fn prepend(
        &mut self,
        linker: &mut Linker,
        ty: Compute,
        (f, x): (Op, u32),
        (out, once): (&mut Stage, bool),
    ) -> Result<Reg> {
        let reg = linker.new_register(ty);
        let code = if once { &mut out.begin } else { &mut out.body };
        code.push(instruction(f, reg, x));
        out.general.push(x);
        self.walks.push(x);
        self.body.steps &= once;
        let new = self.register(ty)?;
        self.add_operand(Key::Input(new), Kind::Lanes, OperandLocation::Register(reg));
        self.homes.insert(new.0, reg);
        Ok(new)
    }

    /// Defers an instruction that reads a register until after the emitted function.
    fn defer(&mut self, linker: &mut Linker, inst: usize, r: Reg) {
        self.body.steps = false;
        let from = self.homes.get(&r.0).copied().unwrap_or_else(|| {
            let from = linker.new_register(self.body.registers[usize::from(r.0)]);
            self.body.outputs.push(r);
            self.add_operand(Key::Output(r), Kind::Lanes, OperandLocation::Register(from));
            self.homes.insert(r.0, from);
            from
        });
        self.deferred.push(DetachedInst { inst, src: from });
    }

    /// Returns the stride within a walk's runs, if emitted code over them pays.
    pub(super) fn run_stride(&self, walk: &Walk) -> Option<i64> {
        walk.long_runs(min_run(walk, self.by_row || self.by_lane))
    }

    /// Returns the operand kind of an access, or `None` if it is interpreted.
    fn kind(&self, walk: &Walk, is_store: bool) -> Option<Kind> {
        kind_of(walk, is_store, self.scalar, self.by_row || self.by_lane)
    }

    /// Returns the location of a walk's elements.
    pub(super) fn location(walk: &Walk, x: u32) -> OperandLocation {
        match walk.shape {
            Shape::Contiguous => OperandLocation::Contiguous(x),
            Shape::Splat => OperandLocation::LaneZero(x),
            Shape::General => OperandLocation::Run(x),
        }
    }

    /// Returns the access of a walk, and adds it if it is new or a store.
    fn walk_access(
        &mut self,
        linker: &mut Linker,
        (x, arg): (u32, u16),
        mut kind: Kind,
        is_store: bool,
    ) -> u16 {
        if let (Some(n), false) = (self.loads.get(&x), is_store) {
            return *n;
        }
        let dtype = linker.bound.program.args[usize::from(arg)].dtype;
        let walk = &mut linker.walks[x as usize];
        let location = BodyBuilder::location(walk, x);
        walk.make_fills(dtype);
        let is_kept = self.body.block.is_some() || self.by_lane;
        let streams = is_store && walk.shape == Shape::Contiguous && !is_kept;
        if streams && load::is_direct(dtype) && dtype.size() >= 4 && linker.streams(arg.into()) {
            kind = Kind::Stream;
        }
        let n = self.access(dtype, kind, location);
        self.walks.push(x);
        if !is_store {
            self.loads.insert(x, n);
        }
        n
    }

    /// Returns the access to a contiguous copy of a walk, which is made for many steps at once.
    fn transposed_access(&mut self, linker: &mut Linker, x: u32, dtype: DType) -> u16 {
        if let Some(n) = self.loads.get(&x) {
            return *n;
        }
        let home = linker.new_register(dtype.compute());
        let n = self.access(dtype, Kind::Lanes, OperandLocation::Transposed(x, home));
        self.walks.push(x);
        self.loads.insert(x, n);
        n
    }

    pub(super) fn access(&mut self, dtype: DType, kind: Kind, location: OperandLocation) -> u16 {
        let n = self.body.dtypes.len() as u16;
        self.body.dtypes.push(dtype);
        self.add_operand(Key::Access(n), kind, location);
        n
    }

    fn slot(&mut self, linker: &Linker, slot: u16) -> u16 {
        if let Some(n) = self.slots.get(&slot) {
            return *n;
        }
        let n = self.body.slots.len() as u16;
        let ty = linker.bound.program.slots[usize::from(slot)];
        self.body.slots.push(ty);
        self.add_operand(
            Key::Slot(n),
            Kind::Lanes,
            OperandLocation::Slot(u32::from(slot)),
        );
        self.slots.insert(slot, n);
        n
    }

    /// Adds an instruction. Returns false if the stage can't be emitted.
    pub(super) fn add(&mut self, linker: &mut Linker, i: usize, out: &mut Stage) -> Result<bool> {
        let program = linker.bound.program;
        let inst = &program.stages[self.stage].code[i];
        let over_inner = program.stages[self.stage].over_inner;
        let (reads, writes) = inst.operands();
        let mut from = vec![];
        for r in &reads {
            from.push(self.read(linker, *r)?);
        }
        let ty = |r: Reg| program.registers[usize::from(r.0)];
        let define = |builder: &mut BodyBuilder, new: Reg| {
            if let Some(r) = writes {
                builder.current.insert(r.0, new);
            }
            Ok(true)
        };
        match inst {
            Inst::Load { access, .. } | Inst::Store { access, .. } => {
                let is_store = matches!(inst, Inst::Store { .. });
                let arg = program.accesses[usize::from(*access)].arg;
                let x = linker.walk(usize::from(*access), over_inner)?;
                let is_gather =
                    |i: &Inst| matches!(i, Inst::LoadAt { access: a, .. } if a == access);
                let mut stages = program.stages.iter().flat_map(|s| &s.code);
                if stages.any(is_gather) {
                    return Ok(false);
                }
                let kind = self.kind(&linker.walks[x as usize], is_store);
                if !is_store {
                    // Only contiguous stores can be read back, and only if they are not deferred.
                    let is_stored = self.stored.contains(&arg);
                    if self.stored_late.contains(&arg) || is_stored && kind != Some(Kind::Lanes) {
                        return Ok(false);
                    }
                    let Some(kind) = kind else {
                        let dtype = program.args[usize::from(arg)].dtype;
                        if self.by_lane && linker.walks[x as usize].is_transposable(dtype) {
                            let access = self.transposed_access(linker, x, dtype);
                            let dst = self.register(dtype.compute())?;
                            self.body.code.push(Inst::Load { dst, access });
                            return define(self, dst);
                        }
                        let walk = &mut linker.walks[x as usize];
                        let load = blocks::load(walk, dtype, linker.level);
                        let new = self.prepend(linker, dtype.compute(), (load, x), (out, false))?;
                        return define(self, new);
                    };
                    let access = self.walk_access(linker, (x, arg), kind, false);
                    let dst = self.register(ty(writes.unwrap_or(Reg(0))))?;
                    self.body.code.push(Inst::Load { dst, access });
                    return define(self, dst);
                }
                self.stored.insert(arg);
                let Some(kind) = kind.filter(|_| !self.stored_late.contains(&arg)) else {
                    self.stored_late.insert(arg);
                    self.defer(linker, i, from[0]);
                    return Ok(true);
                };
                let access = self.walk_access(linker, (x, arg), kind, true);
                let src = from[0];
                self.body.code.push(Inst::Store { access, src });
                return Ok(true);
            }
            Inst::Reduce { .. } | Inst::ArgReduce { .. } if !is_emitted_reduction(linker, inst) => {
                self.defer(linker, i, from[0]);
                return Ok(true);
            }
            Inst::Index { .. } => {
                let x = linker.walk(linker.numbers[&(self.stage, i)], over_inner)?;
                let new = self.lane_indices(linker, x, out)?;
                return define(self, new);
            }
            _ => {}
        }
        let dst = match writes {
            Some(r) => self.register(ty(r))?,
            None => Reg(0),
        };
        let new = match inst {
            Inst::LoadAt { access, .. } => {
                let Some((access, dynamic)) = self.load_at(linker, (i, *access), &from, out)?
                else {
                    return Ok(false);
                };
                Inst::LoadAt {
                    dst,
                    access,
                    dynamic,
                }
            }
            Inst::Keep { slot, .. } => Inst::Keep {
                slot: self.slot(linker, *slot),
                src: from[0],
            },
            Inst::Kept { slot, .. } => Inst::Kept {
                slot: self.slot(linker, *slot),
                dst,
            },
            Inst::Unary { op, .. } => Inst::Unary {
                op: *op,
                dst,
                a: from[0],
            },
            Inst::Binary { op, a, site, .. } => {
                if op.divides() && !ty(*a).is_float() {
                    self.enable_reports();
                }
                Inst::Binary {
                    op: *op,
                    dst,
                    a: from[0],
                    b: from[1],
                    site: *site,
                }
            }
            Inst::Select { .. } => Inst::Select {
                dst,
                mask: from[0],
                a: from[1],
                b: from[2],
            },
            Inst::Convert { from: of, to, .. } => Inst::Convert {
                dst,
                a: from[0],
                from: *of,
                to: *to,
            },
            Inst::Random { kind, .. } => Inst::Random {
                kind: *kind,
                dst,
                seed: from[0],
                offset: from[1],
                index: from[2],
            },
            Inst::Reduce { op, acc, .. } => {
                let key = Key::Accumulator(dst);
                let operand = match self.by_row {
                    true => self.add_operand(key, Kind::State, OperandLocation::State(0)),
                    false => {
                        let location = OperandLocation::Register(linker.physical(acc.0));
                        self.add_operand(key, Kind::Lanes, location)
                    }
                };
                self.reductions.push((i, operand));
                self.body.code.push(Inst::Reduce {
                    op: *op,
                    acc: dst,
                    a: from[0],
                });
                // Only later stages read it.
                return Ok(true);
            }
            _ => return Ok(false),
        };
        self.body.code.push(new);
        define(self, dst)
    }

    /// Batches runs with equal strides as rows of one call. Splats whose address differs between rows are loaded per
    /// row.
    pub(super) fn batch_runs(&mut self, linker: &Linker) {
        let has_runs = self
            .operands
            .iter()
            .any(|o| matches!(o.location, OperandLocation::Run(_)));
        let streams = self.operands.iter().any(|o| o.streams);
        self.body.steps |= has_runs && !streams && !self.by_lane && self.body.block.is_none();
        for ((_, kind), operand) in self.body.operands.iter_mut().zip(&self.operands) {
            let moves = match operand.location {
                OperandLocation::Run(_) => true,
                OperandLocation::LaneZero(x) => self.by_lane && linker.walks[x as usize].moves(),
                _ => false,
            };
            if self.body.steps && moves && *kind == Kind::Splat {
                *kind = Kind::RowSplat;
            }
        }
    }

    /// Adds prefetches of the next row.
    pub(super) fn add_prefetches(&mut self, linker: &mut Linker) -> Result<()> {
        let bound = linker.bound;
        let program = bound.program;
        let stages = program.stages.iter().filter(|s| s.over_inner);
        let mut prefetched: Vec<u32> = vec![];
        for inst in stages.flat_map(|s| &s.code) {
            let Inst::Load { access, .. } = inst else {
                continue;
            };
            let x = linker.walk(usize::from(*access), true)?;
            let walk = &linker.walks[x as usize];
            let Some(distance) =
                prefetch::prefetch_distance(bound, walk).filter(|_| !prefetched.contains(&x))
            else {
                continue;
            };
            prefetched.push(x);
            let n = self.body.dtypes.len() as u16;
            self.body.dtypes.push(program.args[walk.arg].dtype);
            self.add_operand(
                Key::Prefetch(n),
                Kind::Lanes,
                OperandLocation::Prefetch(x, distance),
            );
            self.walks.push(x);
        }
        Ok(())
    }

    /// Adds the outputs: registers that later stages read.
    pub(super) fn add_outputs(&mut self, linker: &mut Linker) {
        let mut fixed: Vec<u16> = linker.fixed[self.stage].iter().copied().collect();
        fixed.sort_unstable();
        for r in fixed {
            let Some(value) = self.current.get(&r).copied() else {
                continue;
            };
            let location = OperandLocation::Register(linker.physical(r));
            // A value with several names is a separate output for each.
            let new = Reg(self.body.registers.len() as u16);
            let ty = self.body.registers[usize::from(value.0)];
            self.body.registers.push(ty);
            let dtype = ty.dtype();
            self.body.code.push(Inst::Convert {
                dst: new,
                a: value,
                from: dtype,
                to: dtype,
            });
            self.body.outputs.push(new);
            self.add_operand(Key::Output(new), Kind::Lanes, location);
        }
    }
}

/// True if an instruction is an emitted reduction. Other reductions are deferred.
fn is_emitted_reduction(linker: &Linker, inst: &Inst) -> bool {
    let ty = |r: &Reg| linker.bound.program.registers[usize::from(r.0)];
    matches!(inst, Inst::Reduce { a, .. } if ty(a) != Compute::Mask)
}
