//! The interpreter.

use super::call::{self, Steps};
use super::code::{Ctx, Instruction};
use super::linked::{Linked, Stage};
use super::reduce::FLUSH;
use kiln_kernel::affine::ceil;
use kiln_kernel::compute::with_compute;
use kiln_kernel::error::Result;
use kiln_kernel::failures::{Failures, Position};
use kiln_kernel::memory::{Category, Holder, Storage};
use kiln_kernel::pool::Pool;
use kiln_kernel::view::{Arguments, ViewMut, span};
use kiln_plan::tile::{Schedule, SerialPoints};
use smallvec::SmallVec;

/// A program with its working memory, on one thread.
pub(crate) struct Runner<'a> {
    program: &'a Linked,
    ctx: Ctx,
    point: Vec<i64>,
    /// The number of lanes whose constants are filled.
    filled: usize,
    steps: Steps,
    /// The stage whose steps are all in `steps`, if there is one.
    steps_stage: Option<*const Stage>,
    // The context points into these.
    _frame: Storage,
    _tables: Vec<usize>,
}

impl<'a> Runner<'a> {
    /// # Safety
    /// `args` stays valid while the runner is used, and has for each argument of the program
    /// memory of the length it was bound with (of a raw result: the part that is worked on). Nobody
    /// else writes what the program reads, or reads or writes what it writes.
    pub(crate) unsafe fn new(
        program: &'a Linked,
        args: *const *mut u8,
        failures: &'a Failures,
    ) -> Result<Runner<'a>> {
        let holder = Holder::unknown(Category::Workspaces);
        let frame = Storage::held_by(program.frame_bytes, holder)?;
        let address = |offset: usize| frame.ptr().wrapping_add(offset) as usize;
        let homes = program.homes.iter().map(|o| address(*o));
        let mut tables: Vec<usize> = homes.collect();
        tables.extend(program.slots.iter().map(|o| address(*o)));
        tables.resize(
            tables.len() + program.bases + program.coords + 2 * program.states,
            0,
        );
        let regs = program.homes.len();
        let table = tables.as_mut_ptr();
        let slots = table.wrapping_add(regs);
        let bases = slots.wrapping_add(program.slots.len());
        let coords = bases.wrapping_add(program.bases);
        let lanes = program.schedule == Schedule::Lanes;
        let ctx = Ctx {
            homes: table.cast(),
            args,
            walks: program.walks.as_ptr(),
            bases: bases.cast(),
            coords: coords.cast(),
            dynamics: program.dynamics.as_ptr(),
            emitted: program.emitted.as_ptr(),
            slots: slots.cast(),
            states: coords.wrapping_add(program.coords).cast(),
            n: 0,
            slot_offset: 0,
            pos: Position {
                start: 0,
                outer: 0,
                outer_step: if lanes { 1 } else { program.lane_len },
                lane_step: if lanes { program.outer_len.max(1) } else { 1 },
                failures,
            },
        };
        let point = vec![0; program.outer.len()];
        for w in &program.walks {
            // SAFETY: the tables have room for every walk's numbers.
            unsafe { w.set_outer(ctx.bases, &point) };
        }
        Ok(Runner {
            program,
            ctx,
            point,
            filled: 0,
            steps: Steps::default(),
            steps_stage: None,
            _frame: frame,
            _tables: tables,
        })
    }

    /// Runs points `from..to` of the parallel axes.
    ///
    /// # Safety
    /// As for [`Runner::new`]; the range is within the program's points, and begins and ends between those that run
    /// in order.
    pub(crate) unsafe fn run_points(&mut self, from: i64, to: i64) {
        let p = self.program;
        let max_lanes = match p.schedule {
            Schedule::Lanes => (to - from).min(p.tile as i64),
            Schedule::Rows => p.lane_len.min(p.tile as i64).max(1),
        };
        // SAFETY: arguments and range are the program's; constants are filled for the widest tile that follows.
        unsafe {
            self.fill_constants(max_lanes as usize);
            match p.schedule {
                Schedule::Lanes => self.run_lane_tiles(from, to),
                Schedule::Rows => self.run_rows(from, to),
            }
        }
        #[cfg(all(target_arch = "x86_64", not(portable)))]
        if p.streams {
            // SAFETY: every x86-64 machine has SSE.
            unsafe { std::arch::x86_64::_mm_sfence() }
        }
    }

    unsafe fn fill_constants(&mut self, lanes: usize) {
        if lanes <= self.filled {
            return;
        }
        self.filled = lanes;
        for (reg, ty, bits) in &self.program.constants {
            // SAFETY: every register has memory for a tile of its type, little-endian bits or not.
            unsafe {
                with_compute!(*ty, T => {
                    let d: *mut T = self.ctx.reg(*reg);
                    let value = <T as kiln_kernel::element::Elem>::from_bits(*bits);
                    for i in 0..lanes {
                        *d.add(i) = value;
                    }
                })
            }
        }
    }

    /// # Safety
    /// As [`Runner::run_points`]; the constants are filled.
    unsafe fn run_lane_tiles(&mut self, from: i64, to: i64) {
        let p = self.program;
        let mut start = from;
        while start < to && !self.is_cancelled() {
            self.ctx.n = (to - start).min(p.step as i64) as usize;
            self.ctx.pos.start = start;
            for stage in &p.stages {
                // SAFETY: the range is within the program's points, so every tile of it is.
                unsafe {
                    self.set_stage_coords(stage, start);
                    if stage.steps {
                        self.run_batched_lane_steps(stage);
                    } else if stage.over_inner {
                        self.run_lane_steps(stage);
                    } else {
                        self.ctx.pos.outer = 0;
                        self.ctx.run(&stage.body);
                    }
                }
            }
            start += self.ctx.n as i64;
        }
    }

    /// # Safety
    /// As [`Runner::run_lane_tiles`]; the start of the tile is set.
    unsafe fn run_lane_steps(&mut self, stage: &Stage) {
        let p = self.program;
        self.point.fill(0);
        // SAFETY: the tile is set, and every step is one of the program's.
        unsafe {
            self.ctx.pos.outer = 0;
            self.ctx.run(&stage.begin);
            for step in 0..p.outer_len {
                if step % STEPS_PER_CHECK == STEPS_PER_CHECK - 1 && self.is_cancelled() {
                    return;
                }
                self.ctx.pos.outer = step;
                self.ctx.slot_offset = step as usize * p.tile;
                self.set_stage_bases(stage);
                self.ctx.run(&stage.body);
                advance(&mut self.point, &p.outer);
            }
            self.ctx.run(&stage.end);
        }
    }

    /// As [`Runner::run_lane_steps`], with several steps per call.
    ///
    /// # Safety
    /// As there.
    unsafe fn run_batched_lane_steps(&mut self, stage: &Stage) {
        let p = self.program;
        let calls = stage.body.iter().filter(|c| c.is_call);
        let runs = calls
            .map(|c| p.emitted[c.x as usize].runs.len())
            .sum::<usize>();
        let inner = p.outer.iter().rev().find(|e| **e > 1).copied().unwrap_or(1);
        // SAFETY: the tile is set, every step is one of the program's, and there are `p.bases` bases.
        unsafe {
            self.ctx.pos.outer = 0;
            self.ctx.run(&stage.begin);
            for first in (0..p.outer_len).step_by(FLUSH as usize) {
                if self.is_cancelled() {
                    return;
                }
                let count = FLUSH.min(p.outer_len - first);
                // Steps along one axis have even strides.
                let is_even = runs == 0 && first % inner + count <= inner;
                if self.steps_stage != Some(stage) {
                    self.set_point(first);
                    self.steps.known = if is_even { count.min(2) } else { count } as usize;
                    self.steps.bases.clear();
                    for _ in 0..self.steps.known {
                        self.set_stage_bases(stage);
                        let bases = std::slice::from_raw_parts(self.ctx.bases, p.bases);
                        self.steps.bases.extend_from_slice(bases);
                        advance(&mut self.point, &p.outer);
                    }
                    self.steps.count = count as usize;
                    self.steps_stage = (count == p.outer_len).then_some(stage);
                }
                self.ctx.pos.outer = first + count - 1;
                self.ctx.slot_offset = first as usize * p.tile;
                for c in &stage.body {
                    match c.is_call {
                        true => call::call_steps(&self.ctx, c, p.tile, &mut self.steps),
                        false => (c.f)((&mut self.ctx, c)),
                    }
                }
            }
            self.ctx.run(&stage.end);
        }
    }

    /// # Safety
    /// As [`Runner::run_points`]; the constants are filled.
    unsafe fn run_rows(&mut self, from: i64, to: i64) {
        let p = self.program;
        self.set_point(from);
        for row in from..to {
            if self.is_cancelled() {
                return;
            }
            self.ctx.pos.outer = row;
            let serial_index = row % p.serial;
            for stage in &p.stages {
                match stage.serial_points {
                    SerialPoints::First if serial_index > 0 => continue,
                    SerialPoints::Last if serial_index < p.serial - 1 => continue,
                    _ => {}
                }
                // SAFETY: the row is one of the program's, and so is every tile of it.
                unsafe {
                    self.set_stage_bases(stage);
                    if stage.over_inner {
                        self.run_row_tiles(stage);
                    } else {
                        (self.ctx.pos.start, self.ctx.n) = (0, 1);
                        self.ctx.run(&stage.body);
                        self.ctx.n = p.lane_len.min(p.tile as i64) as usize;
                        self.ctx.run(&stage.end);
                    }
                }
            }
            advance(&mut self.point, &p.outer);
        }
    }

    /// # Safety
    /// As [`Runner::run_rows`]; the row is set.
    unsafe fn run_row_tiles(&mut self, stage: &Stage) {
        let p = self.program;
        // SAFETY: the row is set, and tiles stop at its end.
        unsafe {
            self.ctx.run(&stage.begin);
            let mut start = 0;
            while start < p.lane_len && !self.is_cancelled() {
                self.ctx.n = (p.lane_len - start).min(stage.step as i64) as usize;
                self.ctx.pos.start = start;
                self.ctx.slot_offset = start as usize;
                self.set_stage_coords(stage, start);
                self.ctx.run(&stage.body);
                start += self.ctx.n as i64;
            }
            self.ctx.n = p.lane_len.min(p.tile as i64) as usize;
            self.ctx.run(&stage.end);
        }
    }

    /// Sets the point of the outer axes from its linear index.
    fn set_point(&mut self, mut index: i64) {
        for (i, e) in self.point.iter_mut().zip(&self.program.outer).rev() {
            *i = index % e;
            index /= e;
        }
    }

    /// True if the run was cancelled.
    fn is_cancelled(&self) -> bool {
        // SAFETY: the sink outlives the run that this context belongs to.
        unsafe { &*self.ctx.pos.failures }.is_cancelled()
    }

    unsafe fn set_stage_bases(&mut self, stage: &Stage) {
        for w in &stage.moving {
            // SAFETY: the tables have room for every walk's numbers.
            unsafe { self.program.walks[*w as usize].set_outer(self.ctx.bases, &self.point) };
        }
    }

    unsafe fn set_stage_coords(&mut self, stage: &Stage, start: i64) {
        for w in &stage.general {
            // SAFETY: the tables have room for every walk's numbers.
            unsafe { self.program.walks[*w as usize].set_start(self.ctx.coords, start) };
        }
    }
}

