//! Calls of emitted functions.

use super::code::Call;

/// The maximum number of operands of an emitted function.
pub(crate) const MAX: usize = 96;

/// The steps of a call: the context's bases of each step, or of the first two if all have even strides, and the
/// addresses of the operands.
#[derive(Default)]
pub(crate) struct Steps {
    pub count: usize,
    pub given: usize,
    pub bases: Vec<i64>,
    table: Vec<*mut u8>,
    /// The transposed copies of operands, a step per row.
    transposed: Vec<Vec<u64>>,
}

#[cfg(all(target_arch = "x86_64", not(portable), unix))]
mod native {
    use super::{Call, MAX, Steps};
    use crate::tile::Ctx;
    use crate::tile::code::Instruction;
    use crate::tile::emitted::{Emitted, EmittedOperand, OperandLocation};
    use kiln_kernel::simd::compiled;
    use kiln_kernel::simd::transpose::{Transpose, TransposeKernel};
    use kiln_kernel::sums::Lane;
    use kiln_x86::Code;
    use std::mem::MaybeUninit;

    /// Bytes of the running value of a reduction.
    #[cfg(feature = "testing")]
    const STATE: usize = 8;

    /// Bytes of a cache line.
    const LINE: usize = 64;

    /// Calls code over lanes, with one row of addresses, or with a row for each of several steps or runs.
    ///
    /// # Safety
    /// The code is a function over lanes, and of rows if there are several. Each address of the table points to the
    /// data of its operand for `n` lanes.
    unsafe fn enter(f: &Emitted, code: &Code, table: &[*mut u8], n: usize, rows: usize) {
        #[cfg(feature = "testing")]
        if interpret(f, code, table, [n, rows]) {
            return;
        }
        let _ = f;
        type Function = unsafe extern "sysv64" fn(*const *mut u8, usize, usize);
        // SAFETY: this is the signature of emitted code; without rows it ignores their number.
        unsafe {
            let f: Function = std::mem::transmute(code.entry());
            f(table.as_ptr(), n, rows)
        }
    }

    /// Interprets a call, if this thread does so. The table and the row's state are accessible besides the declared
    /// memory.
    #[cfg(feature = "testing")]
    fn interpret(f: &Emitted, code: &Code, table: &[*mut u8], [n, rows]: [usize; 2]) -> bool {
        let mut beside = vec![(table.as_ptr().cast(), size_of_val(table), false)];
        for (i, at) in table.iter().enumerate() {
            let operand = &f.operands[i % f.operands.len()];
            if matches!(operand.location, OperandLocation::State(_)) {
                beside.push((at.cast_const(), STATE, true));
            }
        }
        let arguments = [table.as_ptr() as u64, n as u64, rows as u64];
        kiln_kernel::interpreted::call(code.bytes(), &arguments, &beside)
    }

    /// Calls an emitted function; `x` is its number.
    ///
    /// # Safety
    /// As for every instruction.
    pub(crate) unsafe fn call((ctx, code): Call) {
        // SAFETY: linking made the function of operands that are the program's.
        unsafe {
            let ctx = &*ctx;
            let f = &*ctx.emitted.add((*code).x as usize);
            let mut table = [MaybeUninit::<*mut u8>::uninit(); MAX];
            let table = &mut table[..f.operands.len()];
            let table = &mut *(std::ptr::from_mut(table) as *mut [*mut u8]);
            f.addresses(ctx, ctx.bases, ctx.slot_at, table);
            for (operand, to) in f.operands.iter().zip(&*table) {
                if let OperandLocation::Transposed(x, _) = operand.location {
                    let base = *ctx.bases.add((*ctx.walks.add(x as usize)).base_at);
                    f.transpose_lanes(ctx, (operand, x), &[base], *to);
                }
            }
            f.go(ctx, table, &|_| ctx.bases, false);
        }
    }

    /// The maximum number of addresses of a call over runs.
    const ADDRESSES: usize = 256;

