//! Linking of bound programs: the choice of tiles, registers and memory, and the code of each stage.

use super::code::{Instruction, Op};
use super::cost::estimate_cost;
use super::emitted::{Emitted, OperandLocation};
use super::linked::{Linked, Stage};
use super::walk::Walk;
use super::{kernels, live, load, reduce};
use hashbrown::{HashMap, HashSet};
use kiln_base::Compute;
use kiln_kernel::bound::{Bound, BoundDynamic};
use kiln_kernel::compute::scalar_bits;
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::memory::ALIGN;
use kiln_kernel::simd::Features;
use kiln_plan::tile::{Inst, Schedule, TILE};

/// The minimum number of bytes of a result that bypasses the cache.
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
const STREAM_BYTES: i64 = 32 << 20;

/// The parts per thread. More parts than threads balance the load.
const PARTS_PER_THREAD: u8 = 4;

/// The minimum number of elements of a tile.
const MIN_TILE: usize = 64;

/// The maximum number of elements that are transposed at once, in the first-level cache.
const MAX_TRANSPOSED: usize = 4096;

/// The maximum working memory of one thread.
const FRAME_LIMIT: usize = 1 << 32;

pub(super) struct Linker<'a> {
    pub(super) bound: &'a Bound<'a>,
    pub(super) level: Features,
    /// The types of physical registers.
    types: Vec<Compute>,
    /// The registers whose values outlive a tile, by stage.
    pub(super) fixed: Vec<HashSet<u16>>,
    /// The physical registers by register of the program.
    globals: HashMap<u16, u32>,
    /// The registers that instructions over the lanes of a row read in each lane.
    pub(super) broadcast: HashSet<u16>,
    pub(super) emitted: Vec<Emitted>,
    /// True if code is emitted.
    emits: bool,
    pub(super) walks: Vec<Walk>,
    walk_ids: HashMap<(usize, bool), u32>,
    states: u32,
    /// The numbers of the program's `Index` and `LoadAt` instructions, by stage and position.
    pub(super) numbers: HashMap<(usize, usize), usize>,
    dynamics: Vec<Vec<BoundDynamic>>,
    pub(super) streams: bool,
}

/// Compiles a checked program for `level`.
///
/// # Errors
/// If it needs more axes or memory than the engine has.
pub(crate) fn link(bound: &Bound, level: Features) -> Result<Linked> {
    link_with(bound, level, true)
}

/// As [`link`]; without `emits`, all stages are interpreted.
pub(super) fn link_with(bound: &Bound, level: Features, emits: bool) -> Result<Linked> {
    let program = bound.program;
    let (mut indices, mut gathers) = (program.accesses.len(), 0);
    let mut numbers = HashMap::new();
    for (stage, source) in program.stages.iter().enumerate() {
        for (i, inst) in source.code.iter().enumerate() {
            let next = match inst {
                Inst::Index { .. } => &mut indices,
                Inst::LoadAt { .. } => &mut gathers,
                _ => continue,
            };
            numbers.insert((stage, i), *next);
            *next += 1;
        }
    }
    let mut linker = Linker {
        bound,
        level,
        types: vec![],
        fixed: live::fixed_registers(program),
        globals: HashMap::new(),
        broadcast: HashSet::new(),
        emitted: vec![],
        emits,
        walks: vec![],
        walk_ids: HashMap::new(),
        states: 0,
        numbers,
        dynamics: vec![],
        streams: false,
    };
    let mut stages = (0..program.stages.len())
        .map(|i| linker.stage(i))
        .collect::<Result<Vec<_>>>()?;
    linker.broadcast(&mut stages);
    linker.finish(stages)
}