impl Ctx {
    #[inline(always)]
    unsafe fn run(&mut self, code: &[Instruction]) {
        for c in code {
            // SAFETY: the code belongs to the program of this context.
            unsafe { (c.f)((self, c)) };
        }
    }
}

/// Steps a point of a box to the next in row-major order.
fn advance(point: &mut [i64], extents: &[i64]) {
    for (i, e) in point.iter_mut().zip(extents).rev() {
        *i += 1;
        if *i < *e {
            return;
        }
        *i = 0;
    }
}

/// Runs a program that accesses its last argument in place over runs of its linear index space. The runs have `width`
/// elements and stride `step`; the first one begins at `first`. `part` holds their elements of the last argument, with
/// stride `pitch`.
///
/// # Errors
/// If memory is short.
///
/// # Panics
/// If arguments, lines or the part are not those of the program.
pub(crate) fn run_lines(
    program: &Linked,
    args: &Arguments,
    (part, pitch): (ViewMut<u8>, i64),
    first: i64,
    (lines, step): (i64, i64),
    width: i64,
    failures: &Failures,
) -> Result<()> {
    let mut addresses: SmallVec<[*mut u8; 12]> = SmallVec::from_slice(args.addresses());
    addresses.push(std::ptr::null_mut());
    // The elements of a point: those of a row, or a single one.
    let point = match program.schedule {
        Schedule::Rows => program.lane_len.max(1),
        Schedule::Lanes => 1,
    };
    // Contiguous lines are merged.
    let (lines, width) = match pitch == step && width == step {
        true => (1, lines * step),
        false => (lines, width),
    };
    let [low, high] = span([(lines, step), (width, 1)]);
    let fits = (program.sizes.iter().zip(args.sizes())).all(|(bound, size)| bound <= size);
    let size = program.in_place.unwrap_or(0) as i64;
    assert!(
        fits && size > 0
            && program.sizes.len() == addresses.len()
            && first + low >= 0
            && first + high <= program.points * point
            && [width, first].map(|n| n % point) == [0; 2]
            && (lines == 1 || step % point == 0),
        "{lines} lines of {width} from {first} are not those of a program"
    );
    let part = part.address_mut(span([(lines, pitch * size), (width * size, 1)]));
    let last = addresses.len() - 1;
    // SAFETY: the arguments have the sizes that the program was bound for, and the last one covers the elements of the
    // lines. The points are the program's.
    unsafe {
        let args = addresses.as_mut_ptr();
        let mut runner = Runner::new(program, args, failures)?;
        for line in 0..lines {
            let start = first + line * step;
            *args.add(last) = part.wrapping_offset(((line * pitch - start) * size) as isize);
            runner.run_points(start / point, (start + width) / point);
        }
    }
    Ok(())
}