    /// Calls an emitted function over steps.
    ///
    /// # Safety
    /// As for every instruction; each step has the program's bases.
    pub(crate) unsafe fn steps(ctx: &Ctx, code: &Instruction, tile: usize, steps: &mut Steps) {
        // SAFETY: linking made the function of operands that are the program's.
        unsafe {
            let f = &*ctx.emitted.add(code.x as usize);
            let (operands, count) = (f.operands.len(), steps.count);
            let width = steps.bases.len() / steps.given.max(1);
            let bases = |step: usize| steps.bases.as_ptr().add(step * width);
            steps.table.clear();
            steps.table.resize(operands * count, std::ptr::null_mut());
            for (step, row) in
                (steps.table.chunks_exact_mut(operands).enumerate()).take(steps.given)
            {
                f.addresses(ctx, bases(step), ctx.slot_at + step * tile, row);
            }
            for i in steps.given * operands..count * operands {
                let [before, last] = [2, 1].map(|n| steps.table[i - n * operands]);
                let by = last.addr().wrapping_sub(before.addr());
                steps.table[i] = last.wrapping_add(by);
            }
            f.transpose_operands(ctx, steps);
            let bases = |step: usize| steps.bases.as_ptr().add(step * width);
            f.go(ctx, &mut steps.table, &bases, true);
        }
    }

    impl Emitted {
        /// Copies the elements of a walk for the lanes of steps with these bases, a step per row.
        ///
        /// # Safety
        /// As for every instruction; the operand is a [`OperandLocation::Transposed`] of the walk, and there is room.
        unsafe fn transpose_lanes(
            &self,
            ctx: &Ctx,
            (operand, x): (&EmittedOperand, u32),
            bases: &[i64],
            to: *mut u8,
        ) {
            // SAFETY: the caller's; elements are copied, whatever they are.
            unsafe {
                match operand.size {
                    8 => self.transpose_typed::<f64>(ctx, x, bases, to.cast()),
                    _ => self.transpose_typed::<f32>(ctx, x, bases, to.cast()),
                }
            }
        }

        unsafe fn transpose_typed<T: Lane>(&self, ctx: &Ctx, x: u32, bases: &[i64], to: *mut T) {
            // SAFETY: the caller's; binding proved all elements to be within the argument.
            unsafe {
                let walk = &*ctx.walks.add(x as usize);
                let memory = (*ctx.args.add(walk.arg)).cast::<T>();
                let (apart, lanes) = (walk.lanes[0].stride, ctx.n as i64);
                let mut step = 0;
                // Steps that each read the elements after those of the previous one are transposed as a matrix.
                while step < bases.len() {
                    let next = (step + 1..bases.len()).find(|s| bases[*s] != bases[s - 1] + 1);
                    let end = next.unwrap_or(bases.len());
                    let first = bases[step] + ctx.at.start * apart;
                    let from = memory.wrapping_offset(first as isize).cast_const();
                    compiled::<TransposeKernel<T>, _>(self.level)(Transpose {
                        from,
                        pitch: apart as isize,
                        rows: lanes as usize,
                        columns: end - step,
                        to: to.add(step * ctx.n),
                        to_pitch: lanes as isize,
                    });
                    step = end;
                }
            }
        }

        /// Copies operands whose lanes are not contiguous, for all steps.
        ///
        /// # Safety
        /// As [`steps`].
        unsafe fn transpose_operands(&self, ctx: &Ctx, steps: &mut Steps) {
            let operands = self.operands.len();
            let width = steps.bases.len() / steps.given.max(1);
            let mut memories = 0;
            for (o, operand) in self.operands.iter().enumerate() {
                let OperandLocation::Transposed(x, _) = operand.location else {
                    continue;
                };
                // SAFETY: the walk is the program's.
                let at = unsafe { (*ctx.walks.add(x as usize)).base_at };
                let mut bases: Vec<i64> = steps
                    .bases
                    .iter()
                    .skip(at)
                    .step_by(width)
                    .copied()
                    .collect();
                while bases.len() < steps.count {
                    let [before, last] = [2, 1].map(|n| bases[bases.len() - n]);
                    bases.push(2 * last - before);
                }
                if steps.transposed.len() == memories {
                    steps.transposed.push(vec![]);
                }
                let memory = &mut steps.transposed[memories];
                memories += 1;
                let row = ctx.n * operand.size;
                memory.resize((steps.count * row).div_ceil(8).max(memory.len()), 0);
                let to = memory.as_mut_ptr().cast::<u8>();
                #[cfg(feature = "testing")]
                kiln_kernel::interpreted::declare_memory(to, steps.count * row, false);
                // SAFETY: the caller's; there is room.
                unsafe { self.transpose_lanes(ctx, (operand, x), &bases, to) };
                for (step, addresses) in steps.table.chunks_exact_mut(operands).enumerate() {
                    addresses[o] = to.wrapping_add(step * row);
                }
            }
        }

