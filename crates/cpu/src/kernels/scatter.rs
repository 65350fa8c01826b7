//! Elements placed by index.
//!
//! Threads own disjoint parts of the result. Each walks its part's source elements in ascending order, so the result is
//! that of one thread. A part owns a range of columns, or of the axes outside the indexed one. Where there is only one
//! lane, it owns a range of the indexed axis.

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
    /// The bytes of x.
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
        // SAFETY: linked for arguments of these lengths; its parts are apart where `parallel` says so.
        unsafe { self.run(&call.args, call.parallel, call.failures) };
        Ok(None)
    }
}

/// The number of indices that are checked together.
const BLOCK: i64 = 512;
/// The number of columns in a thread's share.
const COLUMNS: i64 = 256;
/// The source elements from which on it pays that each thread walks all indices.
const SHARED: i64 = 1 << 16;
/// The bytes of x that a thread copies at a time.
const COPY: i64 = 1 << 20;

impl Scatter {
    /// True if there is code for it.
    pub(crate) fn computes(p: &plan::Scatter) -> bool {
        let narrow = matches!(p.dtype, DType::Bool | DType::F16 | DType::BF16);
        let adds = matches!(p.kind, ScatterKind::Sum | ScatterKind::Prod);
        p.kind == ScatterKind::Set || p.dtype.computes() && !(adds && narrow)
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
        let (before, behind) = (merged(&axes[..axis]), merged(&axes[axis + 1..]));
        let mut outer: SmallVec<[Axis; 4]> = before.into_iter().chain(behind).collect();
        let behind = outer.last().is_some_and(|a| a.strides[0] == 1);
        let none = Axis {
            extent: 1,
            strides: [1, 0, 0],
        };
        let inner = match behind {
            true => outer.pop().unwrap_or(none),
            false => none,
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

    /// Runs it.
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
        let store = link(self.dtype, self.kind, self.level);
        let across = ceil(columns, COLUMNS);
        let part = |o: i64, column: (i64, i64), range: (i64, i64)| {
            let mut at = [0, self.offsets[0], self.offsets[1]];
            let mut rest = o;
            for a in self.outer.iter().rev() {
                let i = rest % a.extent;
                rest /= a.extent;
                (0..3).for_each(|k| at[k] += i * a.strides[k]);
            }
            (0..3).for_each(|k| at[k] += column.0 * self.inner.strides[k]);
            let part = Slice {
                out: args.addresses()[self.out].wrapping_offset(at[0] as isize * size),
                index: args.addresses()[self.index]
                    .cast::<i64>()
                    .wrapping_offset(at[1] as isize),
                src: args.addresses()[self.src].wrapping_offset(at[2] as isize * size),
                indexed: self.indexed,
                inner: self.inner.strides,
                columns: column.1 - column.0,
                bound: self.bound,
                range,
                place: (o * n) * columns + column.0,
                pitch: columns,
                failures,
            };
            // SAFETY: linking proved all places but those that indices name, which the walk
            // checks; parts write different places.
            unsafe { part.run(store) }
        };
        let threads = Pool::global().threads() as i64;
        if parallel && outer * across == 1 && threads > 1 && n * columns >= SHARED {
            let edge = |p: i64| (self.bound as i128 * p as i128 / threads as i128) as i64;
            return Pool::global().run(threads as usize, |p| {
                part(0, (0, columns), (edge(p as i64), edge(p as i64 + 1)))
            });
        }
        let work = n.saturating_mul(columns.min(COLUMNS)).saturating_mul(8);
        split(outer * across, work, parallel, |from, to| {
            for i in from..to {
                let first = i % across * COLUMNS;
                let column = (first, columns.min(first + COLUMNS));
                part(i / across, column, (0, self.bound));
            }
        });
    }

    /// Copies x to the result, unless they alias.
    fn copy(&self, args: &Arguments, parallel: bool) {
        if args.addresses()[self.x] == args.addresses()[self.out] || self.bytes == 0 {
            return;
        }
        let blocks = ceil(self.bytes as i64, COPY);
        split(blocks, COPY, parallel, |from, to| {
            let first = (from * COPY) as usize;
            let count = self.bytes.min((to * COPY) as usize) - first;
            let (x, out) = (args.addresses()[self.x], args.addresses()[self.out]);
            // SAFETY: both have this many bytes, and are different buffers.
            unsafe { std::ptr::copy_nonoverlapping(x.add(first), out.add(first), count) };
        });
    }
}

/// Returns the axes without those of extent 1, and with neighbours merged that are contiguous in all operands.
fn merged(axes: &[Axis]) -> Vec<Axis> {
    let mut out: Vec<Axis> = Vec::new();
    for a in axes.iter().filter(|a| a.extent != 1) {
        match out.last_mut() {
            Some(last)
                if (0..3).all(|k| a.strides[k].checked_mul(a.extent) == Some(last.strides[k])) =>
            {
                last.extent *= a.extent;
                last.strides = a.strides;
            }
            _ => out.push(*a),
        }
    }
    out
}

/// The part of a scatter at one place outside the indexed axis.
struct Slice<'a> {
    out: *mut u8,
    index: *const i64,
    src: *const u8,
    indexed: Axis,
    /// The strides of the columns.
    inner: [i64; 3],
    columns: i64,
    bound: i64,
    /// The destinations along the axis that this part owns.
    range: (i64, i64),
    /// The number of the first source element, for ordering failures, and the number of elements from one index to the
    /// next.
    place: i64,
    pitch: i64,
    failures: &'a Failures,
}

