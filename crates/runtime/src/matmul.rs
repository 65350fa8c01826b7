//! Batched matrix products: blocks of a size that depends on the shapes alone, spread over the pool.

mod packed;
mod small;
mod vector;

use crate::error::{Result, damaged};
use crate::memory::Storage;
use crate::pool::Pool;
use crate::simd::Level;
use crate::sums::Lane;
use crate::tile::affine::{Affine, ceil, eval, extent, product};
use crate::tile::{self, Failures, Linked, Runner};
use gemm_common::Parallelism;
use kiln_base::DType;
use kiln_base::plan::{self, Algorithm, Epilogue};
use smallvec::SmallVec;

/// A matrix operand with known numbers, in elements.
pub(crate) struct Operand {
    arg: usize,
    offset: i64,
    batch: Vec<i64>,
    pub(crate) row: i64,
    pub(crate) col: i64,
}

impl Operand {
    /// Checks a batch of matrices of so many rows and columns, in buffers of these lengths.
    pub(crate) fn new(
        x: &plan::Matrix,
        (batch, rows, cols): (&[i64], i64, i64),
        values: &[i64],
        lens: &[i64],
    ) -> Result<Operand> {
        let strides = x.batch_strides.iter().chain([&x.row, &x.col]);
        let strides: Vec<_> = strides.cloned().collect();
        let rank = batch.len();
        let map = Affine::new(&x.offset, &strides, rank + 2, values)?;
        let extents: Vec<i64> = batch.iter().copied().chain([rows, cols]).collect();
        let (low, high) = map.range(&extents);
        let len = lens[x.arg as usize] as i128;
        if !extents.contains(&0) && (low < 0 || high >= len) {
            return Err(damaged!("a matrix reaches outside its buffer"));
        }
        Ok(Operand {
            arg: x.arg as usize,
            offset: eval(&x.offset, values)?,
            batch: map.strides[..rank].to_vec(),
            row: map.strides[rank],
            col: map.strides[rank + 1],
        })
    }

    /// The address of element (i, j) of matrix number `b` of a batch of these extents.
    pub(crate) fn at<T>(
        &self,
        args: &[*mut u8],
        batch: &[i64],
        mut b: i64,
        i: i64,
        j: i64,
    ) -> *const T {
        let mut at = self.offset + i * self.row + j * self.col;
        for (stride, extent) in self.batch.iter().zip(batch).rev() {
            at += b % extent * stride;
            b /= extent;
        }
        args[self.arg].cast::<T>().wrapping_offset(at as isize)
    }
}

/// A linked matrix product.
pub(crate) struct MatMul {
    dtype: DType,
    batch: Vec<i64>,
    m: i64,
    k: i64,
    n: i64,
    lhs: Operand,
    rhs: Operand,
    out: usize,
    /// Whether its right matrix is to be packed in *prepare*, where that can be.
    packable: bool,
    /// Rows and columns of a block.
    block: (i64, i64),
    algorithm: Algorithm,
    level: Level,
    pub(crate) epilogue: Option<Linked>,
}

/// Blocks are halved down to this power of two of multiply-adds, unless the algorithm says another...
const BLOCK_WORK: u8 = 25;
/// ...and this many elements, where an epilogue wants them hot...
const BLOCK_ELEMENTS: i64 = 1 << 17;
/// ...but not below this many rows or columns.
const BLOCK_SIDE: i64 = 192;
/// Multiply-adds that make it worth waking another thread.
const PART_WORK: i64 = 1 << 18;