        /// Runs over the lanes of a tile, run by run where walks are visited in runs. The table has a row of addresses
        /// for each step (`many`), or one. `bases` gives the bases of a step.
        ///
        /// # Safety
        /// As for every instruction; the rows have all addresses except those that are visited in runs.
        unsafe fn go(
            &self,
            ctx: &Ctx,
            table: &mut [*mut u8],
            bases: &dyn Fn(usize) -> *const i64,
            many: bool,
        ) {
            let operands = self.operands.len();
            let walk = |x: u32| {
                // SAFETY: walks are the program's.
                unsafe { &*ctx.walks.add(x as usize) }
            };
            // SAFETY: passed on to the caller.
            unsafe {
                for (x, _) in &self.runs {
                    walk(*x).begin_runs(ctx);
                }
                let mut left = ctx.n;
                while left > 0 {
                    let mut n = left;
                    for (x, which) in &self.runs {
                        for (step, row) in table.chunks_exact_mut(operands).enumerate() {
                            let operand = &self.operands[which[0]];
                            let (at, lanes) = walk(*x).run_at(ctx, bases(step), operand);
                            n = n.min(lanes as usize);
                            which.iter().for_each(|o| row[*o] = at);
                        }
                    }
                    let (mut groups, mut runs) = (1, 1);
                    if many {
                        enter(self, &self.code, table, n, table.len() / operands);
                    } else if self.steps {
                        (groups, runs) = self.alike(ctx, table, n, left);
                    } else {
                        self.lanes(table, n);
                    }
                    let gone = n * runs * groups;
                    left -= gone;
                    if left == 0 {
                        return;
                    }
                    for (x, _) in &self.runs {
                        for _ in 0..groups {
                            walk(*x).end_runs(ctx, n, runs as i64);
                        }
                    }
                    for row in table.chunks_exact_mut(operands) {
                        for (at, operand) in row.iter_mut().zip(&self.operands) {
                            *at = at.wrapping_add(gone.wrapping_mul(operand.step));
                        }
                    }
                }
            }
        }

        /// Runs over a run of `n` lanes whose operands `first` has, and over the following runs with even strides, all
        /// among the remaining lanes. Returns the number of runs in a group, and the number of groups.
        ///
        /// # Safety
        /// As for every instruction, and for [`Walk::run_at`](crate::tile::walk::Walk::run_at).
        unsafe fn alike(
            &self,
            ctx: &Ctx,
            first: &[*mut u8],
            n: usize,
            left: usize,
        ) -> (usize, usize) {
            let operands = self.operands.len();
            let most = ADDRESSES / operands.max(3);
            let mut runs = (left / n).clamp(1, most);
            let walk = |x: u32| {
                // SAFETY: walks are the program's.
                unsafe { &*ctx.walks.add(x as usize) }
            };
            // The bytes from run to run, and from group to group.
            let mut by = [(0, 0); MAX];
            let mut table = [MaybeUninit::uninit(); ADDRESSES];
            // SAFETY: the caller's.
            unsafe {
                for (x, _) in &self.runs {
                    runs = runs.min(walk(*x).alike(ctx, n as i64).0 as usize);
                }
                let mut groups = (left / (n * runs)).clamp(1, most / runs);
                for ((run, group), operand) in by.iter_mut().zip(&self.operands) {
                    *run = n.wrapping_mul(operand.step);
                    *group = run.wrapping_mul(runs);
                }
                for (x, which) in &self.runs {
                    let (_, apart) = walk(*x).alike(ctx, n as i64);
                    let (alike, further) = walk(*x).groups(ctx, n as i64, runs as i64);
                    groups = groups.min(alike as usize);
                    for o in which {
                        let bytes = |elements: i64| {
                            (elements as usize).wrapping_mul(self.operands[*o].size)
                        };
                        by[*o] = (bytes(apart), bytes(further));
                    }
                }
                let mut to = table.iter_mut();
                for group in 0..groups {
                    for run in 0..runs {
                        for ((first, by), to) in first.iter().zip(&by).zip(&mut to) {
                            let apart = run.wrapping_mul(by.0);
                            let apart = apart.wrapping_add(group.wrapping_mul(by.1));
                            to.write(first.wrapping_add(apart));
                        }
                    }
                }
                let rows = runs * groups;
                let table = std::slice::from_raw_parts(table.as_ptr().cast(), rows * operands);
                enter(self, &self.code, table, n, rows);
                (groups, runs)
            }
        }