impl Slice<'_> {
    fn fail(&self, i: i64, j: i64, index: i64) {
        self.failures.report(Failure {
            place: self.place + i * self.pitch + j,
            site: 0,
            index,
            bound: self.bound,
        });
    }

    /// Reports the first index of the block that is outside the axis.
    #[cold]
    fn find_outside(&self, mut block: std::ops::Range<i64>) {
        // SAFETY: linking proved that the index has these elements.
        let index = |i| unsafe { *self.index.offset((i * self.indexed.strides[1]) as isize) };
        if let Some(i) = block.find(|i| index(*i) as u64 >= self.bound as u64) {
            self.fail(i, 0, index(i));
        }
    }

    /// Stores all elements.
    ///
    /// # Safety
    /// All places exist, except those that indices name, and the places that are written belong to this part alone.
    unsafe fn run(&self, store: Store) {
        // A row has one index.
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
            places: [(0, 0); BLOCK as usize],
        };
        let [step, index_step, src_step] = self.indexed.strides;
        let (first, count) = (self.range.0, (self.range.1 - self.range.0) as u64);
        if columns == 1 && count < self.bound as u64 {
            // A branch on ownership predicts badly, so this part's indices are listed without one.
            let mut own = [0i64; BLOCK as usize];
            for block in (0..self.indexed.extent).step_by(BLOCK as usize) {
                if self.failures.cancelled() {
                    return;
                }
                let (mut found, mut outside) = (0, false);
                let block = block..self.indexed.extent.min(block + BLOCK);
                for i in block.clone() {
                    // SAFETY: linking proved that the index has this element.
                    let index = unsafe { *self.index.offset((i * index_step) as isize) };
                    own[found] = i;
                    found += ((index.wrapping_sub(first) as u64) < count) as usize;
                    outside |= index as u64 >= self.bound as u64;
                }
                for (place, &i) in pairs.places.iter_mut().zip(&own[..found]) {
                    // SAFETY: as above.
                    let index = unsafe { *self.index.offset((i * index_step) as isize) };
                    *place = ((index * step) as isize, (i * src_step) as isize);
                }
                pairs.len = found;
                // SAFETY: the caller's; the indices are in this part's range.
                unsafe { pairs.flush() };
                if outside {
                    self.find_outside(block);
                }
            }
            return;
        }
        for i in 0..self.indexed.extent {
            if i % BLOCK == BLOCK - 1 && self.failures.cancelled() {
                return;
            }
            for j in 0..columns {
                let at = i * index_step + j * self.inner[1];
                // SAFETY: linking proved that the index has this element.
                let index = unsafe { *self.index.offset(at as isize) };
                if (index.wrapping_sub(first) as u64) < count {
                    let to = index * step + j * self.inner[0];
                    let from = i * src_step + j * self.inner[2];
                    pairs.places[pairs.len] = (to as isize, from as isize);
                    pairs.len += 1;
                    if pairs.len == pairs.places.len() {
                        // SAFETY: the caller's; the indices are in this part's range.
                        unsafe { pairs.flush() };
                    }
                } else if index as u64 >= self.bound as u64 {
                    self.fail(i, j, index);
                }
            }
        }
        // SAFETY: as above.
        unsafe { pairs.flush() };
    }
}

