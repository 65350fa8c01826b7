//! Scatters: elements written by index.
//!
//! Threads own disjoint parts of the result. Each thread visits the source elements of its part in ascending order, so
//! the result equals that of one thread. A part is a range of columns, or of the axes before the indexed one. If there
//! is only one lane, a part is a range of the indexed axis.

use crate::combine::{Combine, Max, Min, Number, Prod, Sum, with_number};
use crate::kernels::matmul::split;
use kiln_base::DType;
use kiln_base::prim::ScatterKind;
use kiln_kernel::affine::{Affine, ceil, extent, product};
use kiln_kernel::error::{Result, damaged};
use kiln_kernel::failures::{Failure, Failures};
use kiln_kernel::pool::Pool;
use kiln_kernel::simd::convert as c;
use kiln_kernel::simd::convert::Mem;
use kiln_kernel::simd::{Features, Isa, Kernel, baseline, compiled};
use kiln_kernel::view::Arguments;
use kiln_kernel::work::{Call, LinkedKernel};
use kiln_plan as plan;
use smallvec::SmallVec;
use std::marker::PhantomData;

/// An axis of the source.
#[derive(Copy, Clone, Debug)]
struct Axis {
    extent: i64,
    /// The strides in the result, the index and the source, in elements.
    strides: [i64; 3],
}

/// A linked scatter.
pub(crate) struct Scatter {
    /// The size of x in bytes.
    bytes: usize,
    /// The axes other than the indexed one and `inner`.
    outer: SmallVec<[Axis; 4]>,
    indexed: Axis,
    /// The last axis after the indexed one; of extent 1 if there is none.
    inner: Axis,
    /// The extent of the indexed axis in x.
    bound: i64,
    /// The offsets of the index and the source.
    offsets: [i64; 2],
    x: usize,
    index: usize,
    src: usize,
    out: usize,
    dtype: DType,
    kind: ScatterKind,
    level: Features,
}

impl LinkedKernel for Scatter {
    fn run(&self, call: &Call<'_>) -> Result<Option<Failure>> {
        // SAFETY: linked for arguments of these lengths.
        unsafe { self.run(&call.args, call.parallel, call.failures) };
        Ok(None)
    }
}

/// The number of indices that are checked together.
const BLOCK: i64 = 512;
/// The number of columns of a part.
const COLUMNS: i64 = 256;
/// The minimum number of source elements for which each thread visits all indices.
const MIN_SHARED: i64 = 1 << 16;
/// The number of bytes of x that a thread copies at a time.
const COPY_BYTES: i64 = 1 << 20;

impl Scatter {
    /// True if the CPU has code for the scatter.
    pub(crate) fn computes(p: &plan::Scatter) -> bool {
        let is_narrow = matches!(p.dtype, DType::Bool | DType::F16 | DType::BF16);
        let adds = matches!(p.kind, ScatterKind::Sum | ScatterKind::Prod);
        p.kind == ScatterKind::Set || p.dtype.computes() && !(adds && is_narrow)
    }

    /// Checks and links a scatter.
    pub(crate) fn new(p: &plan::Scatter, values: &[i64], level: Features) -> Result<Scatter> {
        let rank = p.shape.len();
        let axis = p.axis as usize;
        if axis >= rank || p.index_shape.len() != rank {
            return Err(damaged!("a scatter along axis {axis} of {rank}"));
        }
        let extents = |dims: &[kiln_base::Dim]| -> Result<Vec<i64>> {
            dims.iter().map(|d| extent(d, values)).collect()
        };
        let (shape, from) = (extents(&p.shape)?, extents(&p.index_shape)?);
        let total = product(&shape)?;
        if (0..rank).any(|a| a != axis && from[a] > shape[a]) {
            return Err(damaged!("the index of a scatter is larger than x"));
        }
        let operand = |s: &plan::Strided| Affine::new(&s.offset, &s.strides, rank, values);
        let (index, src) = (operand(&p.index)?, operand(&p.src)?);
        let mut step = 1;
        let mut axes: Vec<Axis> = vec![];
        for a in (0..rank).rev() {
            axes.push(Axis {
                extent: from[a],
                strides: [step, index.strides[a], src.strides[a]],
            });
            step = step.saturating_mul(shape[a]);
        }
        axes.reverse();
        let (before, after) = (merge_axes(&axes[..axis]), merge_axes(&axes[axis + 1..]));
        let mut outer: SmallVec<[Axis; 4]> = before.into_iter().chain(after).collect();
        let has_inner = outer.last().is_some_and(|a| a.strides[0] == 1);
        let unit_axis = Axis {
            extent: 1,
            strides: [1, 0, 0],
        };
        let inner = match has_inner {
            true => outer.pop().unwrap_or(unit_axis),
            false => unit_axis,
        };
        Ok(Scatter {
            bytes: total as usize * p.dtype.size(),
            outer,
            indexed: axes[axis],
            inner,
            bound: shape[axis],
            offsets: [index.offset, src.offset],
            x: p.x as usize,
            index: p.index.arg as usize,
            src: p.src.arg as usize,
            out: p.out as usize,
            dtype: p.dtype,
            kind: p.kind,
            level,
        })
    }

