//! The transformations of Winograd's convolutions, vectors of tiles at a time.

#![allow(clippy::needless_range_loop)] // register tiles are indexed

use crate::kernels::conv::Conv;
use crate::simd::vector::Vector;
use crate::simd::{Isa, Kernel};
use crate::sums::SLACK;
use crate::tile::affine::ceil;
use std::marker::PhantomData;

/// The elements of a row of the largest tile.
const MOST: usize = 6;
/// The transformations of one axis; elements beyond a tile's are not used.
pub(in crate::kernels::conv) trait Transform: Sync {
    /// Results of a tile.
    const M: usize;
    /// Inputs of a tile.
    const A: usize;

    /// `Bᵀ d`.
    unsafe fn input<V: Vector<Lane = f32>>(d: &[V; MOST]) -> [V; MOST];
    /// `G g`.
    unsafe fn weights<V: Vector<Lane = f32>>(g: &[V; MOST]) -> [V; MOST];
    /// `Aᵀ p`.
    unsafe fn output<V: Vector<Lane = f32>>(p: &[V; MOST]) -> [V; MOST];
}

/// F(2×2, 3×3).
pub(in crate::kernels::conv) struct Two;
impl Transform for Two {
    const M: usize = 2;
    const A: usize = 4;

    #[inline(always)]
    unsafe fn input<V: Vector<Lane = f32>>(d: &[V; MOST]) -> [V; MOST] {
        // SAFETY: the caller's, as in all of these.
        unsafe {
            let (outer, sum) = (d[0].sub(d[2]), d[1].add(d[2]));
            [outer, sum, d[2].sub(d[1]), d[1].sub(d[3]), sum, sum]
        }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector<Lane = f32>>(g: &[V; MOST]) -> [V; MOST] {
        // SAFETY: as above.
        unsafe {
            let (zero, half) = (V::splat(0.0), V::splat(0.5));
            let ends = g[0].add(g[2]);
            let (plus, minus) = (ends.add(g[1]), ends.sub(g[1]));
            let plus = plus.mul_add(half, zero);
            [g[0], plus, minus.mul_add(half, zero), g[2], zero, zero]
        }
    }
    #[inline(always)]
    unsafe fn output<V: Vector<Lane = f32>>(p: &[V; MOST]) -> [V; MOST] {
        // SAFETY: as above.
        unsafe {
            let (sum, difference) = (p[1].add(p[2]), p[1].sub(p[2]));
            let first = p[0].add(sum);
            [first, difference.sub(p[3]), first, first, first, first]
        }
    }
}

/// F(4×4, 3×3).
pub(in crate::kernels::conv) struct Four;
impl Transform for Four {
    const M: usize = 4;
    const A: usize = 6;