impl MatMul {
    /// Checks and links a product whose arguments have these lengths.
    pub(crate) fn new(
        p: &plan::MatMul,
        values: &[i64],
        lens: &[i64],
        level: Level,
    ) -> Result<MatMul> {
        let batch = p
            .batch
            .iter()
            .map(|d| extent(d, values))
            .collect::<Result<Vec<_>>>()?;
        let (m, k, n) = (
            extent(&p.m, values)?,
            extent(&p.k, values)?,
            extent(&p.n, values)?,
        );
        product(&[m.max(1), k.max(1), n.max(1)])?;
        let all: Vec<i64> = batch.iter().copied().chain([m, n]).collect();
        let total = product(&all)?;
        let operand = |x: &plan::Matrix, rows: i64, cols: i64| {
            Operand::new(x, (&batch, rows, cols), values, lens)
        };
        chosen(p.algorithm, &p.algorithms(values))?;
        let epilogue = epilogue(&p.epilogue, values, lens, total, level)?;
        if epilogue.is_none() && lens[p.out as usize] < total {
            return Err(damaged!("a matrix product is larger than its buffer"));
        }
        let most = match p.algorithm {
            Algorithm::Panels(most) => most,
            _ => BLOCK_WORK,
        };
        Ok(MatMul {
            dtype: p.dtype,
            lhs: operand(&p.lhs, m, k)?,
            rhs: operand(&p.rhs, k, n)?,
            out: p.out as usize,
            packable: packed::packable(p),
            block: block((m, k, n), epilogue.is_some(), 1 << most),
            algorithm: match p.algorithm {
                Algorithm::Auto if m == 1 || n == 1 => Algorithm::Vector,
                chosen => chosen,
            },
            level,
            batch,
            m,
            k,
            n,
            epilogue,
        })
    }

    /// Elements that it takes beside its arguments, on so many threads.
    pub(crate) fn workspace(&self, threads: i64) -> i64 {
        match self.algorithm {
            Algorithm::Vector => threads * self.k,
            Algorithm::Small => threads * self.small_workspace(),
            Algorithm::Packed => self.packed_elements(),
            _ => 0,
        }
    }

    /// The algorithm that it is computed by, if its result is to be kept hot or not; of panels that are the same,
    /// the smallest.
    pub(crate) fn computed_by(&self, hot: bool, fixed: bool) -> Algorithm {
        let most = match self.algorithm {
            Algorithm::Auto if fixed && self.packable => return Algorithm::Packed,
            Algorithm::Auto => BLOCK_WORK,
            Algorithm::Panels(most) => most,
            chosen => return chosen,
        };
        let sizes = (self.m, self.k, self.n);
        let cut = |most: u8| block(sizes, hot, 1 << most);
        let same = Algorithm::PANELS.into_iter().find(|p| cut(*p) == cut(most));
        Algorithm::Panels(same.unwrap_or(most))
    }

    /// Runs it, with the right matrix that [`MatMul::pack`] packed before, if there is one.
    ///
    /// # Safety
    /// `args` are the buffers it was linked for; see [`tile::Runner::new`]. What is packed is their right
    /// matrix.
    pub(crate) unsafe fn run(
        &self,
        args: &[*mut u8],
        packed: Option<*mut u8>,
        parallel: bool,
        failures: &Failures,
    ) {
        // SAFETY: the caller's; the dtype was checked.
        unsafe {
            match self.dtype {
                DType::F64 => self.run_typed::<f64>(args, packed, parallel, failures),
                _ => self.run_typed::<f32>(args, packed, parallel, failures),
            }
        }
    }

    unsafe fn run_typed<T: Lane>(
        &self,
        args: &[*mut u8],
        packed: Option<*mut u8>,
        parallel: bool,
        failures: &Failures,
    ) {
        // SAFETY: the caller's.
        unsafe {
            match (self.algorithm, packed) {
                (Algorithm::Packed, _) | (_, Some(_)) => {
                    self.by_packed::<T>(args, packed, parallel, failures);
                }
                (Algorithm::Vector, _) => self.vector::<T>(args, parallel, failures),
                (Algorithm::Small, _) => self.small::<T>(args, parallel, failures),
                _ => self.panels::<T>(args, parallel, failures),
            }
        }
    }

    unsafe fn panels<T: Number>(&self, args: &[*mut u8], parallel: bool, failures: &Failures) {
        let batch: i64 = self.batch.iter().product();
        let (rows, cols) = (ceil(self.m, self.block.0), ceil(self.n, self.block.1));
        let blocks = batch * rows * cols;
        if blocks == 0 {
            return;
        }
        let cost = self.block.0 * self.block.1 * self.k.max(1);
        let launch = (self.epilogue.as_ref(), args, parallel, failures);
        // SAFETY: the caller's; blocks write different places.
        run_blocks((blocks, cost), launch, |i, args, _: &mut (), work| unsafe {
            let (b, r, c) = (i / (rows * cols), i / cols % rows, i % cols);
            self.block::<T>(args, b, r, c, work)
        });
    }