impl Linker<'_> {
    /// Returns a new physical register, for none of the program's.
    pub(super) fn new_register(&mut self, ty: Compute) -> u32 {
        self.types.push(ty);
        self.types.len() as u32 - 1
    }

    /// Returns the physical register of one of the program's.
    pub(super) fn physical(&mut self, r: u16) -> u32 {
        if let Some(p) = self.globals.get(&r) {
            return *p;
        }
        let p = self.new_register(self.bound.program.registers[usize::from(r)]);
        self.globals.insert(r, p);
        p
    }

    pub(super) fn walk(&mut self, access: usize, over_inner: bool) -> Result<u32> {
        let key = (access, over_inner);
        if let Some(w) = self.walk_ids.get(&key) {
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
        self.walk_ids.insert(key, id);
        Ok(id)
    }

    #[cfg(all(target_arch = "x86_64", not(portable), unix))]
    /// True if stores to `arg` bypass the cache: the schedule says so, or by default the argument is large; and the
    /// program does not read it.
    pub(super) fn streams(&self, arg: usize) -> bool {
        let program = self.bound.program;
        let bytes = self.bound.lens[arg].saturating_mul(program.args[arg].dtype.size() as i64);
        let reads = |inst: &Inst| match inst {
            Inst::Load { access, .. } | Inst::LoadAt { access, .. } => {
                program.accesses[*access as usize].arg as usize == arg
            }
            _ => false,
        };
        let is_large = || bytes >= STREAM_BYTES;
        program.sizes.stream.unwrap_or_else(is_large)
            && !program.stages.iter().flat_map(|s| &s.code).any(reads)
    }

    fn stage(&mut self, index: usize) -> Result<Stage> {
        let source = &self.bound.program.stages[index];
        let empty = || Stage {
            over_inner: source.over_inner,
            serial_points: source.serial_points,
            begin: vec![],
            body: vec![],
            end: vec![],
            walks: vec![],
            moving: vec![],
            general: vec![],
            steps: false,
            step: 0,
        };
        let mut out = empty();
        #[cfg(all(target_arch = "x86_64", not(portable), unix))]
        let emitted = self.emits && self.emit_stage(index, &mut out)?;
        #[cfg(not(all(target_arch = "x86_64", not(portable), unix)))]
        let emitted = false;
        if !emitted {
            out = empty();
            for (i, inst) in source.code.iter().enumerate() {
                self.interpret(index, i, inst, &mut out)?;
            }
        }
        for list in [&mut out.walks, &mut out.general] {
            list.sort();
            list.dedup();
        }
        let moves = |w: &&u32| self.walks[**w as usize].moves();
        out.moving = out.walks.iter().filter(moves).copied().collect();
        Ok(out)
    }

    /// Adds an interpreted instruction.
    fn interpret(&mut self, index: usize, i: usize, inst: &Inst, out: &mut Stage) -> Result<()> {
        let program = self.bound.program;
        let over_inner = program.stages[index].over_inner;
        let (reads, writes) = inst.operands();
        if over_inner {
            self.broadcast.extend(reads.iter().map(|r| r.0));
        }
        let mut from = [0; 3];
        if !matches!(inst, Inst::LoadAt { .. }) {
            for (to, r) in from.iter_mut().zip(&reads) {
                *to = self.physical(r.0);
            }
        }
        let dst = writes.map_or(0, |r| self.physical(r.0));
        let ty = |r: u16| program.registers[usize::from(r)];
        let code = |f, x| Instruction {
            a: from[0],
            b: from[1],
            c: from[2],
            ..instruction(f, dst, x)
        };
        let inst = match inst {
            Inst::Load { access, .. } => {
                let (x, dtype) = self.interpreted_walk(*access, over_inner, out)?;
                code(load::load(dtype), x)
            }
            Inst::Store { access, src } => {
                let (x, dtype) = self.interpreted_walk(*access, over_inner, out)?;
                self.store(from[0], ty(src.0), (x, dtype), out);
                return Ok(());
            }
            Inst::LoadAt { access, .. } => {
                let (x, dtype) = self.interpreted_walk(*access, over_inner, out)?;
                // Its addresses are outside the range of the walk.
                self.walks[x as usize].dynamic = true;
                let mut list = self.bound.dynamics[self.numbers[&(index, i)]].clone();
                for (d, r) in list.iter_mut().zip(&reads) {
                    d.index = self.physical(r.0);
                }
                self.dynamics.push(list);
                let a = self.dynamics.len() as u32 - 1;
                Instruction {
                    a,
                    ..instruction(load::load_at(dtype), dst, x)
                }
            }
            Inst::Index { .. } => {
                let x = self.walk(self.numbers[&(index, i)], over_inner)?;
                out.walks.push(x);
                out.general.push(x);
                code(load::index::<false>, x)
            }
            Inst::Unary { op, a, .. } => code(kernels::unary(*op, ty(a.0), self.level), 0),
            Inst::Binary { op, a, site, .. } => code(kernels::binary(*op, ty(a.0)), *site),
            Inst::Select { a, .. } => code(kernels::select(ty(a.0)), 0),
            Inst::Convert { from, to, .. } => code(kernels::cast(*from, *to), 0),
            Inst::Random { kind, dst, .. } => code(kernels::random(*kind, ty(dst.0)), 0),
            Inst::Keep { slot, src } => code(load::copy_slot(ty(src.0), false), u32::from(*slot)),
            Inst::Kept { slot, dst } => code(load::copy_slot(ty(dst.0), true), u32::from(*slot)),
            Inst::Reduce { .. } | Inst::ArgReduce { .. } => {
                let (body, after) = self.reduction(inst, from[0], out);
                out.body.push(body);
                out.body.extend(after);
                return Ok(());
            }
        };
        out.body.push(inst);
        Ok(())
    }

    /// Adds the walk of an interpreted access to a stage. Returns the walk and the dtype in memory.
    pub(super) fn interpreted_walk(
        &mut self,
        access: u16,
        over_inner: bool,
        out: &mut Stage,
    ) -> Result<(u32, kiln_base::DType)> {
        let program = self.bound.program;
        let x = self.walk(usize::from(access), over_inner)?;
        out.walks.push(x);
        out.general.push(x);
        let arg = program.accesses[usize::from(access)].arg;
        Ok((x, program.args[usize::from(arg)].dtype))
    }

    /// Adds the store of a physical register.
    pub(super) fn store(
        &mut self,
        mut from: u32,
        ty: Compute,
        (x, dtype): (u32, kiln_base::DType),
        out: &mut Stage,
    ) {
        if ty != dtype.compute() {
            let converted = self.new_register(dtype.compute());
            out.body.push(Instruction {
                a: from,
                ..instruction(kernels::cast(ty.dtype(), dtype), converted, 0)
            });
            from = converted;
        }
        out.body.push(Instruction {
            a: from,
            ..instruction(load::store(dtype), 0, x)
        });
    }

    /// Adds the code of a reduction before and after the tiles. Returns the code for each tile, and optional code after
    /// that.
    pub(super) fn reduction(
        &mut self,
        inst: &Inst,
        a: u32,
        out: &mut Stage,
    ) -> (Instruction, Option<Instruction>) {
        let rows = self.bound.program.schedule == Schedule::Rows;
        let steps: i64 = self.bound.outer.iter().product();
        let ty = |r: u16| self.bound.program.registers[usize::from(r)];
        let (fold, extra, acc) = match inst {
            Inst::Reduce { op, a, acc } => {
                let fold = match rows {
                    true => reduce::row_reduction(*op, ty(a.0)),
                    false => reduce::lane_reduction(*op, ty(a.0), steps),
                };
                let extra = fold.after.map(|_| Compute::F64);
                (fold, extra, acc)
            }
            Inst::ArgReduce { op, a, acc } if rows => (reduce::arg_rows(*op, ty(a.0)), None, acc),
            Inst::ArgReduce { op, a, acc } => (reduce::arg_lanes(*op, ty(a.0)), Some(ty(a.0)), acc),
            _ => unreachable!("called for reductions only"),
        };
        let acc = self.physical(acc.0);
        let extra = extra.map_or(0, |ty| self.new_register(ty));
        let x = self.states;
        self.states += 2;
        let code = |f, dst| Instruction {
            a,
            b: extra,
            ..instruction(f, dst, x)
        };
        for (i, f) in fold.begin.iter().enumerate() {
            out.begin.push(code(*f, if i == 0 { acc } else { extra }));
        }
        out.end.extend(fold.end.map(|f| code(f, acc)));
        (code(fold.body, acc), fold.after.map(|f| code(f, acc)))
    }

    /// Broadcasts the registers that are written once per row and read in each lane.
    fn broadcast(&self, stages: &mut [Stage]) {
        let program = self.bound.program;
        if program.schedule != Schedule::Rows {
            return;
        }
        for (stage, out) in program.stages.iter().zip(stages) {
            let mut written: Vec<u16> = (stage.code.iter())
                .filter(|inst| {
                    let reduces = matches!(inst, Inst::Reduce { .. } | Inst::ArgReduce { .. });
                    !stage.over_inner || reduces
                })
                .filter_map(|i| i.operands().1)
                .map(|r| r.0)
                .filter(|r| self.broadcast.contains(r) && self.globals.contains_key(r))
                .collect();
            written.sort();
            written.dedup();
            for r in written {
                let f = kernels::broadcast(program.registers[r as usize]);
                out.end.push(instruction(f, self.globals[&r], 0));
            }
        }
    }

    fn finish(mut self, stages: Vec<Stage>) -> Result<Linked> {
        let bound = self.bound;
        let program = bound.program;
        let (mut bases, mut coords) = (0, 0);
        for w in &mut self.walks {
            (w.base_index, w.coord_index) = (bases, coords);
            bases += 1 + w.limits.len();
            coords += w.count_coords();
        }
        let outer_len: i64 = bound.outer.iter().product();
        let lane_len: i64 = bound.lane.iter().product();
        let slot_bytes: usize = program.slots.iter().map(|s| s.size()).sum();
        let tile = self.tile_lanes(outer_len, slot_bytes);
        let rows = program.schedule == Schedule::Rows;
        // The last tile of a row's slot may be partial.
        let slot_len = if rows {
            lane_len
        } else {
            outer_len.saturating_mul(tile as i64)
        };
        let mut frame_bytes = 0usize;
        let mut allocate = |elements: usize, size: usize| {
            let start = frame_bytes;
            let bytes = elements.saturating_mul(size).saturating_add(ALIGN);
            frame_bytes = frame_bytes.saturating_add(bytes / ALIGN * ALIGN);
            start
        };
        let homes = self.types.iter().map(|t| allocate(tile, t.size()));
        let homes: Vec<usize> = homes.collect();
        let slots = program
            .slots
            .iter()
            .map(|t| allocate(slot_len as usize, t.size()));
        let slots: Vec<usize> = slots.collect();
        if frame_bytes > FRAME_LIMIT {
            return Err(damaged!("{} needs {frame_bytes} bytes", program.name));
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
            emitted: self.emitted,
            walks: self.walks,
            stages,
            dynamics: self.dynamics,
            constants,
            homes,
            slots,
            frame_bytes,
            bases,
            coords,
            states: self.states as usize,
            streams: self.streams,
            cost: estimate_cost(bound),
            parts: i64::from(program.sizes.parts.unwrap_or(PARTS_PER_THREAD)),
            parallel: bound.parallel,
            covered: bound.covered.clone(),
            sizes: bound.sizes().collect(),
            in_place: None,
            pieces: Vec::new(),
        };
        linked.set_steps();
        if let Some(last) = program.args.last() {
            let raw = program.args.len() - 1;
            linked.in_place = linked.accesses_in_place(raw).then(|| last.dtype.size());
        }
        Ok(linked)
    }

    /// Returns the number of lanes of a tile. It is limited by the first-level cache for registers and transposed
    /// copies, and by the second-level cache for the slots of a tile of rows.
    fn tile_lanes(&self, outer_len: i64, slot_bytes: usize) -> usize {
        let lane_bytes: usize = self.types.iter().map(|t| t.size()).sum();
        if let Some(tile) = self.bound.program.sizes.tile {
            return usize::from(tile).clamp(MIN_TILE, TILE);
        }
        let mut tile = TILE;
        while tile > 128 && lane_bytes * tile > 32 << 10 {
            tile /= 2;
        }
        if self.bound.program.schedule == Schedule::Lanes {
            let row_slot_bytes = slot_bytes.saturating_mul(outer_len as usize);
            while tile > MIN_TILE && row_slot_bytes.saturating_mul(tile) > 512 << 10 {
                tile /= 2;
            }
            let steps = outer_len.min(reduce::FLUSH) as usize;
            let mut operands = self.emitted.iter().flat_map(|p| &p.operands);
            let transposed =
                operands.any(|o| matches!(o.location, OperandLocation::Transposed(..)));
            while transposed && tile > MIN_TILE && steps * tile > MAX_TRANSPOSED {
                tile /= 2;
            }
        }
        tile
    }
}

/// Returns an instruction without source operands.
pub(super) fn instruction(f: Op, dst: u32, x: u32) -> Instruction {
    Instruction {
        f,
        dst,
        a: 0,
        b: 0,
        c: 0,
        x,
        is_call: false,
    }
}
