//! `wgmma`: products of a warpgroup, executed only when one of its warps waits for them.
//!
//! A product is one operation of all four warps, so none is executed before all have issued it. It reads shared
//! memory then, and changes a warp's registers when that warp waits.

use super::AccessKind;
use super::core::Core;
use super::elements::{integer, swizzle, tf32, whole_warp, widen};
use super::warp::Warp;
use crate::code::WarpgroupMma;
use crate::fault::{FaultKind, Outcome, Raised};
use crate::lanes::{LANES, Registers, Slot};
use crate::ptx::Type;

/// A pending product, by the index of its instruction.
struct Product {
    group: u32,
    pc: u32,
    a: u64,
    b: u64,
    accumulate: bool,
    /// The sums of each register, once it is executed.
    sums: Option<Vec<[f32; LANES]>>,
}

/// The pending products of a warp.
#[derive(Default)]
pub(crate) struct Products {
    pending: Vec<Product>,
    group: u32,
    /// The number of products so far, and up to each commit.
    issued: u32,
    committed: Vec<u32>,
    /// The registers of products as they were at the last fence.
    fenced: Vec<(Slot, [u32; LANES])>,
}

impl Products {
    pub fn are_unfinished(&self) -> bool {
        !self.pending.is_empty()
    }

    pub fn commit(&mut self) {
        self.group += 1;
        self.committed.push(self.issued);
    }

    /// The number of products in the groups before `end`, which are committed.
    pub fn issued(&self, end: u32) -> u32 {
        end.checked_sub(1)
            .map_or(0, |last| self.committed[last as usize])
    }

    /// The number of committed groups.
    pub fn committed(&self) -> u32 {
        self.group
    }

    /// Records the registers that products read and write from now on.
    pub fn fence(&mut self, registers: &Registers, slots: &[Slot]) {
        self.fenced.clear();
        let value_of = |slot: &Slot| (*slot, *registers.word(*slot));
        self.fenced.extend(slots.iter().map(value_of));
    }

    fn fenced_values(&mut self, slot: Slot) -> Option<&mut [u32; LANES]> {
        let index = self.fenced.binary_search_by_key(&slot, |(slot, _)| *slot);
        index.ok().map(|index| &mut self.fenced[index].1)
    }
}

/// The byte offset of element (`row` of M or N, `k`), of `size` bytes, of an operand with a matrix descriptor.
fn element(descriptor: u64, row: usize, k: usize, transposed: bool, size: usize) -> usize {
    let field = |shift: u32| ((descriptor >> shift & 0x3fff) << 4) as usize;
    let (start, leading, stride) = (field(0), field(16), field(32));
    let (mode, width) = match descriptor >> 62 {
        1 => (3, 128),
        2 => (2, 64),
        3 => (1, 32),
        _ => (0, 16),
    };
    // `along` runs in rows of `width` bytes, 8 of which are a core matrix.
    let (contiguous, strided) = if transposed {
        (size * row, k)
    } else {
        (size * k, row)
    };
    let inside = strided % 8 * width + contiguous % width;
    let offset = match (mode, transposed) {
        (0, true) => start + contiguous / width * stride + strided / 8 * leading + inside,
        (_, true) => start + contiguous / width * leading + strided / 8 * stride + inside,
        (0, false) => start + strided / 8 * stride + contiguous / width * leading + inside,
        (_, false) => start + strided / 8 * stride + strided % 8 * width + contiguous,
    };
    swizzle(offset, mode)
}

impl<'a> Core<'a> {
    /// Begins a product.
    pub fn begin_product(
        &mut self,
        warp: &mut Warp,
        m: &WarpgroupMma,
        pc: u32,
        mask: u32,
    ) -> Outcome<()> {
        whole_warp(mask, "wgmma")?;
        for slot in m.d.iter().chain(&m.a) {
            if warp.products.fenced_values(*slot).copied() != Some(*warp.registers.word(*slot)) {
                let why = "a wgmma of registers that were written after the last wgmma.fence";
                return Err(Raised::new(FaultKind::MissingFence, why));
            }
        }
        let registers = &warp.registers;
        let product = Product {
            group: warp.products.group,
            pc,
            a: registers.wide(m.a_descriptor)[0],
            b: registers.wide(m.b_descriptor)[0],
            accumulate: registers.predicates[m.accumulate as usize] & 1 != 0,
            sums: None,
        };
        warp.products.pending.push(product);
        warp.products.issued += 1;
        Ok(())
    }

    /// Executes the products of a warp in the groups before `end`.
    pub fn execute_products(&mut self, warp: &mut Warp, end: u32) -> Outcome<()> {
        let mut pending = std::mem::take(&mut warp.products.pending);
        for product in pending.iter_mut().filter(|p| p.group < end) {
            if product.sums.is_none() {
                product.sums = Some(self.product(warp, product)?);
            }
        }
        warp.products.pending = pending;
        Ok(())
    }