    unsafe fn block<T: Number>(
        &self,
        args: &[*mut u8],
        b: i64,
        r: i64,
        c: i64,
        work: &mut Work,
    ) -> Result<()> {
        let (i0, j0) = (r * self.block.0, c * self.block.1);
        let (h, w) = (self.block.0.min(self.m - i0), self.block.1.min(self.n - j0));
        let first = (b * self.m + i0) * self.n + j0;
        let (lhs, rhs) = (
            self.at::<T>(&self.lhs, args, b, i0, 0),
            self.at::<T>(&self.rhs, args, b, 0, j0),
        );
        let (dst, pitch) = if self.epilogue.is_some() {
            (work.scratch::<T>(h * w)?, w)
        } else {
            let out = args[self.out].cast::<T>();
            (out.wrapping_offset(first as isize), self.n)
        };
        // SAFETY: linking proved the operands within their buffers; the block lies within the result
        // or the scratch memory.
        unsafe {
            product_of(
                (h, w, self.k),
                (dst, pitch, 1),
                (lhs, self.lhs.row, self.lhs.col),
                (rhs, self.rhs.row, self.rhs.col),
            );
            work.finish((dst, pitch), first, (h, self.n), w);
        }
        Ok(())
    }

    /// How many blocks of so many rows and columns there are.
    fn blocks_of(&self, (rows, cols): (i64, i64)) -> i64 {
        let batch: i64 = self.batch.iter().product();
        batch * ceil(self.m, rows) * ceil(self.n, cols)
    }

    /// Block number `i` of these. Rows change first: columns are read for all of them while they are hot.
    fn block_of(&self, (rows, cols): (i64, i64), i: i64) -> Block {
        let (down, across) = (ceil(self.m, rows), ceil(self.n, cols));
        let (row, col) = (i % down * rows, i / down % across * cols);
        Block {
            batch: i / (down * across),
            row,
            rows: rows.min(self.m - row),
            col,
            cols: cols.min(self.n - col),
        }
    }

    /// The address of element (i, j) of an operand's matrix number `b`.
    fn at<T>(&self, x: &Operand, args: &[*mut u8], b: i64, i: i64, j: i64) -> *const T {
        x.at(args, &self.batch, b, i, j)
    }
}

/// A block of one product.
struct Block {
    batch: i64,
    row: i64,
    rows: i64,
    col: i64,
    cols: i64,
}

/// Refuses an algorithm that is none of the legal ones.
pub(crate) fn chosen(algorithm: Algorithm, legal: &[Algorithm]) -> Result<()> {
    if algorithm == Algorithm::Auto || legal.contains(&algorithm) {
        return Ok(());
    }
    Err(damaged!("{algorithm} can't compute this kernel"))
}

/// The rows and columns of a block.
fn block((m, k, n): (i64, i64, i64), hot: bool, most: i64) -> (i64, i64) {
    let (mut rows, mut cols) = (m.max(1), n.max(1));
    let large = |rows: i64, cols: i64| {
        let elements = rows.saturating_mul(cols);
        elements.saturating_mul(k.max(1)) > most || hot && elements > BLOCK_ELEMENTS
    };
    // Halves are rounded up to whole register tiles of the kernels behind.
    let half = |x: i64| (x / 2 + 47) / 48 * 48;
    while large(rows, cols) {
        if rows >= 2 * BLOCK_SIDE && (rows >= cols || hot) {
            rows = half(rows);
        } else if cols >= 2 * BLOCK_SIDE {
            cols = half(cols);
        } else if rows >= 2 * BLOCK_SIDE {
            rows = half(rows);
        } else {
            break;
        }
    }
    (rows, cols)
}

/// Arguments that may be shared between threads.
pub(crate) struct Args<'a>(pub &'a [*mut u8]);
// SAFETY: the pointers are only passed on; what may be done with them is the callers' promise.
unsafe impl Sync for Args<'_> {}