    /// Runs the scatter.
    ///
    /// # Safety
    /// `args` are the buffers it was linked for; see [`crate::tile::Runner::new`].
    pub(crate) unsafe fn run(&self, args: &Arguments, parallel: bool, failures: &Failures) {
        self.copy(args, parallel);
        let outer: i64 = self.outer.iter().map(|a| a.extent).product();
        let (n, columns) = (self.indexed.extent, self.inner.extent);
        if outer * n * columns == 0 {
            return;
        }
        let size = self.dtype.size() as isize;
        let store = store_loop(self.dtype, self.kind, self.level);
        let column_blocks = ceil(columns, COLUMNS);
        let part = |o: i64, column: (i64, i64), range: (i64, i64)| {
            let mut offsets = [0, self.offsets[0], self.offsets[1]];
            let mut remaining = o;
            for a in self.outer.iter().rev() {
                let i = remaining % a.extent;
                remaining /= a.extent;
                (0..3).for_each(|k| offsets[k] += i * a.strides[k]);
            }
            (0..3).for_each(|k| offsets[k] += column.0 * self.inner.strides[k]);
            let part = Slice {
                out: args.addresses()[self.out].wrapping_offset(offsets[0] as isize * size),
                index: args.addresses()[self.index]
                    .cast::<i64>()
                    .wrapping_offset(offsets[1] as isize),
                src: args.addresses()[self.src].wrapping_offset(offsets[2] as isize * size),
                indexed: self.indexed,
                inner: self.inner.strides,
                columns: column.1 - column.0,
                bound: self.bound,
                range,
                position: (o * n) * columns + column.0,
                pitch: columns,
                failures,
            };
            // SAFETY: linking proved all offsets in range except those from indices, which the part checks; parts write
            // different elements.
            unsafe { part.run(store) }
        };
        let threads = Pool::global().threads() as i64;
        if parallel && outer * column_blocks == 1 && threads > 1 && n * columns >= MIN_SHARED {
            let start = |p: i64| (self.bound as i128 * p as i128 / threads as i128) as i64;
            return Pool::global().run(threads as usize, |p| {
                part(0, (0, columns), (start(p as i64), start(p as i64 + 1)))
            });
        }
        let work = n.saturating_mul(columns.min(COLUMNS)).saturating_mul(8);
        split(outer * column_blocks, work, parallel, |from, to| {
            for i in from..to {
                let first = i % column_blocks * COLUMNS;
                let column = (first, columns.min(first + COLUMNS));
                part(i / column_blocks, column, (0, self.bound));
            }
        });
    }

    /// Copies x to the result, unless they alias.
    fn copy(&self, args: &Arguments, parallel: bool) {
        if args.addresses()[self.x] == args.addresses()[self.out] || self.bytes == 0 {
            return;
        }
        let blocks = ceil(self.bytes as i64, COPY_BYTES);
        split(blocks, COPY_BYTES, parallel, |from, to| {
            let first = (from * COPY_BYTES) as usize;
            let count = self.bytes.min((to * COPY_BYTES) as usize) - first;
            let (x, out) = (args.addresses()[self.x], args.addresses()[self.out]);
            // SAFETY: both have this many bytes, and are different buffers.
            unsafe { std::ptr::copy_nonoverlapping(x.add(first), out.add(first), count) };
        });
    }
}

