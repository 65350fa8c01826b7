//! The algorithms, blocks and costs of matrix products.

use super::MOVE;
use super::decision::{Decision, Guard};
use crate::schedule::Cpu;
use crate::{Algorithm, Epilogue, MatMul};
use kiln_base::{Dim, ceil};

/// The minimum number of columns of B that is packed once: fewer would leave most of a panel empty.
const PACKED_COLUMNS: i64 = 8;
/// The maximum number of rows of a register tile.
const ROWS: i64 = 8;
/// The multiply-adds of a block, unless a schedule sets another number.
const BLOCK_WORK: i64 = 1 << 25;
/// The multiply-adds of a block that holds whole rows.
const ROWS_WORK: i64 = 1 << 27;
/// The multiply-adds of blocks that a tuner tries.
const OTHER_WORK: [i64; 4] = [1 << 21, 1 << 23, 1 << 25, 1 << 27];
/// The elements of a block whose epilogue needs them hot in the cache.
const BLOCK_ELEMENTS: i64 = 1 << 17;
/// The minimum number of rows or columns of a block.
const BLOCK_SIDE: i64 = 192;
/// The factor by which a block of whole rows has more work, and the minimum number of these blocks, if there are enough
/// rows.
const PACKS_ALL: i64 = 4;
const MIN_BLOCKS: i64 = 8;

/// The epilogue of a product.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum ProductEpilogue {
    /// None.
    Nothing,
    /// Work on each element.
    Elements,
    /// Work on each row.
    Rows,
}

/// Returns the rows and columns of a block by [`Algorithm::Panels`].
pub fn block(batch: &[i64], sizes: (i64, i64, i64), epilogue_kind: ProductEpilogue) -> (i64, i64) {
    let max_work = match epilogue_kind {
        ProductEpilogue::Rows => ROWS_WORK,
        _ => BLOCK_WORK,
    };
    block_of(batch, sizes, epilogue_kind, max_work)
}