    /// Adds the sums of the products of a warp in the groups before `end` to its registers.
    pub fn store_products(&mut self, warp: &mut Warp, end: u32) {
        let mut pending = std::mem::take(&mut warp.products.pending);
        pending.retain(|product| {
            let Some(accumulators) = product.sums.as_ref().filter(|_| product.group < end) else {
                return true;
            };
            let m = self.warpgroup_mma(product);
            let is_integer = m.types[0].size() == 1;
            for (slot, accumulators) in m.d.iter().zip(accumulators) {
                let words = warp.registers.word_mut(*slot);
                for (word, sum) in words.iter_mut().zip(accumulators) {
                    let old = if product.accumulate { *word } else { 0 };
                    *word = match is_integer {
                        true => old.wrapping_add(*sum as i32 as u32),
                        false => (f32::from_bits(old) + sum).to_bits(),
                    };
                }
                let words = *words;
                if let Some(fenced) = warp.products.fenced_values(*slot) {
                    *fenced = words;
                }
            }
            false
        });
        warp.products.pending = pending;
    }

    fn warpgroup_mma(&self, product: &Product) -> &'a WarpgroupMma {
        match &self.kernel.code[product.pc as usize].op {
            crate::code::Op::WarpgroupMma(m) => m,
            _ => unreachable!("products come from wgmma"),
        }
    }

    /// Returns the sums of a warp's registers.
    fn product(&mut self, warp: &Warp, product: &Product) -> Outcome<Vec<[f32; LANES]>> {
        let m = self.warpgroup_mma(product);
        let races = self.races.as_mut();
        let agent = races.map_or(warp.id, |races| races.product_begins(warp.id));
        // Each warp of the group has 16 of the 64 rows.
        let first_row = warp.id % 4 * 16;
        let ([a_type, b_type], size) = (m.types, m.types[0].size());
        let terms = 32 / size;
        let mut a = [[0f32; 32]; 16];
        if m.a.is_empty() {
            for (i, row) in a.iter_mut().enumerate() {
                for (k, x) in row[..terms].iter_mut().enumerate() {
                    let offset = element(product.a, first_row + i, k, m.transpose_a, size);
                    *x = self.element_at(agent, offset, a_type)?;
                }
            }
        } else {
            for (i, &slot) in m.a.iter().enumerate() {
                for (lane, &word) in warp.registers.word(slot).iter().enumerate() {
                    let neighbours = 4 / size;
                    let row = lane / 4 + (i & 1) * 8;
                    let k = lane % 4 * neighbours + (i >> 1) * (terms / 2);
                    for x in 0..neighbours {
                        a[row][k + x] = value(a_type, word >> (8 * size * x));
                    }
                }
            }
        }
        let mut b = vec![[0f32; 32]; m.n as usize];
        for (j, column) in b.iter_mut().enumerate() {
            for (k, y) in column[..terms].iter_mut().enumerate() {
                let offset = element(product.b, j, k, m.transpose_b, size);
                *y = self.element_at(agent, offset, b_type)?;
            }
        }
        let sign = if m.negate_a != m.negate_b { -1.0 } else { 1.0 };
        let register_sums = |i: usize| {
            std::array::from_fn(|lane| {
                let row = lane / 4 + (i >> 1 & 1) * 8;
                let column = i / 4 * 8 + lane % 4 * 2 + (i & 1);
                let pairs = a[row].iter().zip(&b[column]).take(terms);
                pairs.fold(0f32, |sum, (x, y)| sum + x * y) * sign
            })
        };
        Ok((0..m.d.len()).map(register_sums).collect())
    }

    fn element_at(&mut self, agent: usize, offset: usize, ty: Type) -> Outcome<f32> {
        let description = "wgmma operand, by its descriptor,";
        let pointer = self.shared_access(
            agent,
            offset as u64,
            ty.size(),
            description,
            AccessKind::Read,
        )?;
        // SAFETY: the bounds were checked.
        unsafe {
            let bits = match ty.size() {
                1 => pointer.read().into(),
                2 => pointer.cast::<u16>().read_unaligned().into(),
                _ => pointer.cast::<u32>().read_unaligned(),
            };
            Ok(value(ty, bits))
        }
    }
}

/// The value of the element of an operand in the lowest bits of a word.
fn value(ty: Type, bits: u32) -> f32 {
    match ty {
        Type::Tf32 => tf32(bits),
        Type::S8 | Type::U8 => integer(ty, bits as u8),
        half => widen(half, bits),
    }
}
