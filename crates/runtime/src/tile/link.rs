//! From a checked program to code.

use super::bound::{Bound, BoundDynamic};
use super::call::Printed;
use super::code::Code;
use super::compute::{plain_dtype, scalar_bits};
use super::frame::Frame;
use super::inst::{cost, operands};
use super::linked::{Linked, Stage};
use super::lower::{self, Draft, Hidden, Make, Value, draft, plain};
use super::rounds::{self, Name, Round};
use super::walk::{Shape, Walk};
use super::{kernels, live, load, random, reduce};
use crate::error::{Result, damaged};
use crate::memory::ALIGN;
#[cfg(all(target_arch = "x86_64", unix))]
use crate::printed::Target;
use crate::simd::Level;
use hashbrown::{HashMap, HashSet};
use kiln_base::Compute;
use kiln_plan::tile::{Inst, Reg, Schedule, TILE};

/// A result of at least this many bytes bypasses the cache.
const STREAM_BYTES: i64 = 32 << 20;

/// Parts of each thread: the last to end has little left to do, wherever it was interrupted.
const PARTS: u8 = 4;

/// The least elements of a tile.
const LEAST_TILE: usize = 64;

/// The most working memory of one thread.
const FRAME_LIMIT: usize = 1 << 32;

pub(super) struct Linker<'a> {
    pub(super) bound: &'a Bound<'a>,
    pub(super) level: Level,
    frame: Frame,
    /// The registers that have a place of their own, by stage.
    pub(super) fixed: Vec<HashSet<u16>>,
    /// Their physical registers, and those of constants, where something is in them.
    globals: HashMap<u16, u32>,
    /// What interpreted code over the lanes of a row reads of these.
    pub(super) spread: HashSet<u16>,
    pub(super) printed: Vec<Printed>,
    /// Whether anything is printed.
    prints: bool,
    pub(super) walks: Vec<Walk>,
    walk_of: HashMap<(usize, bool), u32>,
    states: u32,
    /// `Index` and `LoadAt` instructions met so far.
    indices: usize,
    gathers: usize,
    dynamics: Vec<Vec<BoundDynamic>>,
    pub(super) streams: bool,
}

/// Compiles a checked program for `level`.
///
/// # Errors
/// If it needs more axes or memory than the engine has.
pub(crate) fn link(bound: &Bound, level: Level) -> Result<Linked> {
    link_as(bound, level, true)
}

/// The same, and whether what has a printed form is printed.
pub(super) fn link_as(bound: &Bound, level: Level, prints: bool) -> Result<Linked> {
    let program = bound.program;
    let mut l = Linker {
        bound,
        level,
        frame: Frame::default(),
        fixed: live::fixed(program),
        globals: HashMap::new(),
        spread: HashSet::new(),
        printed: vec![],
        prints,
        walks: vec![],
        walk_of: HashMap::new(),
        states: 0,
        indices: program.accesses.len(),
        gathers: 0,
        dynamics: vec![],
        streams: false,
    };
    let mut stages = (0..program.stages.len())
        .map(|i| l.stage(i))
        .collect::<Result<Vec<_>>>()?;
    l.spread(&mut stages);
    l.finish(stages)
}

