//! Fourier transforms of tiles. Real and imaginary parts are separate arrays; vectors run along rows.
//!
//! A tile is a matrix whose columns are transformed, then its rows. It is transposed between the two, so that both are
//! columns. Forward transforms leave frequencies in bit-reversed order, and inverse ones start from it, because a
//! product does not depend on the order.

use kiln_kernel::simd::transpose::{Transpose, TransposeKernel};
use kiln_kernel::simd::vector::Vector;
use kiln_kernel::simd::{Features, Isa, Kernel, Vectorized, vectorized};
use kiln_kernel::view::{View, ViewMut, span};
use kiln_plan::FftTile;
use std::f64::consts::TAU;

/// The number of frequencies that are processed together.
pub(super) const LANES: usize = 16;

/// The twiddle factors of the transforms: cos and sin of the rotation angles.
pub(super) struct Twiddles {
    /// Rows and columns of the matrix.
    matrix: [usize; 2],
    /// For columns of each of these lengths n, the angles −2π j / n for j up to n / 2.
    sides: [[Vec<f32>; 2]; 2],
    /// The twiddle factors between the two directions, where the matrix is one row of a tile.
    between: Option<[Vec<f32>; 2]>,
}

impl Twiddles {
    pub(super) fn new(tile: &FftTile) -> Twiddles {
        let [rows, columns] = tile.matrix.map(|n| n as usize);
        let side = |n: usize| twiddles((0..n / 2).map(|j| j as f64 / n as f64));
        let bits = rows.trailing_zeros();
        let reversed = |r: usize| r.reverse_bits() >> (usize::BITS - bits);
        let between = (0..rows).flat_map(|r| (0..columns).map(move |c| (reversed(r) * c) as f64));
        let between = between.map(|at| at / (rows * columns) as f64);
        Twiddles {
            matrix: [rows, columns],
            sides: [side(rows), side(columns)],
            between: (tile.inputs[0] == 1).then(|| twiddles(between)),
        }
    }

    /// Returns the number of elements of a tile.
    pub fn len(&self) -> usize {
        self.matrix[0] * self.matrix[1]
    }
}

/// Returns cos and sin of the negated `parts` of a full turn.
fn twiddles(parts: impl Iterator<Item = f64>) -> [Vec<f32>; 2] {
    let angles: Vec<f64> = parts.map(|part| -TAU * part).collect();
    [
        angles.iter().map(|a| a.cos() as f32).collect(),
        angles.iter().map(|a| a.sin() as f32).collect(),
    ]
}

/// Real and imaginary parts.
#[derive(Copy, Clone)]
struct Complex {
    re: *mut f32,
    im: *mut f32,
}

impl Complex {
    /// Returns the parts from element `at` on.
    #[inline(always)]
    fn at(self, at: usize) -> Complex {
        Complex {
            re: self.re.wrapping_add(at),
            im: self.im.wrapping_add(at),
        }
    }

    /// # Safety
    /// A vector of numbers is there, here and below.
    #[inline(always)]
    unsafe fn load<V: Vector>(self) -> [V; 2] {
        // SAFETY: the caller's.
        unsafe { [V::load(self.re), V::load(self.im)] }
    }

    #[inline(always)]
    unsafe fn store<V: Vector>(self, [re, im]: [V; 2]) {
        // SAFETY: the caller's.
        unsafe {
            re.store(self.re);
            im.store(self.im);
        }
    }
}

/// Returns `a · w`, or `a · w̄` for the inverse transform.
#[inline(always)]
unsafe fn rotated<V: Vector>([re, im]: [V; 2], [cos, sin]: [V; 2], back: bool) -> [V; 2] {
    // SAFETY: the caller's level.
    unsafe {
        let zero = V::splat(0.0);
        let (plus, minus) = (sin, zero.sub(sin));
        let (up, down) = if back { (minus, plus) } else { (plus, minus) };
        [
            re.mul_add(cos, im.mul_add(down, zero)),
            re.mul_add(up, im.mul_add(cos, zero)),
        ]
    }
}

/// Transforms the columns of a matrix of `n` rows of `width` elements, which are whole vectors.
///
/// # Safety
/// The matrix exists.
#[inline(always)]
unsafe fn columns<V: Vector>(
    x: Complex,
    [n, width]: [usize; 2],
    [cos, sin]: &[Vec<f32>; 2],
    back: bool,
) {
    let stages = n.trailing_zeros();
    for stage in 0..stages {
        let half = 1 << if back { stage } else { stages - 1 - stage };
        for j in 0..half {
            let at = j * (n / 2 / half);
            // SAFETY: the level is the caller's; rows and vectors lie in the matrix.
            unsafe {
                let twiddle = [V::splat(cos[at]), V::splat(sin[at])];
                for block in (0..n).step_by(2 * half) {
                    let (a, b) = ((block + j) * width, (block + j + half) * width);
                    for c in (0..width).step_by(V::LANES) {
                        let (a, b) = (x.at(a + c), x.at(b + c));
                        let ([re, im], mut other) = (a.load::<V>(), b.load::<V>());
                        if back {
                            other = rotated(other, twiddle, true);
                        }
                        let difference = [re.sub(other[0]), im.sub(other[1])];
                        a.store([re.add(other[0]), im.add(other[1])]);
                        b.store(match back {
                            true => difference,
                            false => rotated(difference, twiddle, false),
                        });
                    }
                }
            }
        }
    }
}