/// The number of steps of a reduction between checks for cancellation.
const STEPS_PER_CHECK: i64 = 64;

/// The minimum nanoseconds of a part, below which waking a thread does not pay.
const PART_NS: f64 = 5_000.0;

/// A program with its arguments. `parallel` is true if its points may be computed concurrently.
pub(crate) struct ProgramLaunch<'a> {
    pub program: &'a Linked,
    pub args: Arguments<'a>,
    pub parallel: bool,
}

impl<'a> ProgramLaunch<'a> {
    /// Returns the launches of its pieces, or itself if it has none.
    fn pieces(&self) -> impl Iterator<Item = ProgramLaunch<'a>> + use<'a> {
        let (program, args, parallel) = (self.program, self.args, self.parallel);
        let pieces = match parallel {
            true => &program.pieces[..],
            false => &[],
        };
        let unsplit = pieces.is_empty().then_some(program);
        let programs = pieces.iter().chain(unsplit);
        programs.map(move |program| ProgramLaunch {
            program,
            args,
            parallel,
        })
    }

    /// Returns the number of parts of its points, and the number of points that the size of a part is a multiple of.
    fn parts(&self, threads: i64) -> (i64, i64) {
        let points = self.program.points;
        let wanted = (self.program.cost * points as f64 / PART_NS) as i64;
        let max_parts = self.program.parts * threads;
        if !self.parallel || wanted < 2 || max_parts <= 1 || threads <= 1 {
            return (1, points);
        }
        let unit = match self.program.schedule {
            Schedule::Rows => self.program.serial,
            // Full tiles if there are enough of them, or else full cache lines.
            Schedule::Lanes if points >= 2 * max_parts * self.program.tile as i64 => {
                self.program.tile as i64
            }
            Schedule::Lanes => 64,
        };
        (wanted.min(max_parts).min(ceil(points, unit)), unit)
    }