        /// Computes the addresses of the operands at the first lane, except those that are visited in runs, with the
        /// outer axes at these bases.
        ///
        /// # Safety
        /// As for every instruction; the bases are as many as the program has.
        #[inline(always)]
        unsafe fn addresses(
            &self,
            ctx: &Ctx,
            bases: *const i64,
            slot_at: usize,
            table: &mut [*mut u8],
        ) {
            for (to, operand) in table.iter_mut().zip(&self.operands) {
                // SAFETY: walks, registers, slots and states are the program's.
                *to = unsafe {
                    let walk = |x: u32| &*ctx.walks.add(x as usize);
                    let element = |arg: usize, at: i64| match operand.number {
                        true => at as *mut u8,
                        false => (*ctx.args.add(arg))
                            .wrapping_offset(at as isize * operand.size as isize),
                    };
                    match operand.location {
                        OperandLocation::Line(x) => {
                            let w = walk(x);
                            element(w.arg, *bases.add(w.base_at) + ctx.at.start)
                        }
                        OperandLocation::Prefetch(x, by) => {
                            let w = walk(x);
                            let base = *bases.add(w.base_at) + i64::from(by);
                            element(w.arg, base + ctx.at.start)
                        }
                        OperandLocation::First(x) => {
                            let w = walk(x);
                            element(w.arg, *bases.add(w.base_at))
                        }
                        OperandLocation::Run(_) => std::ptr::null_mut(),
                        OperandLocation::Register(r) | OperandLocation::Transposed(_, r) => {
                            ctx.reg::<u8>(r)
                        }
                        OperandLocation::Slot(s) => {
                            (*ctx.slots.add(s as usize)).wrapping_add(slot_at * operand.size)
                        }
                        OperandLocation::State(x) => ctx.states.add(x as usize).cast(),
                        OperandLocation::Argument(arg) => *ctx.args.add(arg as usize),
                        OperandLocation::Context => (&raw const ctx.at).cast_mut().cast(),
                        OperandLocation::Zero => std::ptr::null_mut(),
                    }
                };
            }
        }

        /// Runs over lanes whose operands are in the table.
        ///
        /// # Safety
        /// As for [`enter`].
        unsafe fn lanes(&self, table: &mut [*mut u8], mut n: usize) {
            let Some(plain) = &self.plain else {
                // SAFETY: passed on to the caller.
                return unsafe { enter(self, &self.code, table, n, 1) };
            };
            let mut streams = self.operands.iter().zip(&*table).filter(|(o, _)| o.streams);
            let head = streams.next().map_or(0, |(o, at)| {
                (at.addr().next_multiple_of(LINE) - at.addr()) / o.size
            });
            let aligned =
                |at: &*mut u8, size: usize| (at.addr() + head * size).is_multiple_of(LINE);
            let mut all = self.operands.iter().zip(&*table);
            let fits = all.all(|(o, at)| !o.streams || aligned(at, o.size));
            let first = if fits { head.min(n) } else { n };
            // SAFETY: passed on to the caller; a part of the lanes is theirs too.
            unsafe {
                if first > 0 {
                    enter(self, plain, table, first, 1);
                    n -= first;
                    if n == 0 {
                        return;
                    }
                    for (at, o) in table.iter_mut().zip(&self.operands) {
                        *at = at.wrapping_add(first.wrapping_mul(o.step));
                    }
                    enter(self, &self.code, table, n, 1);
                    for (at, o) in table.iter_mut().zip(&self.operands) {
                        *at = at.wrapping_sub(first.wrapping_mul(o.step));
                    }
                    return;
                }
                if n > 0 {
                    enter(self, &self.code, table, n, 1);
                }
            }
        }
    }
}
#[cfg(all(target_arch = "x86_64", not(portable), unix))]
pub(super) use native::{call, steps};

/// Code is never emitted for this machine.
#[cfg(not(all(target_arch = "x86_64", not(portable), unix)))]
pub(super) unsafe fn call(_: Call) {}

/// As [`call`].
#[cfg(not(all(target_arch = "x86_64", not(portable), unix)))]
pub(super) unsafe fn steps(
    _: &crate::tile::Ctx,
    _: &super::code::Instruction,
    _: usize,
    _: &mut Steps,
) {
}