/// Runs `items` of some multiply-adds each, on several threads where that pays.
pub(crate) fn split(items: i64, work: i64, parallel: bool, run: impl Fn(i64, i64) + Sync) {
    let pool = Pool::global();
    let threads = pool.threads() as i64;
    let parts = if parallel && threads > 1 {
        (items.saturating_mul(work) / PART_WORK).clamp(1, items.min(8 * threads).max(1))
    } else {
        1
    };
    pool.run(parts as usize, |p| {
        let edge = |p: i64| (items as i128 * p as i128 / parts as i128) as i64;
        run(edge(p as i64), edge(p as i64 + 1));
    });
}

/// Runs blocks, how many and of what cost each, up to the first that fails. Each thread has its [`Work`] for
/// the epilogue and a scratch of its own, which it keeps from block to block.
pub(crate) fn run_blocks<S: Default>(
    (items, cost): (i64, i64),
    (epilogue, args, parallel, failures): (Option<&Linked>, &[*mut u8], bool, &Failures),
    block: impl Fn(i64, &[*mut u8], &mut S, &mut Work) -> Result<()> + Sync,
) {
    let args = Args(args);
    split(items, cost, parallel, |from, to| {
        let args = &args;
        let mut work = Work::new(epilogue, args.0, failures);
        let mut scratch = S::default();
        for i in from..to {
            if let Err(e) = block(i, args.0, &mut scratch, &mut work) {
                return failures.broken(e);
            }
        }
    });
}

/// Links an epilogue over `total` results.
pub(crate) fn epilogue(
    epilogue: &Option<Epilogue>,
    values: &[i64],
    lens: &[i64],
    total: i64,
    level: Level,
) -> Result<Option<Linked>> {
    let Some(Epilogue { program }) = epilogue else {
        return Ok(None);
    };
    let lens: Vec<i64> = lens.iter().copied().chain([total]).collect();
    let bound = tile::bind(program, values, &lens)?;
    if !program.inner.is_empty()
        || program.schedule != kiln_base::tile::Schedule::Lanes
        || program.stages.iter().any(|s| s.over_inner)
        || bound.axes_len() != total
    {
        return Err(damaged!(
            "{} is no epilogue of {total} results",
            program.name
        ));
    }
    let linked = tile::link(&bound, level)?;
    if !linked.reads_in_place(lens.len() - 1) {
        return Err(damaged!(
            "{} reads other results than its own",
            program.name
        ));
    }
    Ok(Some(linked))
}

/// What one thread needs for epilogues: the program, scratch memory for raw results, and arguments
/// whose last is the raw result.
pub(crate) struct Work<'a> {
    epilogue: Option<&'a Linked>,
    args: SmallVec<[*mut u8; 12]>,
    failures: &'a Failures,
    scratch: Option<Storage>,
}

impl<'a> Work<'a> {
    fn new(epilogue: Option<&'a Linked>, args: &[*mut u8], failures: &'a Failures) -> Work<'a> {
        let mut args = SmallVec::from_slice(args);
        args.push(std::ptr::null_mut());
        Work {
            epilogue,
            args,
            failures,
            scratch: None,
        }
    }

    /// Memory for `len` raw results.
    pub(crate) fn scratch<T>(&mut self, len: i64) -> Result<*mut T> {
        let bytes = len as usize * size_of::<T>();
        if self.scratch.as_ref().is_none_or(|s| s.len() < bytes) {
            self.scratch = Some(Storage::new(bytes)?);
        }
        Ok(self
            .scratch
            .as_ref()
            .map_or(std::ptr::null_mut(), |s| s.ptr().cast()))
    }

    /// Runs the epilogue over `rows` rows of `width` raw results, `pitch` apart in memory and `step`
    /// apart in the linear space, which they enter at `first`. Without one, does nothing.
    ///
    /// # Safety
    /// The raw results exist; see [`Runner::new`] for the arguments.
    pub(crate) unsafe fn finish<T>(
        &mut self,
        (raw, pitch): (*mut T, i64),
        first: i64,
        (rows, step): (i64, i64),
        width: i64,
    ) {
        let Some(program) = self.epilogue else {
            return;
        };
        let last = self.args.len() - 1;
        // SAFETY: the caller's. The raw argument points where its element zero would be, so that
        // the elements worked on are at the raw results.
        unsafe {
            let mut runner = match Runner::new(program, self.args.as_ptr(), self.failures) {
                Ok(runner) => runner,
                Err(e) => return self.failures.broken(e),
            };
            let raw_arg = self.args.as_mut_ptr().add(last);
            if pitch == step {
                *raw_arg = raw.wrapping_offset(-first as isize).cast();
                return runner.range(first, first + (rows - 1) * step + width);
            }
            for r in 0..rows {
                let at = first + r * step;
                *raw_arg = raw.wrapping_offset((r * pitch - at) as isize).cast();
                runner.range(at, at + width);
            }
        }
    }
}

