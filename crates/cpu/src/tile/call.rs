//! Calls of emitted functions.

use super::code::Call;

/// The maximum number of operands of an emitted function.
pub(crate) const MAX_OPERANDS: usize = 96;

/// The steps of a batched call, with the addresses of their operands.
#[derive(Default)]
pub(crate) struct Steps {
    pub count: usize,
    /// The steps with bases of their own: all of them, or the first two if strides between steps are even.
    pub known: usize,
    pub bases: Vec<i64>,
    table: Vec<*mut u8>,
    /// The contiguous copies of operands, with a row per step.
    transposed: Vec<Vec<u64>>,
}

#[cfg(all(target_arch = "x86_64", not(portable), unix))]
mod native {
    use super::{Call, MAX_OPERANDS, Steps};
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

    /// Calls machine code over `n` lanes, with one row of addresses per step or run.
    ///
    /// # Safety
    /// The code is a function over lanes, and takes rows if there are several. Each address of the table points to the
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

    /// Interprets a call, if this thread interprets machine code. The call may access the table and states of
    /// reductions besides the declared memory.
    #[cfg(feature = "testing")]
    fn interpret(emitted: &Emitted, code: &Code, table: &[*mut u8], [n, rows]: [usize; 2]) -> bool {
        let mut accessible = vec![(table.as_ptr().cast(), size_of_val(table), false)];
        for (i, address) in table.iter().enumerate() {
            let operand = &emitted.operands[i % emitted.operands.len()];
            if matches!(operand.location, OperandLocation::State(_)) {
                accessible.push((address.cast_const(), STATE, true));
            }
        }
        let arguments = [table.as_ptr() as u64, n as u64, rows as u64];
        kiln_kernel::interpreted::call(code.bytes(), &arguments, &accessible)
    }

    /// Calls an emitted function; `x` is its number.
    ///
    /// # Safety
    /// As for every instruction.
    pub(crate) unsafe fn call((ctx, code): Call) {
        // SAFETY: the operands of the function belong to the program.
        unsafe {
            let ctx = &*ctx;
            let f = &*ctx.emitted.add((*code).x as usize);
            let mut table = [MaybeUninit::<*mut u8>::uninit(); MAX_OPERANDS];
            let table = &mut table[..f.operands.len()];
            let table = &mut *(std::ptr::from_mut(table) as *mut [*mut u8]);
            f.write_addresses(ctx, ctx.bases, ctx.slot_offset, table);
            for (operand, address) in f.operands.iter().zip(&*table) {
                if let OperandLocation::Transposed(x, _) = operand.location {
                    let base = *ctx.bases.add((*ctx.walks.add(x as usize)).base_index);
                    f.transpose_lanes(ctx, (operand, x), &[base], *address);
                }
            }
            f.run(ctx, table, &|_| ctx.bases, false);
        }
    }

    /// The maximum number of addresses of a call over runs.
    const MAX_ADDRESSES: usize = 256;

    /// Calls an emitted function over steps.
    ///
    /// # Safety
    /// As for every instruction; each step has the program's bases.
    pub(crate) unsafe fn call_steps(ctx: &Ctx, code: &Instruction, tile: usize, steps: &mut Steps) {
        // SAFETY: the operands of the function belong to the program.
        unsafe {
            let f = &*ctx.emitted.add(code.x as usize);
            let (operands, count) = (f.operands.len(), steps.count);
            let width = steps.bases.len() / steps.known.max(1);
            let bases = |step: usize| steps.bases.as_ptr().add(step * width);
            steps.table.clear();
            steps.table.resize(operands * count, std::ptr::null_mut());
            for (step, row) in
                (steps.table.chunks_exact_mut(operands).enumerate()).take(steps.known)
            {
                f.write_addresses(ctx, bases(step), ctx.slot_offset + step * tile, row);
            }
            for i in steps.known * operands..count * operands {
                let [previous, last] = [2, 1].map(|n| steps.table[i - n * operands]);
                let stride = last.addr().wrapping_sub(previous.addr());
                steps.table[i] = last.wrapping_add(stride);
            }
            f.transpose_operands(ctx, steps);
            let bases = |step: usize| steps.bases.as_ptr().add(step * width);
            f.run(ctx, &mut steps.table, &bases, true);
        }
    }