    #[inline(always)]
    unsafe fn input<V: Vector<Lane = f32>>(d: &[V; MOST]) -> [V; MOST] {
        // SAFETY: the caller's, as in all of these.
        unsafe {
            let number = |n: f32| V::splat(n);
            let four = |a: V, c: V| a.mul_add(number(4.0), c);
            let minus = |a: V, n: f32, c: V| a.mul_add(number(-n), c);
            let (even, odd) = (minus(d[2], 4.0, d[4]), minus(d[1], 4.0, d[3]));
            let (outer, inner) = (d[4].sub(d[2]), d[3].sub(d[1]));
            [
                four(d[0], minus(d[2], 5.0, d[4])),
                even.add(odd),
                even.sub(odd),
                inner.mul_add(number(2.0), outer),
                minus(inner, 2.0, outer),
                four(d[1], minus(d[3], 5.0, d[5])),
            ]
        }
    }
    #[inline(always)]
    unsafe fn weights<V: Vector<Lane = f32>>(g: &[V; MOST]) -> [V; MOST] {
        // SAFETY: as above.
        unsafe {
            let zero = V::splat(0.0);
            let times = |a: V, n: f32| a.mul_add(V::splat(n), zero);
            let near = g[0].add(g[2]);
            let far = times(g[0], 1.0 / 24.0).add(times(g[2], 1.0 / 6.0));
            let middle = times(g[1], 1.0 / 12.0);
            [
                times(g[0], 0.25),
                times(near.add(g[1]), -1.0 / 6.0),
                times(near.sub(g[1]), -1.0 / 6.0),
                far.add(middle),
                far.sub(middle),
                g[2],
            ]
        }
    }
    #[inline(always)]
    unsafe fn output<V: Vector<Lane = f32>>(p: &[V; MOST]) -> [V; MOST] {
        // SAFETY: as above.
        unsafe {
            let (near, slope) = (p[1].add(p[2]), p[1].sub(p[2]));
            let (far, steep) = (p[3].add(p[4]), p[3].sub(p[4]));
            let first = p[0].add(near).add(far);
            [
                first,
                steep.mul_add(V::splat(2.0), slope),
                far.mul_add(V::splat(4.0), near),
                steep.mul_add(V::splat(8.0), slope).add(p[5]),
                first,
                first,
            ]
        }
    }
}

/// A transformation of both axes: columns, then rows, of which `rows` go in and `M` or `A` come out.
macro_rules! both_axes {
    ($tile:ident, $rows:expr, $out:expr, $one:path) => {{
        let mut half = $tile;
        for j in 0..$rows {
            let mut column = half[0];
            for i in 0..$rows {
                column[i] = $tile[i][j];
            }
            let column = $one(&column);
            for i in 0..$out {
                half[i][j] = column[i];
            }
        }
        for i in 0..$out {
            half[i] = $one(&half[i]);
        }
        half
    }};
}

/// Transforms the weights of one output channel: `[channels, 3, 3]` to a² rows of whole vectors, `pitch`
/// apart.
pub(super) struct Weights {
    pub from: *const f32,
    pub channels: usize,
    pub to: *mut f32,
    pub pitch: usize,
}

pub(super) struct TransformWeights<W>(PhantomData<W>);
impl<W: Transform> Kernel<Weights> for TransformWeights<W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(w: Weights) {
        let lanes = I::F32::LANES;
        for first in (0..w.channels).step_by(lanes) {
            let n = lanes.min(w.channels - first);
            // SAFETY: the caller's; the buffer has room for all lanes.
            unsafe {
                let mut taps = [[0.0f32; 16]; 9];
                for c in 0..n {
                    for (t, tap) in taps.iter_mut().enumerate() {
                        tap[c] = *w.from.add((first + c) * 9 + t);
                    }
                }
                let mut tile = [[I::F32::splat(0.0); MOST]; MOST];
                for i in 0..3 {
                    for j in 0..3 {
                        tile[i][j] = I::F32::load(taps[i * 3 + j].as_ptr());
                    }
                }
                let tile = both_axes!(tile, 3, W::A, W::weights);
                for i in 0..W::A {
                    for j in 0..W::A {
                        tile[i][j].store(w.to.add((i * W::A + j) * w.pitch + first));
                    }
                }
            }
        }
    }
}

/// Some tile rows of one image.
#[derive(Copy, Clone)]
pub(super) struct Part {
    pub image: i64,
    /// The first tile row, and how many.
    pub row: i64,
    pub rows: i64,
    /// The first of its tiles within the chunk.
    pub tile: i64,
}

/// One input channel of a part.
pub(super) struct Inputs<'a> {
    pub conv: &'a Conv,
    /// The whole channel.
    pub x: *const f32,
    pub part: Part,
    /// a · m rows of a phase each, with room for whole vectors.
    pub phases: *mut f32,
    /// The first tile's place; elements of a tile are `pitch` apart.
    pub to: *mut f32,
    pub pitch: usize,
}

/// Elements of a row of a phase, for vectors from any tile on.
pub(super) fn phase_row(tiles: i64) -> i64 {
    tiles + 1 + 2 * SLACK
}

pub(super) struct TransformInputs<W>(PhantomData<W>);
impl<W: Transform> Kernel<Inputs<'_>> for TransformInputs<W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(p: Inputs<'_>) {
        let [_, height, width] = &p.conv.geometry.axes;
        let (m, a, lanes) = (W::M, W::A, I::F32::LANES);
        let tiles = ceil(width.output, m as i64);
        let row = phase_row(tiles) as usize;
        for r in 0..p.part.rows {
            let top = (p.part.row + r) * m as i64 - height.padding;
            // SAFETY: the caller's; vectors of the last tiles write into the slack, or where the next row
            // of tiles is written later.
            unsafe {
                for i in 0..a {
                    let y = top + i as i64;
                    let inside = (0..height.input).contains(&y);
                    let x = p.x.wrapping_offset((y * width.input) as isize);
                    let x = inside.then_some((x, width.input, width.padding));
                    phases_of::<W>(x, p.phases.add(i * m * row), row, tiles as usize + 1);
                }
                for t in (0..tiles as usize).step_by(lanes) {
                    let mut tile = [[I::F32::splat(0.0); MOST]; MOST];
                    for i in 0..a {
                        for j in 0..a {
                            let at = (i * m + j % m) * row + t + j / m;
                            tile[i][j] = I::F32::load(p.phases.add(at));
                        }
                    }
                    let tile = both_axes!(tile, a, a, W::input);
                    let to = p.to.add(r as usize * tiles as usize + t);
                    for i in 0..a {
                        for j in 0..a {
                            tile[i][j].store(to.add((i * a + j) * p.pitch));
                        }
                    }
                }
            }
        }
    }
}

