//! From a checked program to code.

use super::bound::{Bound, BoundDynamic};
use super::code::Code;
use super::compute::{plain_dtype, scalar_bits};
use super::frame::Frame;
use super::inst::{cost, operands};
use super::linked::{Linked, Stage};
use super::lower::{self, Draft, Hidden, Make, Value, draft, plain};
use super::walk::{Shape, Walk};
use super::{ahead, kernels, live, load, random, reduce};
use crate::error::{Result, damaged};
use crate::memory::ALIGN;
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

struct Linker<'a> {
    bound: &'a Bound<'a>,
    level: Level,
    frame: Frame,
    /// The registers that have a place of their own, by stage.
    fixed: Vec<HashSet<u16>>,
    /// Their physical registers.
    globals: HashMap<u16, u32>,
    walks: Vec<Walk>,
    walk_of: HashMap<(usize, bool), u32>,
    states: u32,
    /// `Index` and `LoadAt` instructions met so far.
    indices: usize,
    gathers: usize,
    dynamics: Vec<Vec<BoundDynamic>>,
    streams: bool,
}

/// Compiles a checked program for `level`.
///
/// # Errors
/// If it needs more axes or memory than the engine has.
pub(crate) fn link(bound: &Bound, level: Level) -> Result<Linked> {
    let program = bound.program;
    let mut l = Linker {
        bound,
        level,
        frame: Frame::default(),
        fixed: live::fixed(program),
        globals: HashMap::new(),
        walks: vec![],
        walk_of: HashMap::new(),
        states: 0,
        indices: program.accesses.len(),
        gathers: 0,
        dynamics: vec![],
        streams: false,
    };
    let mut fixed: Vec<u16> = l.fixed.iter().flatten().copied().collect();
    fixed.extend(program.constants.iter().map(|(r, _)| r.0));
    fixed.sort();
    fixed.dedup();
    for r in fixed {
        let p = l.frame.fresh(program.registers[r as usize], false);
        l.globals.insert(r, p);
    }
    let mut stages = (0..program.stages.len())
        .map(|i| l.stage(i))
        .collect::<Result<Vec<_>>>()?;
    ahead::fetch(bound, &l.walks, &mut stages);
    l.finish(stages)
}

impl Linker<'_> {
    fn walk(&mut self, access: usize, over_inner: bool) -> Result<u32> {
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
    fn streams(&self, arg: usize) -> bool {
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
        let mut stage = lower::Stage::default();
        let mut current: HashMap<u16, Value> = HashMap::new();
        let mut out = Stage {
            over_inner: source.over_inner,
            turn: source.turn,
            begin: vec![],
            body: vec![],
            end: vec![],
            walks: vec![],
            moving: vec![],
            general: vec![],
        };
        let mut walks = Vec::new();
        for inst in &source.code {
            let (_, writes) = operands(inst);
            let read = |r: Reg, current: &HashMap<u16, Value>| match current.get(&r.0) {
                Some(v) => *v,
                None => Value::Global(self.globals[&r.0]),
            };
            let (reads, _) = operands(inst);
            let mut sources = [None; 3];
            if !matches!(inst, Inst::LoadAt { .. }) {
                for (s, r) in sources.iter_mut().zip(reads) {
                    *s = Some(read(r, &current));
                }
            }
            let ty = writes.map(|r| program.registers[r.0 as usize]);
            let dst = writes.map(|r| {
                if self.fixed[index].contains(&r.0) {
                    return Value::Global(self.globals[&r.0]);
                }
                let v = stage.local(program.registers[r.0 as usize]);
                current.insert(r.0, v);
                v
            });
            let parts = Parts { sources, dst };
            self.inst(
                inst,
                source.over_inner,
                parts,
                &mut stage,
                &mut out,
                &mut walks,
            )?
            .into_iter()
            .for_each(|d| stage.push(d, ty.unwrap_or(Compute::F32), self.level));
        }
        out.body = stage.emit(&mut self.frame, self.level);
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
        if program.schedule == Schedule::Rows && !source.over_inner {
            self.spread(index, &mut out);
        }
        Ok(out)
    }

    /// Spreads what a stage outside `inner` wrote and a stage over `inner` reads.
    fn spread(&self, index: usize, out: &mut Stage) {
        let program = self.bound.program;
        let mut read: HashSet<u16> = HashSet::new();
        for s in program.stages.iter().filter(|s| s.over_inner) {
            read.extend(s.code.iter().flat_map(|i| operands(i).0).map(|r| r.0));
        }
        let mut written: Vec<u16> = (program.stages[index].code.iter())
            .filter_map(|i| operands(i).1)
            .map(|r| r.0)
            .filter(|r| self.fixed[index].contains(r) && read.contains(r))
            .collect();
        written.sort();
        written.dedup();
        for r in written {
            let f = kernels::spread(program.registers[r as usize], self.level);
            out.end.push(plain(f, self.globals[&r], 0));
        }
    }

    fn inst(
        &mut self,
        inst: &Inst,
        over_inner: bool,
        Parts { sources, dst }: Parts,
        stage: &mut lower::Stage,
        out: &mut Stage,
        walks: &mut Vec<u32>,
    ) -> Result<Option<Draft>> {
        let (program, level) = (self.bound.program, self.level);
        let ty = |r: &Reg| program.registers[r.0 as usize];
        let place = || dst.ok_or_else(|| damaged!("an instruction without a result"));
        Ok(Some(match inst {
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
                let mut list = self.bound.dynamics[self.gathers].clone();
                self.gathers += 1;
                for d in &mut list {
                    d.index = self.globals[&d.index] as u16;
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
                let x = self.walk(self.indices, over_inner)?;
                self.indices += 1;
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
                self.reduction(inst, self.globals[&acc.0], sources, out)
            }
        }))
    }

    /// Adds what comes before and after the tiles, and gives the draft for each tile.
    fn reduction(
        &mut self,
        inst: &Inst,
        acc: u32,
        sources: [Option<Value>; 3],
        out: &mut Stage,
    ) -> Draft {
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
                let long = parts.long;
                (parts, long.then_some(Compute::F64))
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
        Draft {
            make: Make::Plain(parts.body),
            dst: None,
            sources,
            x,
            hidden: Hidden::Reduce { acc, beside },
        }
    }

    fn finish(mut self, stages: Vec<Stage>) -> Result<Linked> {
        let bound = self.bound;
        let program = bound.program;
        let (mut bases, mut coords) = (0, 0);
        for w in &mut self.walks {
            (w.base_at, w.coord_at) = (bases, coords);
            bases += 1 + w.limits.len();
            coords += w.lanes.len();
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
            .map(|(r, value)| {
                let ty = program.registers[r.0 as usize];
                (self.globals[&r.0], ty, scalar_bits(*value, ty))
            })
            .collect();
        Ok(Linked {
            schedule: program.schedule,
            outer: bound.outer.clone(),
            outer_len,
            lane_len,
            points: bound.axes_len(),
            serial: bound.serial,
            tile,
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
        })
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

/// An instruction's operands as values.
struct Parts {
    sources: [Option<Value>; 3],
    dst: Option<Value>,
}
