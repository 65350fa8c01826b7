//! `wgmma`: products of a warpgroup, carried out only when they are waited for.

use super::core::Core;
use super::matrix::{swizzle, whole_warp, widen};
use super::races::Kind;
use super::warp::Warp;
use crate::code::WarpgroupMma;
use crate::fault::{FaultKind, Outcome, Raised};

/// A pending product, by the index of its instruction.
struct Product {
    group: u32,
    pc: u32,
    a: u64,
    b: u64,
    accumulate: bool,
}

/// The pending products of a warp.
#[derive(Default)]
pub(crate) struct Products {
    pending: Vec<Product>,
    group: u32,
}

impl Products {
    pub fn are_unfinished(&self) -> bool {
        !self.pending.is_empty()
    }

    pub fn commit(&mut self) {
        self.group += 1;
    }
}

/// The byte offset of element (`row` of M or N, `k`) of a 16-bit operand with a matrix descriptor.
fn element(descriptor: u64, row: usize, k: usize, transposed: bool) -> usize {
    let field = |shift: u32| ((descriptor >> shift & 0x3fff) << 4) as usize;
    let (start, leading, stride) = (field(0), field(16), field(32));
    let (mode, width) = match descriptor >> 62 {
        1 => (3, 128),
        2 => (2, 64),
        3 => (1, 32),
        _ => (0, 16),
    };
    // `along` runs in rows of `width` bytes, 8 of which are a core matrix.
    let (along, across) = if transposed {
        (2 * row, k)
    } else {
        (2 * k, row)
    };
    let inside = across % 8 * width + along % width;
    let at = match (mode, transposed) {
        (0, true) => start + along / width * stride + across / 8 * leading + inside,
        (_, true) => start + along / width * leading + across / 8 * stride + inside,
        (0, false) => start + across / 8 * stride + along / width * leading + inside,
        (_, false) => start + across / 8 * stride + across % 8 * width + along,
    };
    swizzle(at, mode)
}

impl Core<'_> {
    /// Begins a product.
    pub fn begin_product(
        &mut self,
        warp: &mut Warp,
        m: &WarpgroupMma,
        pc: u32,
        mask: u32,
    ) -> Outcome<()> {
        whole_warp(mask, "wgmma")?;
        let registers = &warp.registers;
        let product = Product {
            group: warp.products.group,
            pc,
            a: registers.wide(m.a_descriptor)[0],
            b: registers.wide(m.b_descriptor)[0],
            accumulate: registers.predicates[m.accumulate as usize] & 1 != 0,
        };
        warp.products.pending.push(product);
        Ok(())
    }

    /// Carries out all but the `keep` newest committed groups.
    pub fn end_products(&mut self, warp: &mut Warp, keep: u32) -> Outcome<()> {
        for product in std::mem::take(&mut warp.products.pending) {
            if product.group + keep < warp.products.group {
                self.product(warp, &product)?;
            } else {
                warp.products.pending.push(product);
            }
        }
        Ok(())
    }

    fn product(&mut self, warp: &mut Warp, product: &Product) -> Outcome<()> {
        let kernel = self.kernel;
        let crate::code::Op::WarpgroupMma(m) = &kernel.code[product.pc as usize].op else {
            unreachable!("products come from wgmma")
        };
        // Each warp of the group has 16 of the 64 rows.
        let first = warp.id % 4 * 16;
        let mut a = [[0f32; 16]; 16];
        if m.a.is_empty() {
            for (i, row) in a.iter_mut().enumerate() {
                for (k, x) in row.iter_mut().enumerate() {
                    let at = element(product.a, first + i, k, m.transpose_a);
                    *x = widen(m.ty, self.element_at(warp.id, at)?);
                }
            }
        } else {
            for (i, &slot) in m.a.iter().enumerate() {
                for (lane, &word) in warp.registers.word(slot).iter().enumerate() {
                    let (row, k) = (lane / 4 + (i & 1) * 8, lane % 4 * 2 + (i >> 1) * 8);
                    a[row][k] = widen(m.ty, word);
                    a[row][k + 1] = widen(m.ty, word >> 16);
                }
            }
        }
        let mut b = vec![[0f32; 16]; m.n as usize];
        for (j, column) in b.iter_mut().enumerate() {
            for (k, y) in column.iter_mut().enumerate() {
                let at = element(product.b, j, k, m.transpose_b);
                *y = widen(m.ty, self.element_at(warp.id, at)?);
            }
        }
        let sign = if m.negate_a != m.negate_b { -1.0 } else { 1.0 };
        for (i, &slot) in m.d.iter().enumerate() {
            for (lane, word) in warp.registers.word_mut(slot).iter_mut().enumerate() {
                let row = lane / 4 + (i >> 1 & 1) * 8;
                let column = i / 4 * 8 + lane % 4 * 2 + (i & 1);
                let pairs = a[row].iter().zip(&b[column]);
                let sum = pairs.fold(0f32, |sum, (x, y)| sum + x * y) * sign;
                let old = if product.accumulate {
                    f32::from_bits(*word)
                } else {
                    0.0
                };
                *word = (old + sum).to_bits();
            }
        }
        Ok(())
    }

    fn element_at(&mut self, warp: usize, at: usize) -> Outcome<u32> {
        let start = self
            .shared_bounds(at as u64, 2, "wgmma operand")
            .map_err(|e| {
                Raised::new(
                    FaultKind::OutOfBounds,
                    format!("{}; see the descriptor", e.message),
                )
            })?;
        if let Some(races) = &mut self.races {
            races.access(warp, start, 2, Kind::Read)?;
        }
        // SAFETY: the bounds were checked.
        Ok(unsafe { (self.shared_pointer(start) as *const u16).read_unaligned() } as u32)
    }
}