/// Drops axes of extent 1, and merges neighbours that are contiguous in all operands.
fn merge_axes(axes: &[Axis]) -> Vec<Axis> {
    let mut merged: Vec<Axis> = Vec::new();
    for a in axes.iter().filter(|a| a.extent != 1) {
        match merged.last_mut() {
            Some(last)
                if (0..3).all(|k| a.strides[k].checked_mul(a.extent) == Some(last.strides[k])) =>
            {
                last.extent *= a.extent;
                last.strides = a.strides;
            }
            _ => merged.push(*a),
        }
    }
    merged
}

/// The part of a scatter at one index of the outer axes.
struct Slice<'a> {
    out: *mut u8,
    index: *const i64,
    src: *const u8,
    indexed: Axis,
    /// The strides of the columns.
    inner: [i64; 3],
    columns: i64,
    bound: i64,
    /// The range of the indexed axis that this part owns.
    range: (i64, i64),
    /// The linear index of the first source element, which orders failures.
    position: i64,
    /// The number of elements from one index to the next.
    pitch: i64,
    failures: &'a Failures,
}

impl Slice<'_> {
    fn report(&self, i: i64, j: i64, index: i64) {
        self.failures.report(Failure {
            position: self.position + i * self.pitch + j,
            site: 0,
            index,
            bound: self.bound,
        });
    }

    /// Reports the first index of the block that is out of bounds.
    #[cold]
    fn report_outside(&self, mut block: std::ops::Range<i64>) {
        // SAFETY: linking proved that the index has these elements.
        let index = |i| unsafe { *self.index.offset((i * self.indexed.strides[1]) as isize) };
        if let Some(i) = block.find(|i| index(*i) as u64 >= self.bound as u64) {
            self.report(i, 0, index(i));
        }
    }

    /// Stores all elements.
    ///
    /// # Safety
    /// All elements exist, except those that indices select, and only this part writes its elements.
    unsafe fn run(&self, store: Store) {
        // All columns of a row share one index.
        let is_row = self.inner == [1, 0, 1] && self.columns > 1;
        let (columns, run) = match is_row {
            true => (1, self.columns),
            false => (self.columns, 1),
        };
        let mut pairs = Pairs {
            store,
            out: self.out,
            src: self.src,
            run: run as usize,
            len: 0,
            offsets: [(0, 0); BLOCK as usize],
        };
        let [step, index_step, src_step] = self.indexed.strides;
        let (first, count) = (self.range.0, (self.range.1 - self.range.0) as u64);
        if columns == 1 && count < self.bound as u64 {
            // A branch on the range is hard to predict, so the indices in it are collected without one.
            let mut selected = [0i64; BLOCK as usize];
            for block in (0..self.indexed.extent).step_by(BLOCK as usize) {
                if self.failures.is_cancelled() {
                    return;
                }
                let (mut selected_count, mut has_outside) = (0, false);
                let block = block..self.indexed.extent.min(block + BLOCK);
                for i in block.clone() {
                    // SAFETY: linking proved that the index has this element.
                    let index = unsafe { *self.index.offset((i * index_step) as isize) };
                    selected[selected_count] = i;
                    selected_count += ((index.wrapping_sub(first) as u64) < count) as usize;
                    has_outside |= index as u64 >= self.bound as u64;
                }
                for (pair, &i) in pairs.offsets.iter_mut().zip(&selected[..selected_count]) {
                    // SAFETY: as above.
                    let index = unsafe { *self.index.offset((i * index_step) as isize) };
                    *pair = ((index * step) as isize, (i * src_step) as isize);
                }
                pairs.len = selected_count;
                // SAFETY: the caller's; the indices are in this part's range.
                unsafe { pairs.flush() };
                if has_outside {
                    self.report_outside(block);
                }
            }
            return;
        }
        for i in 0..self.indexed.extent {
            if i % BLOCK == BLOCK - 1 && self.failures.is_cancelled() {
                return;
            }
            for j in 0..columns {
                let offset = i * index_step + j * self.inner[1];
                // SAFETY: linking proved that the index has this element.
                let index = unsafe { *self.index.offset(offset as isize) };
                if (index.wrapping_sub(first) as u64) < count {
                    let to = index * step + j * self.inner[0];
                    let from = i * src_step + j * self.inner[2];
                    pairs.offsets[pairs.len] = (to as isize, from as isize);
                    pairs.len += 1;
                    if pairs.len == pairs.offsets.len() {
                        // SAFETY: the caller's; the indices are in this part's range.
                        unsafe { pairs.flush() };
                    }
                } else if index as u64 >= self.bound as u64 {
                    self.report(i, j, index);
                }
            }
        }
        // SAFETY: as above.
        unsafe { pairs.flush() };
    }
}