/// A type that products exist for.
/// A matrix product of the `gemm` crates: sizes; pointer, column stride and row stride of the result,
/// of which the rows lie closer together; whether it is read; the same of both operands; both factors.
type Gemm<T> = unsafe fn(
    usize,
    usize,
    usize,
    *mut T,
    isize,
    isize,
    bool,
    *const T,
    isize,
    isize,
    *const T,
    isize,
    isize,
    T,
    T,
    bool,
    bool,
    bool,
    Parallelism,
);

pub(crate) trait Number: Copy + PartialEq + 'static {
    const ZERO: Self;
    const ONE: Self;

    /// `dst = alpha · dst + beta · lhs · rhs` for the instruction set of this machine.
    fn gemm() -> Gemm<Self>;
}
impl Number for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    fn gemm() -> Gemm<f32> {
        gemm_f32::gemm::f32::get_gemm_fn()
    }
}
impl Number for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    fn gemm() -> Gemm<f64> {
        gemm_f64::gemm::f64::get_gemm_fn()
    }
}

/// `dst = lhs · rhs` for matrices given as pointer, row stride and column stride.
///
/// # Safety
/// All elements exist, and those of `dst` are nobody else's.
pub(crate) unsafe fn product_of<T: Number>(
    sizes: (i64, i64, i64),
    dst: (*mut T, i64, i64),
    lhs: (*const T, i64, i64),
    rhs: (*const T, i64, i64),
) {
    // SAFETY: the caller's.
    unsafe { add_product_of(sizes, dst, lhs, rhs, false) }
}

/// As [`product_of`]; with `add`, the product is added to what `dst` holds.
///
/// # Safety
/// As [`product_of`].
pub(crate) unsafe fn add_product_of<T: Number>(
    (m, n, k): (i64, i64, i64),
    (dst, dst_row, dst_col): (*mut T, i64, i64),
    (lhs, lhs_row, lhs_col): (*const T, i64, i64),
    (rhs, rhs_row, rhs_col): (*const T, i64, i64),
    add: bool,
) {
    // SAFETY: the caller's.
    unsafe {
        if k == 0 && !add {
            for i in 0..m {
                for j in 0..n {
                    *dst.offset((i * dst_row + j * dst_col) as isize) = T::ZERO;
                }
            }
            return;
        }
        // The result lies in columns there; where it lies in rows, its transpose does.
        let (left, right) = ((m, lhs, lhs_col, lhs_row), (n, rhs, rhs_col, rhs_row));
        let transpose = |(n, from, col, row)| (n, from, row, col);
        let ((m, lhs, lhs_col, lhs_row), (n, rhs, rhs_col, rhs_row), dst_col, dst_row) =
            if dst_col < dst_row {
                (transpose(right), transpose(left), dst_row, dst_col)
            } else {
                (left, right, dst_col, dst_row)
            };
        T::gemm()(
            m as usize,
            n as usize,
            k as usize,
            dst,
            dst_col as isize,
            dst_row as isize,
            add,
            lhs,
            lhs_col as isize,
            lhs_row as isize,
            rhs,
            rhs_col as isize,
            rhs_row as isize,
            if add { T::ONE } else { T::ZERO },
            T::ONE,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}
