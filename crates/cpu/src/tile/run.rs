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
    /// The number of lanes whose constants are in place.
    filled: usize,
    steps: Steps,
    /// The stage that `steps` is for, if it covers all steps of that stage.
    stepped: Option<*const Stage>,
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
        let frame = Storage::held_by(program.frame, holder)?;
        let at = |offset: usize| frame.ptr().wrapping_add(offset) as usize;
        let homes = program.homes.iter().map(|o| at(*o));
        let mut tables: Vec<usize> = homes.collect();
        tables.extend(program.slots.iter().map(|o| at(*o)));
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
            slot_at: 0,
            at: Position {
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
            stepped: None,
            _frame: frame,
            _tables: tables,
        })
    }

    /// Runs points `from..to` of the parallel axes.
    ///
    /// # Safety
    /// As for [`Runner::new`]; the range lies within the program's points, and begins and ends between those that run
    /// in order.
    pub(crate) unsafe fn range(&mut self, from: i64, to: i64) {
        let p = self.program;
        let widest = match p.schedule {
            Schedule::Lanes => (to - from).min(p.tile as i64),
            Schedule::Rows => p.lane_len.min(p.tile as i64).max(1),
        };
        // SAFETY: arguments and range are the program's; constants are filled for the widest tile that follows.
        unsafe {
            self.fill_constants(widest as usize);
            match p.schedule {
                Schedule::Lanes => self.lanes(from, to),
                Schedule::Rows => self.rows(from, to),
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
    /// As [`Runner::range`]; the constants are filled.
    unsafe fn lanes(&mut self, from: i64, to: i64) {
        let p = self.program;
        let mut start = from;
        while start < to && !self.cancelled() {
            self.ctx.n = (to - start).min(p.step as i64) as usize;
            self.ctx.at.start = start;
            for stage in &p.stages {
                // SAFETY: the range is within the program's points, so every tile of it is.
                unsafe {
                    self.set_start(stage, start);
                    if stage.steps {
                        self.lanes_steps(stage);
                    } else if stage.over_inner {
                        self.lanes_inner(stage);
                    } else {
                        self.ctx.at.outer = 0;
                        self.ctx.run(&stage.body);
                    }
                }
            }
            start += self.ctx.n as i64;
        }
    }

    /// # Safety
    /// As [`Runner::lanes`]; the start of the tile is set.
    unsafe fn lanes_inner(&mut self, stage: &Stage) {
        let p = self.program;
        self.point.fill(0);
        // SAFETY: the tile is set, and every step is one of the program's.
        unsafe {
            self.ctx.at.outer = 0;
            self.ctx.run(&stage.begin);
            for step in 0..p.outer_len {
                if step % LOOK == LOOK - 1 && self.cancelled() {
                    return;
                }
                self.ctx.at.outer = step;
                self.ctx.slot_at = step as usize * p.tile;
                self.set_outer(stage);
                self.ctx.run(&stage.body);
                advance(&mut self.point, &p.outer);
            }
            self.ctx.run(&stage.end);
        }
    }

    /// As [`Runner::lanes_inner`], with many steps per call.
    ///
    /// # Safety
    /// As there.
    unsafe fn lanes_steps(&mut self, stage: &Stage) {
        let p = self.program;
        let calls = stage.body.iter().filter(|c| c.is_call);
        let runs = calls
            .map(|c| p.emitted[c.x as usize].runs.len())
            .sum::<usize>();
        let inner = p.outer.iter().rev().find(|e| **e > 1).copied().unwrap_or(1);
        // SAFETY: the tile is set, every step is one of the program's, and there are `p.bases` bases.
        unsafe {
            self.ctx.at.outer = 0;
            self.ctx.run(&stage.begin);
            for first in (0..p.outer_len).step_by(FLUSH as usize) {
                if self.cancelled() {
                    return;
                }
                let count = FLUSH.min(p.outer_len - first);
                // Steps along one axis have even strides.
                let even = runs == 0 && first % inner + count <= inner;
                if self.stepped != Some(stage) {
                    self.set_point(first);
                    self.steps.given = if even { count.min(2) } else { count } as usize;
                    self.steps.bases.clear();
                    for _ in 0..self.steps.given {
                        self.set_outer(stage);
                        let bases = std::slice::from_raw_parts(self.ctx.bases, p.bases);
                        self.steps.bases.extend_from_slice(bases);
                        advance(&mut self.point, &p.outer);
                    }
                    self.steps.count = count as usize;
                    self.stepped = (count == p.outer_len).then_some(stage);
                }
                self.ctx.at.outer = first + count - 1;
                self.ctx.slot_at = first as usize * p.tile;
                for c in &stage.body {
                    match c.is_call {
                        true => call::steps(&self.ctx, c, p.tile, &mut self.steps),
                        false => (c.f)((&mut self.ctx, c)),
                    }
                }
            }
            self.ctx.run(&stage.end);
        }
    }

    /// # Safety
    /// As [`Runner::range`]; the constants are filled.
    unsafe fn rows(&mut self, from: i64, to: i64) {
        let p = self.program;
        self.set_point(from);
        for row in from..to {
            if self.cancelled() {
                return;
            }
            self.ctx.at.outer = row;
            let at = row % p.serial;
            for stage in &p.stages {
                match stage.serial_points {
                    SerialPoints::First if at > 0 => continue,
                    SerialPoints::Last if at < p.serial - 1 => continue,
                    _ => {}
                }
                // SAFETY: the row is one of the program's, and so is every tile of it.
                unsafe {
                    self.set_outer(stage);
                    if stage.over_inner {
                        self.row_tiles(stage);
                    } else {
                        (self.ctx.at.start, self.ctx.n) = (0, 1);
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
    /// As [`Runner::rows`]; the row is set.
    unsafe fn row_tiles(&mut self, stage: &Stage) {
        let p = self.program;
        // SAFETY: the row is set, and tiles stop at its end.
        unsafe {
            self.ctx.run(&stage.begin);
            let mut start = 0;
            while start < p.lane_len && !self.cancelled() {
                self.ctx.n = (p.lane_len - start).min(stage.step as i64) as usize;
                self.ctx.at.start = start;
                self.ctx.slot_at = start as usize;
                self.set_start(stage, start);
                self.ctx.run(&stage.body);
                start += self.ctx.n as i64;
            }
            self.ctx.n = p.lane_len.min(p.tile as i64) as usize;
            self.ctx.run(&stage.end);
        }
    }

    /// Sets the point of the outer axes, given its linear index.
    fn set_point(&mut self, mut number: i64) {
        for (i, e) in self.point.iter_mut().zip(&self.program.outer).rev() {
            *i = number % e;
            number /= e;
        }
    }

    /// True if the run was cancelled.
    fn cancelled(&self) -> bool {
        // SAFETY: the sink outlives the run that this context belongs to.
        unsafe { &*self.ctx.at.failures }.cancelled()
    }

    unsafe fn set_outer(&mut self, stage: &Stage) {
        for w in &stage.moving {
            // SAFETY: the tables have room for every walk's numbers.
            unsafe { self.program.walks[*w as usize].set_outer(self.ctx.bases, &self.point) };
        }
    }

    unsafe fn set_start(&mut self, stage: &Stage, start: i64) {
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

/// Runs a program that accesses its last argument in place, over some lines of its linear space. They have `width`
/// elements and begin at `first`, `step` apart. Their part of the last argument is `part`, in lines `pitch` elements
/// apart.
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
    let mut all: SmallVec<[*mut u8; 12]> = SmallVec::from_slice(args.addresses());
    all.push(std::ptr::null_mut());
    // The elements of a point: a row, or one.
    let point = match program.schedule {
        Schedule::Rows => program.lane_len.max(1),
        Schedule::Lanes => 1,
    };
    // Contiguous lines are one.
    let (lines, width) = match pitch == step && width == step {
        true => (1, lines * step),
        false => (lines, width),
    };
    let [low, high] = span([(lines, step), (width, 1)]);
    let fit = (program.sizes.iter().zip(args.sizes())).all(|(own, size)| own <= size);
    let size = program.in_place.unwrap_or(0) as i64;
    assert!(
        fit && size > 0
            && program.sizes.len() == all.len()
            && first + low >= 0
            && first + high <= program.points * point
            && [width, first].map(|n| n % point) == [0; 2]
            && (lines == 1 || step % point == 0),
        "{lines} lines of {width} from {first} are not those of a program"
    );
    let part = part.address_mut(span([(lines, pitch * size), (width * size, 1)]));
    let last = all.len() - 1;
    // SAFETY: the arguments have the bytes that the program was bound for, and the last one the elements of the lines
    // at their places. The points are the program's.
    unsafe {
        let args = all.as_mut_ptr();
        let mut runner = Runner::new(program, args, failures)?;
        for line in 0..lines {
            let at = first + line * step;
            *args.add(last) = part.wrapping_offset(((line * pitch - at) * size) as isize);
            runner.range(at / point, (at + width) / point);
        }
    }
    Ok(())
}

/// The number of steps of a reduction between two checks for cancellation.
const LOOK: i64 = 64;

/// Nanoseconds of work that make it worth waking another thread.
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
        let whole = pieces.is_empty().then_some(program);
        let all = pieces.iter().chain(whole);
        all.map(move |program| ProgramLaunch {
            program,
            args,
            parallel,
        })
    }

    /// Returns the number of parts that its points are divided into, and the unit of points that parts are multiples
    /// of.
    fn parts(&self, threads: i64) -> (i64, i64) {
        let points = self.program.points;
        let wanted = (self.program.cost * points as f64 / PART_NS) as i64;
        let most = self.program.parts * threads;
        if !self.parallel || wanted < 2 || most <= 1 || threads <= 1 {
            return (1, points);
        }
        let unit = match self.program.schedule {
            Schedule::Rows => self.program.serial,
            // Whole tiles where there are enough of them; otherwise whole cache lines.
            Schedule::Lanes if points >= 2 * most * self.program.tile as i64 => {
                self.program.tile as i64
            }
            Schedule::Lanes => 64,
        };
        (wanted.min(most).min(ceil(points, unit)), unit)
    }

    /// Runs one of its parts.
    fn run(&self, part: i64, (parts, unit): (i64, i64), failures: &Failures) {
        let points = self.program.points;
        let units = ceil(points, unit);
        let first = |i: i64| (units as i128 * i as i128 / parts as i128) as i64;
        let edge = |i: i64| first(i).saturating_mul(unit).min(points);
        let args = self.args.addresses();
        // SAFETY: parts lie within the program's points, and arguments have the bytes that it was bound for.
        unsafe {
            match Runner::new(self.program, args.as_ptr(), failures) {
                Ok(mut runner) => runner.range(edge(part), edge(part + 1)),
                Err(e) => failures.broken(e),
            }
        }
    }
}

/// Runs all points of some programs that don't touch what the others write, on several threads where
/// that pays.
///
/// # Panics
/// If arguments are shorter than those that a program was bound for.
pub(crate) fn run_all(launches: &[ProgramLaunch], failures: &Failures) {
    for l in launches {
        let sizes = l.args.sizes();
        let fit = l
            .program
            .sizes
            .iter()
            .zip(sizes)
            .all(|(own, size)| own <= size);
        assert!(
            fit && l.program.sizes.len() <= sizes.len(),
            "short arguments"
        );
    }
    let pool = Pool::global();
    let threads = pool.threads() as i64;
    let busy = launches.iter().flat_map(ProgramLaunch::pieces);
    let busy = busy.filter(|l| l.program.points > 0);
    // The first part of each launch, counted over all launches.
    let mut parts = 0;
    type Share<'a> = (i64, ProgramLaunch<'a>, (i64, i64));
    let mut shared: SmallVec<[Share; 4]> = SmallVec::new();
    let mut cost = 0.0;
    for l in busy {
        let division = l.parts(threads);
        parts += division.0;
        cost += l.program.cost * l.program.points as f64;
        shared.push((parts - division.0, l, division));
    }
    let run = |part: usize| {
        let at = shared.partition_point(|(first, ..)| *first <= part as i64) - 1;
        let (first, launch, division) = &shared[at];
        launch.run(part as i64 - first, *division, failures)
    };
    match cost < 2.0 * PART_NS {
        true => (0..parts as usize).for_each(run),
        false => pool.run(parts as usize, run),
    }
}

/// Runs all points of a program whose arguments lie in this memory.
#[cfg(test)]
pub(crate) fn run_on<T: kiln_kernel::view::Plain>(
    program: &Linked,
    memory: &mut [Vec<T>],
    parallel: bool,
    failures: &Failures,
) {
    let sizes: Vec<usize> = memory.iter().map(|m| size_of_val(&m[..])).collect();
    let at: Vec<*mut u8> = memory.iter_mut().map(|m| m.as_mut_ptr().cast()).collect();
    let launch = ProgramLaunch {
        program,
        // SAFETY: the memory is borrowed, and has these sizes.
        args: unsafe { Arguments::new(&at, &sizes) },
        parallel,
    };
    run_all(&[launch], failures);
}
