//! Contractions: loops around products of matrices, which one function computes.

use super::dialect::memory;
use super::kernel::Emitter;
use super::text::sum;
use kiln_base::DType;

/// The number of elements of a block of C, which stays in the second-level cache.
const BLOCK: i64 = 1 << 15;
/// The number of rows of B that are accumulated into a block of C at a time.
const DEEP: i64 = 128;

/// A loop of a contraction.
#[derive(Clone)]
pub(super) struct Loop {
    pub index: String,
    pub extent: i64,
    /// Its trips as text: the extent, or the length of a block.
    pub trips: String,
    /// Its strides in A, B and C.
    pub strides: [i64; 3],
}

impl Loop {
    pub fn new(index: &str, extent: i64, strides: [i64; 3]) -> Loop {
        Loop {
            index: index.into(),
            extent,
            trips: extent.to_string(),
            strides,
        }
    }

    /// The number of iterations of a block of which each covers `line` elements of C: all, or an even number, since
    /// products compute two rows at a time.
    pub fn block(&self, line: i64) -> i64 {
        match (BLOCK / line.max(1)).max(2) {
            rows if rows < self.extent => rows / 2 * 2,
            _ => self.extent.max(1),
        }
    }

    /// Opens a loop over blocks, which begin at `i` and have `rows` iterations, and becomes the loop over one block.
    /// Returns the loop over blocks.
    pub fn open_blocks(&mut self, k: &mut Emitter<'_>, block: i64) -> Loop {
        k.body.blocks("i", self.extent, block, "rows");
        self.trips = "rows".into();
        Loop::new("i", self.extent, self.strides)
    }
}

/// Adjacent loops as one where they are contiguous in A, B and C, without loops of one iteration.
pub(super) fn merged(loops: impl IntoIterator<Item = Loop>) -> Vec<Loop> {
    let mut merged: Vec<Loop> = Vec::new();
    for inner in loops.into_iter().filter(|l| l.extent != 1) {
        match merged.last_mut() {
            Some(outer) if outer.strides == inner.strides.map(|s| s * inner.extent) => {
                *outer = Loop::new(&inner.index, outer.extent * inner.extent, inner.strides);
            }
            _ => merged.push(inner),
        }
    }
    merged
}

/// The number of the element of A, B or C (0, 1 or 2) that loops are at.
pub(super) fn element<'a>(loops: impl IntoIterator<Item = &'a Loop>, operand: usize) -> String {
    let loops = loops.into_iter();
    sum(0, loops.map(|l| (l.strides[operand], &l.index[..])))
}

/// Loops around products of `m` rows, `n` columns and `k` terms that are added to C. Columns are contiguous in B and C.
pub(super) struct Products {
    /// The dtypes of A, B and C.
    pub dtypes: [DType; 3],
    /// The loops around all terms of a product.
    pub outer: Vec<Loop>,
    /// The loops around a few terms.
    pub inner: Vec<Loop>,
    pub m: Loop,
    pub n: Loop,
    pub k: Loop,
    /// C that skips iterations of each inner loop, and computes the rows from `low` to `high` that are not skipped, if
    /// some are.
    pub skips: Vec<String>,
    /// The element of C at which loops begin, which may be before the first.
    pub start: i64,
}

impl Products {
    /// The outermost loop of the rows.
    pub fn rows(&mut self) -> &mut Loop {
        self.inner.first_mut().unwrap_or(&mut self.m)
    }

    /// Emits the products of these arrays.
    pub fn emit(&self, emitter: &mut Emitter<'_>, arrays: [&str; 3]) {
        let Products { m, n, k, .. } = self;
        let body = &mut emitter.body;
        for l in &self.outer {
            body.loop_to(&l.index, &l.trips);
        }
        body.blocks("d", k.extent, DEEP, "deep");
        let (mut trips, mut from) = (m.trips.clone(), Loop::new("0", m.extent, m.strides));
        if let Some(range) = self.skips.last() {
            body.block(range);
            (trips, from.index) = ("high - low".into(), "low".into());
        }
        for (i, l) in self.inner.iter().enumerate() {
            body.loop_to(&l.index, &l.trips);
            self.skips
                .get(i)
                .into_iter()
                .for_each(|skip| body.block(skip));
        }
        let block = Loop::new("d", k.extent, k.strides);
        let loops = || self.outer.iter().chain([&block, &from]).chain(&self.inner);
        let blocks = 1 + self.outer.len() + self.inner.len();
        let dtype = self.dtypes[2];
        if dtype.is_float() {
            let name = dtype.name();
            let [a, b] = [0, 1].map(|i| format!("{} + {}", arrays[i], element(loops(), i)));
            let c = sum(self.start, loops().map(|l| (l.strides[2], &l.index[..])));
            let c = format!("{} + ({c})", arrays[2]);
            body.line(format!(
                "kiln_product_{name}({}, {}, deep, {a}, {}, {}, {b}, {}, {c}, {});",
                trips, n.trips, m.strides[0], k.strides[0], k.strides[1], m.strides[2]
            ));
            return body.close_all(blocks);
        }
        body.loop_to("r", &m.trips);
        body.loop_to("q", "deep");
        let [row, term, column] =
            [("r", m), ("q", k), ("j", n)].map(|(index, l)| Loop::new(index, l.extent, l.strides));
        let [a, b, c] = [0, 1, 2].map(|i| {
            let at = element(loops().chain([&row, &term, &column]), i);
            format!("{}[{at}]", arrays[i])
        });
        // Integers wrap around.
        let (ty, name) = (memory(dtype), dtype.compute().name());
        body.line(format!("const {ty} f = {a};"));
        body.loop_to("j", &n.trips);
        body.line(format!(
            "{c} = kiln_add_{name}({c}, kiln_mul_{name}(f, {b}));"
        ));
        body.close_all(blocks + 3);
    }
}