/// Destinations and their source elements, in the order of storing.
struct Pairs {
    store: Store,
    out: *mut u8,
    src: *const u8,
    /// The number of consecutive elements that go to each destination.
    run: usize,
    len: usize,
    places: [(isize, isize); BLOCK as usize],
}

impl Pairs {
    /// Stores the listed elements.
    ///
    /// # Safety
    /// All places exist, and nobody else touches the destinations.
    unsafe fn flush(&mut self) {
        let listed = Listed {
            out: self.out,
            src: self.src,
            places: self.places.as_ptr(),
            len: std::mem::take(&mut self.len),
            run: self.run,
        };
        // SAFETY: the caller's.
        unsafe { (self.store)(listed) };
    }
}

/// The loop that stores runs of elements from the source to the result.
type Store = unsafe fn(Listed);

/// [`Pairs`] in the form that the loops take.
struct Listed {
    out: *mut u8,
    src: *const u8,
    places: *const (isize, isize),
    len: usize,
    run: usize,
}

/// Replaces the previous element.
struct Set<M>(PhantomData<M>);
/// Combines with the previous element.
struct With<M, K>(PhantomData<(M, K)>);

impl<M: Mem> Kernel<Listed> for Set<M> {
    #[inline(always)]
    unsafe fn run<I: Isa>(listed: Listed) {
        // SAFETY: the caller's.
        unsafe { each::<M::Raw>(listed, |_, new| new) };
    }
}

impl<M: Mem, K: Combine> Kernel<Listed> for With<M, K>
where
    M::C: Number,
{
    #[inline(always)]
    unsafe fn run<I: Isa>(listed: Listed) {
        // SAFETY: the caller's.
        unsafe {
            each::<M::Raw>(
                listed,
                #[inline(always)]
                |old, new| M::store(K::combine(M::load(old), M::load(new))),
            );
        }
    }
}

/// Replaces each element of the result by `f` of it and the source's element.
///
/// # Safety
/// All places exist, and nobody else touches those of the result.
#[inline(always)]
unsafe fn each<T: Copy>(l: Listed, f: impl Fn(T, T) -> T) {
    for i in 0..l.len {
        // SAFETY: the caller's.
        unsafe {
            let (to, from) = *l.places.add(i);
            let (out, src) = (l.out.cast::<T>().offset(to), l.src.cast::<T>().offset(from));
            for j in 0..l.run {
                *out.add(j) = f(*out.add(j), *src.add(j));
            }
        }
    }
}

/// Returns the loop for elements of `dtype`. Only sums are worth vectors.
fn link(dtype: DType, kind: ScatterKind, level: Features) -> Store {
    fn plain<K: Combine>(dtype: DType) -> Store {
        with_number!(dtype, M => baseline::<With<M, K>, _>(), baseline::<With<M, K>, _>())
    }
    match (kind, dtype.size()) {
        (ScatterKind::Set, 1) => baseline::<Set<c::U8>, _>(),
        (ScatterKind::Set, 2) => baseline::<Set<c::U16>, _>(),
        (ScatterKind::Set, 4) => baseline::<Set<c::U32>, _>(),
        (ScatterKind::Set, _) => baseline::<Set<c::U64>, _>(),
        (ScatterKind::Sum, _) => with_number!(
            dtype,
            M => compiled::<With<M, Sum>, _>(level),
            baseline::<With<M, Sum>, _>()
        ),
        (ScatterKind::Prod, _) => plain::<Prod>(dtype),
        (ScatterKind::Max, _) => plain::<Max>(dtype),
        (ScatterKind::Min, _) => plain::<Min>(dtype),
    }
}