/// Takes a row apart into m phases of `n` elements, `pitch` apart: element t of phase f is element
/// `t · m + f − padding` of the row (pointer, length, padding), or zero.
#[inline(always)]
unsafe fn phases_of<W: Transform>(
    row: Option<(*const f32, i64, i64)>,
    to: *mut f32,
    pitch: usize,
    n: usize,
) {
    let m = W::M as i64;
    let (x, len, padding) = row.unwrap_or((std::ptr::null(), 0, 0));
    // The tiles that lie inside as a whole.
    let low = (-(-padding).div_euclid(m)).clamp(0, n as i64);
    let high = (len + padding).div_euclid(m).clamp(low, n as i64);
    // SAFETY: the caller's; reads are inside the row.
    unsafe {
        for t in (0..low).chain(high..n as i64) {
            for f in 0..m {
                let from = t * m + f - padding;
                let value = match (0..len).contains(&from) {
                    true => *x.offset(from as isize),
                    false => 0.0,
                };
                *to.add(f as usize * pitch + t as usize) = value;
            }
        }
        if low == high {
            return;
        }
        let count = (high - low) as usize;
        let x = x.offset((low * m - padding) as isize);
        let (x, to) = (
            std::slice::from_raw_parts(x, count * W::M),
            to.add(low as usize),
        );
        for f in 0..W::M {
            let to = std::slice::from_raw_parts_mut(to.add(f * pitch), count);
            for t in 0..count {
                to[t] = x[t * W::M + f];
            }
        }
    }
}

/// One output channel of a part.
pub(super) struct Outputs<'a> {
    pub conv: &'a Conv,
    pub part: Part,
    /// The first tile's place; elements of a tile are `pitch` apart.
    pub from: *const f32,
    pub pitch: usize,
    /// The part's first row.
    pub to: *mut f32,
}

pub(super) struct TransformOutputs<W>(PhantomData<W>);
impl<W: Transform> Kernel<Outputs<'_>> for TransformOutputs<W> {
    #[inline(always)]
    unsafe fn run<I: Isa>(p: Outputs<'_>) {
        let [_, height, width] = p.conv.geometry.axes.map(|a| a.output as usize);
        let (m, a, lanes) = (W::M, W::A, I::F32::LANES);
        let tiles = width.div_ceil(m);
        for r in 0..p.part.rows as usize {
            let rows = m.min(height - (p.part.row as usize + r) * m);
            for t in (0..tiles).step_by(lanes) {
                // SAFETY: the caller's; vectors of the last tiles read the slack.
                unsafe {
                    let mut tile = [[I::F32::splat(0.0); MOST]; MOST];
                    let from = p.from.add(r * tiles + t);
                    for i in 0..a {
                        for j in 0..a {
                            tile[i][j] = I::F32::load(from.add((i * a + j) * p.pitch));
                        }
                    }
                    let tile = both_axes!(tile, a, m, W::output);
                    let columns = (lanes * m).min(width - t * m);
                    let mut phases = [[0.0f32; 16]; 4];
                    for i in 0..rows {
                        for (f, phase) in phases[..m].iter_mut().enumerate() {
                            tile[i][f].store(phase.as_mut_ptr());
                        }
                        let mut whole = [0.0f32; 64];
                        for l in 0..lanes {
                            for f in 0..m {
                                whole[l * m + f] = phases[f][l];
                            }
                        }
                        let to = p.to.add((r * m + i) * width + t * m);
                        std::ptr::copy_nonoverlapping(whole.as_ptr(), to, columns);
                    }
                }
            }
        }
    }
}