impl Linker<'_> {
    /// The physical register of one that has a place of its own.
    pub(super) fn global(&mut self, r: u16) -> u32 {
        if let Some(p) = self.globals.get(&r) {
            return *p;
        }
        let p = self
            .frame
            .fresh(self.bound.program.registers[usize::from(r)], false);
        self.globals.insert(r, p);
        p
    }

    pub(super) fn walk(&mut self, access: usize, over_inner: bool) -> Result<u32> {
        let key = (access, over_inner);
        if let Some(w) = self.walk_of.get(&key) {
            return Ok(*w);
        }
        let bound = self.bound;
        let a = &bound.accesses[access];
        let scalar = bound.program.schedule == Schedule::Rows && !over_inner;
        let fill = a.arg.map_or(0, |arg| {
            let dtype = bound.program.args[arg].dtype;
            scalar_bits(a.fill.cast(dtype), dtype.compute())
        });
        let mut walk = Walk::new(a, bound.outer.len(), &bound.lane, scalar, fill)?;
        walk.len = a.arg.map_or(0, |arg| bound.lens[arg]);
        walk.reads_memory = a.arg.is_some();
        let extents: Vec<i64> = bound.outer.iter().chain(&bound.lane).copied().collect();
        walk.range = a.address.range(&extents);
        self.walks.push(walk);
        let id = self.walks.len() as u32 - 1;
        self.walk_of.insert(key, id);
        Ok(id)
    }

    /// Whether a store to `arg` should bypass the cache: large, if nothing else is said, and not read here.
    pub(super) fn streams(&self, arg: usize) -> bool {
        let program = self.bound.program;
        let bytes = self.bound.lens[arg].saturating_mul(program.args[arg].dtype.size() as i64);
        let reads = |inst: &Inst| match inst {
            Inst::Load { access, .. } | Inst::LoadAt { access, .. } => {
                program.accesses[*access as usize].arg as usize == arg
            }
            _ => false,
        };
        let large = || bytes >= STREAM_BYTES;
        program.cut.stream.unwrap_or_else(large)
            && !program.stages.iter().flat_map(|s| &s.code).any(reads)
    }

    fn stage(&mut self, index: usize) -> Result<Stage> {
        let program = self.bound.program;
        let source = &program.stages[index];
        let mut draft = Drafting {
            index,
            names: rounds::names(&source.code),
            stage: lower::Stage::default(),
            values: HashMap::new(),
            walks: vec![],
            out: Stage {
                over_inner: source.over_inner,
                turn: source.turn,
                begin: vec![],
                body: vec![],
                end: vec![],
                walks: vec![],
                moving: vec![],
                general: vec![],
                steps: false,
                step: 0,
            },
        };
        let (mut indices, mut gathers) = (vec![], vec![]);
        for inst in &source.code {
            indices.push(self.indices);
            gathers.push(self.gathers);
            self.indices += usize::from(matches!(inst, Inst::Index { .. }));
            self.gathers += usize::from(matches!(inst, Inst::LoadAt { .. }));
        }
        for round in self.rounds(index)? {
            if round.printed {
                self.function(&mut draft, &round.code)?;
                continue;
            }
            for i in round.code {
                self.interpreted(&mut draft, i, (indices[i], gathers[i]))?;
            }
        }
        let Drafting {
            stage,
            mut walks,
            mut out,
            ..
        } = draft;
        let lanes = self.bound.program.schedule == Schedule::Lanes;
        let steps = stage.functions.iter().any(|f| f.printed.steps);
        out.steps = lanes && out.over_inner && steps;
        out.body = stage.emit(&mut self.frame, &mut self.printed, self.level);
        walks.sort();
        walks.dedup();
        let walk = |w: &u32| &self.walks[*w as usize];
        out.moving = walks.iter().copied().filter(|w| walk(w).moves()).collect();
        out.general = walks
            .iter()
            .copied()
            .filter(|w| walk(w).shape == Shape::General)
            .collect();
        out.walks = walks;
        Ok(out)
    }

    /// Adds an instruction that is interpreted.
    pub(super) fn interpreted(
        &mut self,
        draft: &mut Drafting,
        i: usize,
        numbers: (usize, usize),
    ) -> Result<()> {
        let program = self.bound.program;
        let source = &program.stages[draft.index];
        let inst = &source.code[i];
        let (reads, writes) = operands(inst);
        let mut sources = [None; 3];
        for (k, name) in draft.names[i].clone().into_iter().enumerate() {
            let value = self.value(draft, name, reads[k].0);
            if let (Value::Global(_), true) = (value, source.over_inner) {
                self.spread.insert(reads[k].0);
            }
            if !matches!(inst, Inst::LoadAt { .. }) {
                sources[k] = Some(value);
            }
        }
        let ty = writes.map(|r| program.registers[r.0 as usize]);
        let dst = writes.map(|r| self.made(draft, i, r));
        let parts = Parts { sources, dst };
        let made = self.inst(inst, source.over_inner, parts, draft, numbers)?;
        for d in made {
            draft.stage.push(d, ty.unwrap_or(Compute::F32), self.level);
        }
        Ok(())
    }

    /// Where a register's value is that instructions of other rounds may read.
    pub(super) fn value(&mut self, draft: &Drafting, name: Name, r: u16) -> Value {
        match name {
            Name::Made(i) if !self.fixed[draft.index].contains(&r) => draft.values[&i],
            _ => Value::Global(self.global(r)),
        }
    }

    /// Where an instruction writes its result.
    pub(super) fn made(&mut self, draft: &mut Drafting, i: usize, r: Reg) -> Value {
        if self.fixed[draft.index].contains(&r.0) {
            return Value::Global(self.global(r.0));
        }
        let ty = self.bound.program.registers[r.0 as usize];
        let value = draft.stage.local(ty);
        draft.values.insert(i, value);
        value
    }

    /// The instructions of a stage, as those that run together.
    fn rounds(&mut self, index: usize) -> Result<Vec<Round>> {
        let code = &self.bound.program.stages[index].code;
        #[cfg(all(target_arch = "x86_64", unix))]
        if self.prints
            && let Some(target) = Target::of(self.level)
        {
            let printed = self.which_are_printed(target, index)?;
            return Ok(rounds::rounds(code, &self.fixed[index], &printed));
        }
        Ok(vec![Round {
            printed: false,
            code: (0..code.len()).collect(),
        }])
    }

    #[cfg(not(all(target_arch = "x86_64", unix)))]
    fn function(&mut self, _: &mut Drafting, _: &[usize]) -> Result<()> {
        Err(damaged!("nothing is printed on this machine"))
    }

    /// Spreads what is read over the lanes of a row, and written for the row as a whole.
    fn spread(&self, stages: &mut [Stage]) {
        let program = self.bound.program;
        if program.schedule != Schedule::Rows {
            return;
        }
        for (i, (stage, out)) in program.stages.iter().zip(stages).enumerate() {
            let mut written: Vec<u16> = (stage.code.iter())
                .filter(|inst| {
                    let reduces = matches!(inst, Inst::Reduce { .. } | Inst::ArgReduce { .. });
                    !stage.over_inner || reduces
                })
                .filter_map(|i| operands(i).1)
                .map(|r| r.0)
                .filter(|r| self.fixed[i].contains(r) && self.spread.contains(r))
                .collect();
            written.sort();
            written.dedup();
            for r in written {
                let f = kernels::spread(program.registers[r as usize], self.level);
                out.end.push(plain(f, self.globals[&r], 0));
            }
        }
    }

    fn inst(
        &mut self,
        inst: &Inst,
        over_inner: bool,
        Parts { sources, dst }: Parts,
        drafting: &mut Drafting,
        (index, gather): (usize, usize),
    ) -> Result<Vec<Draft>> {
        let (program, level) = (self.bound.program, self.level);
        let ty = |r: &Reg| program.registers[r.0 as usize];
        let place = || dst.ok_or_else(|| damaged!("an instruction without a result"));
        let Drafting {
            stage, out, walks, ..
        } = drafting;
        Ok(vec![match inst {
            Inst::Load { access, .. } | Inst::Store { access, .. } => {
                let x = self.walk(*access as usize, over_inner)?;
                walks.push(x);
                let shape = self.walks[x as usize].shape;
                let arg = program.accesses[*access as usize].arg as usize;
                let dtype = program.args[arg].dtype;
                let mut sources = sources;
                let make = match inst {
                    Inst::Store { src, .. } => {
                        if ty(src) != dtype.compute() {
                            let cast = lower::convert(plain_dtype(ty(src)), dtype, level);
                            let converted = stage.local(dtype.compute());
                            stage.push(draft(cast, converted, sources, 0), dtype.compute(), level);
                            sources = [Some(converted), None, None];
                        }
                        let plain = shape == Shape::Contiguous && load::is_direct(dtype);
                        let stream = plain && self.streams(arg);
                        self.streams |= stream;
                        Make::Store {
                            shape,
                            dtype,
                            stream,
                        }
                    }
                    _ => Make::Load { shape, dtype },
                };
                Draft {
                    make,
                    dst,
                    sources,
                    x,
                    hidden: Hidden::None,
                }
            }
            Inst::LoadAt { access, .. } => {
                let x = self.walk(*access as usize, over_inner)?;
                // Its walk is visited in runs whatever its shape, and reaches further than it says.
                self.walks[x as usize].shape = Shape::General;
                self.walks[x as usize].dynamic = true;
                walks.push(x);
                let arg = program.accesses[*access as usize].arg as usize;
                let mut list = self.bound.dynamics[gather].clone();
                for d in &mut list {
                    d.index = self.global(d.index) as u16;
                }
                self.dynamics.push(list);
                Draft {
                    hidden: Hidden::Dynamics(self.dynamics.len() as u32 - 1),
                    ..draft(
                        lower::load_at(program.args[arg].dtype, level),
                        place()?,
                        sources,
                        x,
                    )
                }
            }
            Inst::Index { .. } => {
                let x = self.walk(index, over_inner)?;
                self.walks[x as usize].shape = Shape::General;
                walks.push(x);
                draft(load::index(level), place()?, sources, x)
            }
            Inst::Unary { op, a, .. } => {
                draft(kernels::unary(*op, ty(a), level), place()?, sources, 0)
            }
            Inst::Binary { op, a, site, .. } => {
                draft(kernels::binary(*op, ty(a), level), place()?, sources, *site)
            }
            Inst::Select { a, .. } => draft(kernels::select(ty(a), level), place()?, sources, 0),
            Inst::Convert { from, to, .. } => {
                draft(lower::convert(*from, *to, level), place()?, sources, 0)
            }
            Inst::Random { kind, dst, .. } => {
                draft(random::random(*kind, ty(dst), level), place()?, sources, 0)
            }
            Inst::Keep { slot, src } => Draft {
                make: Make::Keep(ty(src)),
                dst: None,
                sources,
                x: *slot as u32,
                hidden: Hidden::None,
            },
            Inst::Kept { slot, dst: r } => Draft {
                make: Make::Kept(ty(r)),
                dst,
                sources,
                x: *slot as u32,
                hidden: Hidden::None,
            },
            Inst::Reduce { acc, .. } | Inst::ArgReduce { acc, .. } => {
                let acc = self.global(acc.0);
                let (draft, after) = self.reduction(inst, acc, sources, out);
                return Ok([draft].into_iter().chain(after).collect());
            }
        }])
    }

    /// Adds what comes before and after the tiles, and gives the draft for each tile, and of what may follow it.
    pub(super) fn reduction(
        &mut self,
        inst: &Inst,
        acc: u32,
        sources: [Option<Value>; 3],
        out: &mut Stage,
    ) -> (Draft, Option<Draft>) {
        let program = self.bound.program;
        let level = self.level;
        let rows = program.schedule == Schedule::Rows;
        let steps: i64 = self.bound.outer.iter().product();
        let (parts, beside) = match inst {
            Inst::Reduce { op, a, .. } => {
                let ty = program.registers[a.0 as usize];
                let parts = if rows {
                    reduce::rows(*op, ty, level)
                } else {
                    reduce::lanes(*op, ty, steps, level)
                };
                let beside = parts.after.map(|_| Compute::F64);
                (parts, beside)
            }
            Inst::ArgReduce { op, a, .. } => {
                let ty = program.registers[a.0 as usize];
                if rows {
                    (reduce::arg_rows(*op, ty, level), None)
                } else {
                    (reduce::arg_lanes(*op, ty, level), Some(ty))
                }
            }
            _ => unreachable!("called for reductions only"),
        };
        let beside = beside.map_or(0, |ty| self.frame.fresh(ty, false));
        let x = self.states;
        self.states += 2;
        let code = |f, dst| Code {
            b: beside,
            ..plain(f, dst, x)
        };
        for (i, f) in parts.begin.iter().enumerate() {
            out.begin.push(code(*f, if i == 0 { acc } else { beside }));
        }
        out.end.extend(parts.end.map(|f| code(f, acc)));
        let draft = |f, sources| Draft {
            make: Make::Plain(f),
            dst: None,
            sources,
            x,
            hidden: Hidden::Reduce { acc, beside },
        };
        (
            draft(parts.body, sources),
            parts.after.map(|f| draft(f, [None; 3])),
        )
    }

    fn finish(mut self, stages: Vec<Stage>) -> Result<Linked> {
        let bound = self.bound;
        let program = bound.program;
        let (mut bases, mut coords) = (0, 0);
        for w in &mut self.walks {
            (w.base_at, w.coord_at) = (bases, coords);
            bases += 1 + w.limits.len();
            coords += w.numbers();
        }
        let outer_len: i64 = bound.outer.iter().product();
        let lane_len: i64 = bound.lane.iter().product();
        let slot_bytes: usize = program.slots.iter().map(|s| s.size()).sum();
        let tile = self.tile(outer_len, slot_bytes);
        let rows = program.schedule == Schedule::Rows;
        // A row's slot may end in a partial tile but never exceeds the row.
        let slot_len = if rows {
            lane_len
        } else {
            outer_len.saturating_mul(tile as i64)
        };
        let mut frame = 0usize;
        let mut place = |elements: usize, size: usize| {
            let at = frame;
            let bytes = elements.saturating_mul(size).saturating_add(ALIGN);
            frame = frame.saturating_add(bytes / ALIGN * ALIGN);
            at
        };
        let homes = self.frame.types.iter().map(|t| place(tile, t.size()));
        let homes: Vec<usize> = homes.collect();
        let slots = program
            .slots
            .iter()
            .map(|t| place(slot_len as usize, t.size()));
        let slots: Vec<usize> = slots.collect();
        if frame > FRAME_LIMIT {
            return Err(damaged!("{} needs {frame} bytes of scratch", program.name));
        }
        let constants = (program.constants.iter())
            .filter_map(|(r, value)| {
                let ty = program.registers[r.0 as usize];
                let p = self.globals.get(&r.0)?;
                Some((*p, ty, scalar_bits(*value, ty)))
            })
            .collect();
        let mut linked = Linked {
            schedule: program.schedule,
            outer: bound.outer.clone(),
            outer_len,
            lane_len,
            points: bound.axes_len(),
            serial: bound.serial,
            tile,
            step: tile,
            printed: self.printed,
            walks: self.walks,
            stages,
            dynamics: self.dynamics,
            constants,
            homes,
            slots,
            frame,
            bases,
            coords,
            states: self.states as usize,
            streams: self.streams,
            cost: cost(bound),
            parts: i64::from(program.cut.parts.unwrap_or(PARTS)),
            parallel: bound.parallel,
            covered: bound.covered.clone(),
            pieces: Vec::new(),
        };
        linked.set_steps();
        Ok(linked)
    }

    /// Lanes of a tile: fewer where many registers would leave the first-level cache, or the slots
    /// of a tile of rows the second.
    fn tile(&self, outer_len: i64, slot_bytes: usize) -> usize {
        let live: usize = (self.frame.types.iter().zip(&self.frame.pointable))
            .filter(|(_, pointable)| !**pointable)
            .map(|(t, _)| t.size())
            .sum();
        if let Some(tile) = self.bound.program.cut.tile {
            return usize::from(tile).clamp(LEAST_TILE, TILE);
        }
        let mut tile = TILE;
        while tile > 128 && live * tile > 32 << 10 {
            tile /= 2;
        }
        if self.bound.program.schedule == Schedule::Lanes {
            let slots = slot_bytes.saturating_mul(outer_len as usize);
            while tile > LEAST_TILE && slots.saturating_mul(tile) > 512 << 10 {
                tile /= 2;
            }
        }
        tile
    }
}

/// A stage while its instructions are gathered.
pub(super) struct Drafting {
    pub index: usize,
    /// What each instruction reads.
    pub names: Vec<Vec<Name>>,
    pub stage: lower::Stage,
    /// What instructions made that others read.
    pub values: HashMap<usize, Value>,
    pub walks: Vec<u32>,
    pub out: Stage,
}

/// An instruction's operands as values.
struct Parts {
    sources: [Option<Value>; 3],
    dst: Option<Value>,
}