/// The offsets of destinations and source elements, in the order of stores.
struct Pairs {
    store: Store,
    out: *mut u8,
    src: *const u8,
    /// The number of consecutive elements that go to each destination.
    run: usize,
    len: usize,
    offsets: [(isize, isize); BLOCK as usize],
}

impl Pairs {
    /// Stores the collected elements, and clears the list.
    ///
    /// # Safety
    /// All elements exist, and nobody else accesses the destinations.
    unsafe fn flush(&mut self) {
        let arguments = StoreArguments {
            out: self.out,
            src: self.src,
            offsets: self.offsets.as_ptr(),
            len: std::mem::take(&mut self.len),
            run: self.run,
        };
        // SAFETY: the caller's.
        unsafe { (self.store)(arguments) };
    }
}

/// The loop that stores runs of elements from the source to the result.
type Store = unsafe fn(StoreArguments);

/// [`Pairs`] as arguments of the loops.
struct StoreArguments {
    out: *mut u8,
    src: *const u8,
    offsets: *const (isize, isize),
    len: usize,
    run: usize,
}

/// The kernel that replaces elements.
struct Replace<M>(PhantomData<M>);
/// The kernel that combines elements with previous ones.
struct CombineWith<M, K>(PhantomData<(M, K)>);

impl<M: Mem> Kernel<StoreArguments> for Replace<M> {
    #[inline(always)]
    unsafe fn run<I: Isa>(arguments: StoreArguments) {
        // SAFETY: the caller's.
        unsafe { update_each::<M::Raw>(arguments, |_, new| new) };
    }
}

impl<M: Mem, K: Combine> Kernel<StoreArguments> for CombineWith<M, K>
where
    M::C: Number,
{
    #[inline(always)]
    unsafe fn run<I: Isa>(arguments: StoreArguments) {
        // SAFETY: the caller's.
        unsafe {
            update_each::<M::Raw>(
                arguments,
                #[inline(always)]
                |old, new| M::store(K::combine(M::load(old), M::load(new))),
            );
        }
    }
}

/// Replaces each element of the result with `f` of it and the source's element.
///
/// # Safety
/// All elements exist, and nobody else accesses those of the result.
#[inline(always)]
unsafe fn update_each<T: Copy>(l: StoreArguments, f: impl Fn(T, T) -> T) {
    for i in 0..l.len {
        // SAFETY: the caller's.
        unsafe {
            let (to, from) = *l.offsets.add(i);
            let (out, src) = (l.out.cast::<T>().offset(to), l.src.cast::<T>().offset(from));
            for j in 0..l.run {
                *out.add(j) = f(*out.add(j), *src.add(j));
            }
        }
    }
}

/// Returns the loop for elements of `dtype`. Only sums profit from vectors.
fn store_loop(dtype: DType, kind: ScatterKind, level: Features) -> Store {
    fn scalar<K: Combine>(dtype: DType) -> Store {
        with_number!(dtype, M => baseline::<CombineWith<M, K>, _>(), baseline::<CombineWith<M, K>, _>())
    }
    match (kind, dtype.size()) {
        (ScatterKind::Set, 1) => baseline::<Replace<c::U8>, _>(),
        (ScatterKind::Set, 2) => baseline::<Replace<c::U16>, _>(),
        (ScatterKind::Set, 4) => baseline::<Replace<c::U32>, _>(),
        (ScatterKind::Set, _) => baseline::<Replace<c::U64>, _>(),
        (ScatterKind::Sum, _) => with_number!(
            dtype,
            M => compiled::<CombineWith<M, Sum>, _>(level),
            baseline::<CombineWith<M, Sum>, _>()
        ),
        (ScatterKind::Prod, _) => scalar::<Prod>(dtype),
        (ScatterKind::Max, _) => scalar::<Max>(dtype),
        (ScatterKind::Min, _) => scalar::<Min>(dtype),
    }
}