/// Multiplies the elements of the matrix by the twiddle factors between the two directions.
#[inline(always)]
unsafe fn twiddle<V: Vector>(x: Complex, between: &Option<[Vec<f32>; 2]>, back: bool) {
    let Some([cos, sin]) = between else { return };
    for at in (0..cos.len()).step_by(V::LANES) {
        // SAFETY: the level is the caller's; there are as many angles as numbers, whole vectors.
        unsafe {
            let twiddle = [V::load(&cos[at]), V::load(&sin[at])];
            let number = x.at(at);
            number.store(rotated(number.load(), twiddle, back));
        }
    }
}

/// Writes to `to` the transpose of `from`.
///
/// # Safety
/// Both have these rows and columns, and the level is the machine's.
#[inline(always)]
unsafe fn transpose<I: Isa>(from: Complex, to: Complex, [rows, columns]: [usize; 2]) {
    for (from, to) in [(from.re, to.re), (from.im, to.im)] {
        let matrix = Transpose {
            from: from.cast_const(),
            pitch: columns as isize,
            rows,
            columns,
            to,
            to_pitch: rows as isize,
        };
        // SAFETY: the caller's.
        unsafe { TransposeKernel::run::<I>(matrix) }
    }
}

/// A tile and its transform.
#[derive(Copy, Clone)]
struct Tile<'a> {
    twiddles: &'a Twiddles,
    /// The elements in row-major order. Both directions overwrite them.
    tile: Complex,
    /// Workspace of the size of a tile.
    transposed: Complex,
    /// The spectrum: groups of [`LANES`] real parts, then as many imaginary ones.
    spectrum: *mut f32,
    /// The distance between groups, in elements.
    step: usize,
}

impl<'a> Tile<'a> {
    /// Returns the tile at the begin of memory that has room for its transpose too.
    fn new(twiddles: &'a Twiddles, all: ViewMut<f32>, spectrum: *mut f32, step: i64) -> Tile<'a> {
        let len = twiddles.len();
        let start = all.address_mut([0, 4 * len as i64]);
        let parts = |i: usize| Complex {
            re: start.wrapping_add(i * len),
            im: start.wrapping_add((i + 1) * len),
        };
        Tile {
            twiddles,
            tile: parts(0),
            transposed: parts(2),
            spectrum,
            step: step as usize,
        }
    }
}

/// Returns the indices of a spectrum whose groups are `step` elements apart.
fn groups(twiddles: &Twiddles, step: i64) -> [i64; 2] {
    let groups = twiddles.len().div_ceil(LANES) as i64;
    span([(groups, step), (2 * LANES as i64, 1)])
}

/// Transforms the tile at the begin of memory that has room for its transpose too. Groups of the spectrum are so many
/// elements apart.
pub(super) fn forth(
    level: Features,
    twiddles: &Twiddles,
    tile: ViewMut<f32>,
    (spectrum, step): (ViewMut<f32>, i64),
) {
    let spectrum = spectrum.address_mut(groups(twiddles, step));
    vectorized(level, Forth(Tile::new(twiddles, tile, spectrum, step)));
}

/// Transforms a spectrum to the tile, as [`forth`] does the other way.
pub(super) fn back(
    level: Features,
    twiddles: &Twiddles,
    tile: ViewMut<f32>,
    (spectrum, step): (View<f32>, i64),
) {
    let spectrum = spectrum.address(groups(twiddles, step)).cast_mut();
    vectorized(level, Back(Tile::new(twiddles, tile, spectrum, step)));
}

/// The forward transform, from tiles to spectra.
struct Forth<'a>(Tile<'a>);
impl Vectorized for Forth<'_> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let t = self.0;
        let [rows, width] = t.twiddles.matrix;
        // SAFETY: there is room for the tile, its transpose and the spectrum.
        unsafe {
            columns::<I::F32>(t.tile, [rows, width], &t.twiddles.sides[0], false);
            twiddle::<I::F32>(t.tile, &t.twiddles.between, false);
            transpose::<I>(t.tile, t.transposed, [rows, width]);
            columns::<I::F32>(t.transposed, [width, rows], &t.twiddles.sides[1], false);
            for (i, at) in (0..t.twiddles.len()).step_by(LANES).enumerate() {
                let to = t.spectrum.add(i * t.step);
                let from = t.transposed.at(at);
                std::ptr::copy_nonoverlapping(from.re, to, LANES);
                std::ptr::copy_nonoverlapping(from.im, to.add(LANES), LANES);
            }
        }
    }
}