    impl Emitted {
        /// Copies the elements of a walk for the lanes of steps with these bases, with a row per step.
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
            // SAFETY: the caller's; elements of any type are copied.
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
                let (stride, lanes) = (walk.lanes[0].stride, ctx.n as i64);
                let mut step = 0;
                // Steps whose elements follow those of the previous step are transposed as a matrix.
                while step < bases.len() {
                    let gap = (step + 1..bases.len()).find(|s| bases[*s] != bases[s - 1] + 1);
                    let end = gap.unwrap_or(bases.len());
                    let start = bases[step] + ctx.pos.start * stride;
                    let from = memory.wrapping_offset(start as isize).cast_const();
                    compiled::<TransposeKernel<T>, _>(self.level)(Transpose {
                        from,
                        pitch: stride as isize,
                        rows: lanes as usize,
                        columns: end - step,
                        to: to.add(step * ctx.n),
                        to_pitch: lanes as isize,
                    });
                    step = end;
                }
            }
        }

        /// Copies the operands whose lanes are strided, for all steps.
        ///
        /// # Safety
        /// As [`call_steps`].
        unsafe fn transpose_operands(&self, ctx: &Ctx, steps: &mut Steps) {
            let operands = self.operands.len();
            let width = steps.bases.len() / steps.known.max(1);
            let mut copies = 0;
            for (o, operand) in self.operands.iter().enumerate() {
                let OperandLocation::Transposed(x, _) = operand.location else {
                    continue;
                };
                // SAFETY: the walk is the program's.
                let base_index = unsafe { (*ctx.walks.add(x as usize)).base_index };
                let mut bases: Vec<i64> = steps
                    .bases
                    .iter()
                    .skip(base_index)
                    .step_by(width)
                    .copied()
                    .collect();
                while bases.len() < steps.count {
                    let [previous, last] = [2, 1].map(|n| bases[bases.len() - n]);
                    bases.push(2 * last - previous);
                }
                if steps.transposed.len() == copies {
                    steps.transposed.push(vec![]);
                }
                let copy = &mut steps.transposed[copies];
                copies += 1;
                let row_bytes = ctx.n * operand.size;
                copy.resize((steps.count * row_bytes).div_ceil(8).max(copy.len()), 0);
                let to = copy.as_mut_ptr().cast::<u8>();
                #[cfg(feature = "testing")]
                kiln_kernel::interpreted::declare_memory(to, steps.count * row_bytes, false);
                // SAFETY: the caller's; there is room.
                unsafe { self.transpose_lanes(ctx, (operand, x), &bases, to) };
                for (step, addresses) in steps.table.chunks_exact_mut(operands).enumerate() {
                    addresses[o] = to.wrapping_add(step * row_bytes);
                }
            }
        }

        /// Runs over the lanes of a tile, run by run if there are such walks. The table has a row of addresses per step
        /// if `batched`, or else a single row. `bases` returns the bases of a step.
        ///
        /// # Safety
        /// As for every instruction; the rows have all addresses except those that are visited in runs.
        unsafe fn run(
            &self,
            ctx: &Ctx,
            table: &mut [*mut u8],
            bases: &dyn Fn(usize) -> *const i64,
            batched: bool,
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
                let mut remaining = ctx.n;
                while remaining > 0 {
                    let mut n = remaining;
                    for (x, indices) in &self.runs {
                        for (step, row) in table.chunks_exact_mut(operands).enumerate() {
                            let operand = &self.operands[indices[0]];
                            let (address, run_lanes) = walk(*x).run_at(ctx, bases(step), operand);
                            n = n.min(run_lanes as usize);
                            indices.iter().for_each(|o| row[*o] = address);
                        }
                    }
                    let (mut groups, mut runs) = (1, 1);
                    if batched {
                        enter(self, &self.code, table, n, table.len() / operands);
                    } else if self.steps {
                        (groups, runs) = self.call_rows(ctx, table, n, remaining);
                    } else {
                        self.run_lanes(table, n);
                    }
                    let done = n * runs * groups;
                    remaining -= done;
                    if remaining == 0 {
                        return;
                    }
                    for (x, _) in &self.runs {
                        for _ in 0..groups {
                            walk(*x).end_runs(ctx, n, runs as i64);
                        }
                    }
                    for row in table.chunks_exact_mut(operands) {
                        for (address, operand) in row.iter_mut().zip(&self.operands) {
                            *address = address.wrapping_add(done.wrapping_mul(operand.step));
                        }
                    }
                }
            }
        }

        /// Calls the function once for the run of `n` lanes whose addresses are `first`, and for the following runs
        /// with even strides, within the remaining lanes. Returns the number of groups, and of runs in a group.
        ///
        /// # Safety
        /// As for every instruction, and for [`Walk::run_at`](crate::tile::walk::Walk::run_at).
        unsafe fn call_rows(
            &self,
            ctx: &Ctx,
            first: &[*mut u8],
            n: usize,
            remaining: usize,
        ) -> (usize, usize) {
            let operands = self.operands.len();
            let max_rows = MAX_ADDRESSES / operands.max(3);
            let mut runs = (remaining / n).clamp(1, max_rows);
            let walk = |x: u32| {
                // SAFETY: walks are the program's.
                unsafe { &*ctx.walks.add(x as usize) }
            };
            // The bytes from run to run, and from group to group.
            let mut strides = [(0, 0); MAX_OPERANDS];
            let mut table = [MaybeUninit::uninit(); MAX_ADDRESSES];
            // SAFETY: the caller's.
            unsafe {
                for (x, _) in &self.runs {
                    runs = runs.min(walk(*x).even_runs(ctx, n as i64).0 as usize);
                }
                let mut groups = (remaining / (n * runs)).clamp(1, max_rows / runs);
                for ((run, group), operand) in strides.iter_mut().zip(&self.operands) {
                    *run = n.wrapping_mul(operand.step);
                    *group = run.wrapping_mul(runs);
                }
                for (x, indices) in &self.runs {
                    let (_, stride) = walk(*x).even_runs(ctx, n as i64);
                    let (even_groups, group_stride) = walk(*x).groups(ctx, n as i64, runs as i64);
                    groups = groups.min(even_groups as usize);
                    for o in indices {
                        let bytes = |elements: i64| {
                            (elements as usize).wrapping_mul(self.operands[*o].size)
                        };
                        strides[*o] = (bytes(stride), bytes(group_stride));
                    }
                }
                let mut to = table.iter_mut();
                for group in 0..groups {
                    for run in 0..runs {
                        for ((first, (by_run, by_group)), to) in
                            first.iter().zip(&strides).zip(&mut to)
                        {
                            let offset = run.wrapping_mul(*by_run);
                            let offset = offset.wrapping_add(group.wrapping_mul(*by_group));
                            to.write(first.wrapping_add(offset));
                        }
                    }
                }
                let rows = runs * groups;
                let table = std::slice::from_raw_parts(table.as_ptr().cast(), rows * operands);
                enter(self, &self.code, table, n, rows);
                (groups, runs)
            }
        }

        /// Writes the addresses of the operands at the first lane to the table, for these bases of the outer axes.
        /// Operands that are visited in runs get null.
        ///
        /// # Safety
        /// As for every instruction; the bases are as many as the program has.
        #[inline(always)]
        unsafe fn write_addresses(
            &self,
            ctx: &Ctx,
            bases: *const i64,
            slot_offset: usize,
            table: &mut [*mut u8],
        ) {
            for (to, operand) in table.iter_mut().zip(&self.operands) {
                // SAFETY: walks, registers, slots and states are the program's.
                *to = unsafe {
                    let walk = |x: u32| &*ctx.walks.add(x as usize);
                    let element = |arg: usize, index: i64| match operand.number {
                        true => index as *mut u8,
                        false => (*ctx.args.add(arg))
                            .wrapping_offset(index as isize * operand.size as isize),
                    };
                    match operand.location {
                        OperandLocation::Contiguous(x) => {
                            let w = walk(x);
                            element(w.arg, *bases.add(w.base_index) + ctx.pos.start)
                        }
                        OperandLocation::Prefetch(x, distance) => {
                            let w = walk(x);
                            let base = *bases.add(w.base_index) + i64::from(distance);
                            element(w.arg, base + ctx.pos.start)
                        }
                        OperandLocation::LaneZero(x) => {
                            let w = walk(x);
                            element(w.arg, *bases.add(w.base_index))
                        }
                        OperandLocation::Run(_) => std::ptr::null_mut(),
                        OperandLocation::Register(r) | OperandLocation::Transposed(_, r) => {
                            ctx.reg::<u8>(r)
                        }
                        OperandLocation::Slot(s) => {
                            (*ctx.slots.add(s as usize)).wrapping_add(slot_offset * operand.size)
                        }
                        OperandLocation::State(x) => ctx.states.add(x as usize).cast(),
                        OperandLocation::Argument(arg) => *ctx.args.add(arg as usize),
                        OperandLocation::Context => (&raw const ctx.pos).cast_mut().cast(),
                        OperandLocation::Zero => std::ptr::null_mut(),
                    }
                };
            }
        }

        /// Runs over `n` lanes from the addresses in the table. Lanes before the first aligned store, or all lanes if
        /// stores differ in alignment, use the variant for unaligned memory.
        ///
        /// # Safety
        /// As for [`enter`].
        unsafe fn run_lanes(&self, table: &mut [*mut u8], mut n: usize) {
            let Some(unaligned) = &self.unaligned else {
                // SAFETY: passed on to the caller.
                return unsafe { enter(self, &self.code, table, n, 1) };
            };
            let mut streams = self.operands.iter().zip(&*table).filter(|(o, _)| o.streams);
            let head = streams.next().map_or(0, |(o, p)| {
                (p.addr().next_multiple_of(LINE) - p.addr()) / o.size
            });
            let is_aligned =
                |p: &*mut u8, size: usize| (p.addr() + head * size).is_multiple_of(LINE);
            let mut operands = self.operands.iter().zip(&*table);
            let can_align = operands.all(|(o, p)| !o.streams || is_aligned(p, o.size));
            let head_lanes = if can_align { head.min(n) } else { n };
            // SAFETY: passed on to the caller; a part of the lanes is theirs too.
            unsafe {
                if head_lanes > 0 {
                    enter(self, unaligned, table, head_lanes, 1);
                    n -= head_lanes;
                    if n == 0 {
                        return;
                    }
                    for (p, o) in table.iter_mut().zip(&self.operands) {
                        *p = p.wrapping_add(head_lanes.wrapping_mul(o.step));
                    }
                    enter(self, &self.code, table, n, 1);
                    for (p, o) in table.iter_mut().zip(&self.operands) {
                        *p = p.wrapping_sub(head_lanes.wrapping_mul(o.step));
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
pub(super) use native::{call, call_steps};

/// Code is never emitted for this machine.
#[cfg(not(all(target_arch = "x86_64", not(portable), unix)))]
pub(super) unsafe fn call(_: Call) {}

/// As [`call`].
#[cfg(not(all(target_arch = "x86_64", not(portable), unix)))]
pub(super) unsafe fn call_steps(
    _: &crate::tile::Ctx,
    _: &super::code::Instruction,
    _: usize,
    _: &mut Steps,
) {
}