    /// Runs one of its parts.
    fn run_part(&self, part: i64, (parts, unit): (i64, i64), failures: &Failures) {
        let points = self.program.points;
        let units = ceil(points, unit);
        let first_unit = |i: i64| (units as i128 * i as i128 / parts as i128) as i64;
        let start = |i: i64| first_unit(i).saturating_mul(unit).min(points);
        let args = self.args.addresses();
        // SAFETY: parts are within the program's points, and arguments have the bytes that it was bound for.
        unsafe {
            match Runner::new(self.program, args.as_ptr(), failures) {
                Ok(mut runner) => runner.run_points(start(part), start(part + 1)),
                Err(e) => failures.report_error(e),
            }
        }
    }
}

/// Runs all points of several programs, none of which accesses memory that another one writes. Uses several threads if
/// that pays.
///
/// # Panics
/// If arguments are shorter than those that a program was bound for.
pub(crate) fn run_all(launches: &[ProgramLaunch], failures: &Failures) {
    for piece in launches {
        let sizes = piece.args.sizes();
        let fits = piece
            .program
            .sizes
            .iter()
            .zip(sizes)
            .all(|(bound_size, size)| bound_size <= size);
        assert!(
            fits && piece.program.sizes.len() <= sizes.len(),
            "short arguments"
        );
    }
    let pool = Pool::global();
    let threads = pool.threads() as i64;
    let nonempty = launches.iter().flat_map(ProgramLaunch::pieces);
    let nonempty = nonempty.filter(|piece| piece.program.points > 0);
    // The number of parts so far; each share begins at its value.
    let mut total_parts = 0;
    type FirstPartLaunch<'a> = (i64, ProgramLaunch<'a>, (i64, i64));
    let mut shares: SmallVec<[FirstPartLaunch; 4]> = SmallVec::new();
    let mut cost = 0.0;
    for piece in nonempty {
        let division = piece.parts(threads);
        total_parts += division.0;
        cost += piece.program.cost * piece.program.points as f64;
        shares.push((total_parts - division.0, piece, division));
    }
    let run = |part: usize| {
        let index = shares.partition_point(|(first, ..)| *first <= part as i64) - 1;
        let (first, launch, division) = &shares[index];
        launch.run_part(part as i64 - first, *division, failures)
    };
    match cost < 2.0 * PART_NS {
        true => (0..total_parts as usize).for_each(run),
        false => pool.run(total_parts as usize, run),
    }
}

/// Runs all points of a program whose arguments are in this memory.
#[cfg(test)]
pub(crate) fn run_on<T: kiln_kernel::view::Plain>(
    program: &Linked,
    memory: &mut [Vec<T>],
    parallel: bool,
    failures: &Failures,
) {
    let sizes: Vec<usize> = memory.iter().map(|m| size_of_val(&m[..])).collect();
    let addresses: Vec<*mut u8> = memory.iter_mut().map(|m| m.as_mut_ptr().cast()).collect();
    let launch = ProgramLaunch {
        program,
        // SAFETY: the memory is borrowed, and has these sizes.
        args: unsafe { Arguments::new(&addresses, &sizes) },
        parallel,
    };
    run_all(&[launch], failures);
}