/// The inverse transform, from spectra to tiles, times the number of elements of a tile.
struct Back<'a>(Tile<'a>);
impl Vectorized for Back<'_> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        let t = self.0;
        let [rows, width] = t.twiddles.matrix;
        // SAFETY: as above; the spectrum is only read.
        unsafe {
            for (i, at) in (0..t.twiddles.len()).step_by(LANES).enumerate() {
                let from = t.spectrum.add(i * t.step);
                let to = t.transposed.at(at);
                std::ptr::copy_nonoverlapping(from, to.re, LANES);
                std::ptr::copy_nonoverlapping(from.add(LANES), to.im, LANES);
            }
            columns::<I::F32>(t.transposed, [width, rows], &t.twiddles.sides[1], true);
            transpose::<I>(t.transposed, t.tile, [width, rows]);
            twiddle::<I::F32>(t.tile, &t.twiddles.between, true);
            columns::<I::F32>(t.tile, [rows, width], &t.twiddles.sides[0], true);
        }
    }
}

/// Sums over channels of products of inputs and complex conjugates of weights, at [`LANES`] frequencies a block.
#[derive(Copy, Clone)]
pub(super) struct Products<'a> {
    /// `[blocks, channels, tiles]`.
    pub inputs: View<'a, f32>,
    /// `[blocks, outputs, channels]`.
    pub weights: View<'a, f32>,
    /// `[blocks, outputs, tiles]`.
    pub results: ViewMut<'a, f32>,
    pub blocks: usize,
    pub channels: usize,
    pub outputs: usize,
    pub tiles: usize,
}

/// Elements of a block: real and imaginary parts.
pub(super) const BLOCK: i64 = 2 * LANES as i64;
/// The f32 elements of a block.
const NUMBERS: usize = BLOCK as usize;

impl Products<'_> {
    /// Computes all sums.
    pub fn compute(self, level: Features) {
        let of = |a: usize, b: usize| [0, (self.blocks * a * b * NUMBERS) as i64];
        self.inputs.address(of(self.channels, self.tiles));
        self.weights.address(of(self.outputs, self.channels));
        self.results.address(of(self.outputs, self.tiles));
        vectorized(level, self);
    }

    /// Computes the sums of O outputs and T tiles.
    ///
    /// # Safety
    /// The block, outputs and tiles exist.
    #[inline(always)]
    unsafe fn sums<V: Vector, const O: usize, const T: usize>(
        &self,
        block: usize,
        output: usize,
        tile: usize,
    ) {
        let inputs = (self.inputs.address([0; 2]))
            .wrapping_add((block * self.channels * self.tiles + tile) * NUMBERS);
        let weights = (block * self.outputs + output) * self.channels * NUMBERS;
        let weights = self.weights.address([0; 2]).wrapping_add(weights);
        let results = ((block * self.outputs + output) * self.tiles + tile) * NUMBERS;
        let results = self.results.address_mut([0; 2]).wrapping_add(results);
        for lane in (0..LANES).step_by(V::LANES) {
            // SAFETY: the caller's.
            unsafe {
                let zero = V::splat(0.0);
                let mut sums = [[[zero; 2]; T]; O];
                for c in 0..self.channels {
                    let at = |t: usize| inputs.wrapping_add((c * self.tiles + t) * NUMBERS + lane);
                    let x: [[V; 2]; T] = std::array::from_fn(|t| {
                        [V::load(at(t)), V::load(at(t).wrapping_add(LANES))]
                    });
                    for (o, sums) in sums.iter_mut().enumerate() {
                        let w = weights.wrapping_add((o * self.channels + c) * NUMBERS + lane);
                        let [re, im] = [V::load(w), V::load(w.wrapping_add(LANES))];
                        let minus = zero.sub(im);
                        for (sum, x) in sums.iter_mut().zip(&x) {
                            sum[0] = x[1].mul_add(im, x[0].mul_add(re, sum[0]));
                            sum[1] = x[1].mul_add(re, x[0].mul_add(minus, sum[1]));
                        }
                    }
                }
                for (o, sums) in sums.iter().enumerate() {
                    for (t, [re, im]) in sums.iter().enumerate() {
                        let to = results.wrapping_add((o * self.tiles + t) * NUMBERS + lane);
                        re.store(to);
                        im.store(to.wrapping_add(LANES));
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn rows<V: Vector, const O: usize>(&self, block: usize, output: usize) {
        let pairs = self.tiles / 2 * 2;
        // SAFETY: the caller's.
        unsafe {
            for tile in (0..pairs).step_by(2) {
                self.sums::<V, O, 2>(block, output, tile);
            }
            if pairs < self.tiles {
                self.sums::<V, O, 1>(block, output, pairs);
            }
        }
    }
}

impl Vectorized for Products<'_> {
    #[inline(always)]
    fn run<I: Isa>(self) {
        const ROWS: usize = 4;
        let most = self.outputs / ROWS * ROWS;
        for block in 0..self.blocks {
            // SAFETY: `compute` checked that all elements exist.
            unsafe {
                for output in (0..most).step_by(ROWS) {
                    self.rows::<I::F32, ROWS>(block, output);
                }
                for output in most..self.outputs {
                    self.rows::<I::F32, 1>(block, output);
                }
            }
        }
    }
}