/// Returns the rows and columns of a block of at most `max_work` multiply-adds.
fn block_of(
    batch: &[i64],
    (m, k, n): (i64, i64, i64),
    epilogue_kind: ProductEpilogue,
    max_work: i64,
) -> (i64, i64) {
    let (mut rows, mut cols) = (m.max(1), n.max(1));
    if epilogue_kind == ProductEpilogue::Rows {
        // Each block packs all of B.
        let rows_wanted = max_work * PACKS_ALL / (k * n).max(1);
        return (whole_rows(batch, (m, n), rows_wanted, ROWS), cols);
    }
    let keeps_hot = epilogue_kind == ProductEpilogue::Elements;
    let is_too_large = |rows: i64, cols: i64| {
        let elements = rows.saturating_mul(cols);
        elements.saturating_mul(k.max(1)) > max_work || keeps_hot && elements > BLOCK_ELEMENTS
    };
    // Halved sizes are rounded up to whole register tiles of the kernels called.
    let half = |x: i64| (x / 2 + 47) / 48 * 48;
    while is_too_large(rows, cols) {
        if rows >= 2 * BLOCK_SIDE && (rows >= cols || keeps_hot) {
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

/// Returns the number of whole rows of `m` in a block, given about the `wanted` number: whole register tiles of `tile`
/// rows, few enough to stay hot, and enough blocks for threads to share.
pub fn whole_rows(batch: &[i64], (m, n): (i64, i64), wanted: i64, tile: i64) -> i64 {
    let max_hot = BLOCK_ELEMENTS / n.max(1);
    let max_shared = ceil(m * batch.iter().product::<i64>(), MIN_BLOCKS).min(m);
    ceil(wanted.min(max_hot).min(max_shared).max(1), tile) * tile
}

/// The extents of a product.
struct Sizes {
    batch: Vec<i64>,
    m: i64,
    k: i64,
    n: i64,
}

impl MatMul {
    /// Returns its extents, if they have values.
    fn sizes(&self, values: &[i64]) -> Option<Sizes> {
        let size = |d: &Dim| d.eval_checked(values);
        Some(Sizes {
            batch: self.batch.iter().map(size).collect::<Option<_>>()?,
            m: size(&self.m)?,
            k: size(&self.k)?,
            n: size(&self.n)?,
        })
    }

    /// Returns every algorithm that can compute it if symbols have these values.
    pub fn algorithms(&self, values: &[i64]) -> Vec<Algorithm> {
        let Some(Sizes { batch, m, k, n }) = self.sizes(values) else {
            return Vec::new();
        };
        if self.is_narrow() {
            return vec![Algorithm::Packed];
        }
        let mut legal = vec![Algorithm::Panels];
        if (m == 1 || n == 1) && self.walks() {
            legal.push(Algorithm::Vector);
        }
        let in_memory = self.prologues.iter().all(Option::is_none);
        let total = |list: &[i64]| list.iter().fold(1i64, |n, s| n.saturating_mul(*s));
        if (m <= Algorithm::MAX_SMALL_ROWS || total(&[m, k, n]) <= 1 << Algorithm::MAX_SMALL_LOG2)
            && in_memory
        {
            legal.push(Algorithm::Small);
        }
        if self.shares_right() {
            legal.push(Algorithm::Packed);
        }
        let has_few_results = total(&[total(&batch), m, n]) <= Algorithm::MAX_PARTS_RESULTS;
        if k >= Algorithm::MIN_PARTS_TERMS && has_few_results && self.walks() {
            legal.push(Algorithm::Parts);
        }
        legal
    }

    /// True if it is of floats, its operands are in memory and its epilogue does not need whole rows.
    fn walks(&self) -> bool {
        let in_memory = self.prologues.iter().all(Option::is_none);
        self.sums().is_float() && in_memory && self.epilogue_kind() != ProductEpilogue::Rows
    }

    /// Returns the kind of its epilogue.
    pub fn epilogue_kind(&self) -> ProductEpilogue {
        match &self.epilogue {
            None => ProductEpilogue::Nothing,
            Some(e) if Epilogue::over_rows(e) => ProductEpilogue::Rows,
            Some(_) => ProductEpilogue::Elements,
        }
    }

    /// True if all products of the batch have the same B, which is in memory.
    fn shares_right(&self) -> bool {
        self.prologues[1].is_none() && self.shares_matrix()
    }

    /// True if all products of the batch have the same B.
    fn shares_matrix(&self) -> bool {
        let mut strides = self.rhs.batch_strides.iter().zip(&self.batch);
        strides.all(|(stride, extent)| stride.is(0) || extent.is(1))
    }

    /// True if B is packed identically for all values of symbols.
    pub(super) fn packs_alike(&self) -> bool {
        let rhs = [
            &self.k,
            &self.n,
            &self.rhs.offset,
            &self.rhs.row,
            &self.rhs.col,
        ];
        let batch_strides = self.batch.iter().chain(&self.rhs.batch_strides);
        let batch_strides = batch_strides.filter(|_| !self.shares_matrix());
        rhs.into_iter()
            .chain(batch_strides)
            .all(|d| d.as_const().is_some())
    }

    /// See [`Kernel::by_default`](crate::Kernel::by_default).
    pub fn by_default(&self, packs: bool) -> Decision {
        let within = |d: &Dim, min, max| Guard::Within(d.clone(), min, max);
        if self.is_narrow() {
            return Algorithm::Packed.into();
        }
        let mut table = Vec::new();
        if packs && self.shares_right() {
            let sizes = vec![
                within(&self.k, 1, i64::MAX),
                within(&self.n, PACKED_COLUMNS, i64::MAX),
                within(&self.m, 1, i64::MAX),
            ];
            table.push((Algorithm::Packed, sizes));
        }
        if self.walks() {
            let vectors = [&self.m, &self.n].map(|d| (Algorithm::Vector, vec![within(d, 1, 1)]));
            table.extend(vectors);
        }
        table.push((Algorithm::Panels, vec![]));
        Decision::of(table, &|_, _| None)
    }

    /// Returns the schedule that it names if symbols have these values.
    pub fn schedule(&self, values: &[i64]) -> Option<Cpu> {
        self.algorithm.at(values, &|_, _| None)
    }

    /// Returns blocks of other sizes than the default's, by [`Algorithm::Panels`].
    pub(super) fn blocks(&self, values: &[i64]) -> Vec<[u32; 2]> {
        let Some(Sizes { batch, m, k, n }) = self.sizes(values) else {
            return Vec::new();
        };
        let block_for = |max_work| block_of(&batch, (m, k, n), self.epilogue_kind(), max_work);
        let mut distinct = vec![block(&batch, (m, k, n), self.epilogue_kind())];
        for max_work in OTHER_WORK {
            if !distinct.contains(&block_for(max_work)) {
                distinct.push(block_for(max_work));
            }
        }
        let sizes = |(rows, columns): (i64, i64)| {
            Some([u32::try_from(rows).ok()?, u32::try_from(columns).ok()?])
        };
        distinct.into_iter().skip(1).filter_map(sizes).collect()
    }

    /// See [`Kernel::cost`](crate::Kernel::cost).
    pub(super) fn cost(&self, by: Algorithm, values: &[i64], packs: bool) -> Option<f64> {
        let Sizes { m, k, n, .. } = self.sizes(values)?;
        let [m, k, n] = [m, k, n].map(|size| size as f64);
        let (work, lhs, rhs) = (m * k * n, m * k, k * n);
        Some(match by {
            Algorithm::Panels | Algorithm::Parts => work + MOVE * (lhs + rhs),
            // It waits for memory, and nothing is used twice.
            Algorithm::Vector => 4.0 * work,
            Algorithm::Packed if !packs => work + MOVE * rhs,
            Algorithm::Small | Algorithm::Packed => work,
            _ => return None,
        })
    }
}
