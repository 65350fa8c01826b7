//! `ldmatrix`, `stmatrix` and `mma.sync`.

use super::core::Core;
use super::elements::{integer, tf32, whole_warp, widen};
use super::warp::Warp;
use super::{AccessKind, addresses};
use crate::code::{MatrixAccess, Mma};
use crate::fault::{Outcome, Raised};
use crate::lanes::half::{f16_to_f32, f32_to_f16};
use crate::lanes::{LANES, Registers};
use crate::ptx::Type;

impl Core<'_> {
    /// The checked rows of the 8×8 tiles.
    fn rows(
        &mut self,
        warp: &Warp,
        access: &MatrixAccess,
        kind: AccessKind,
    ) -> Outcome<Vec<*mut u16>> {
        let addresses = addresses(&warp.registers, access.address);
        if let Some(traffic) = &mut self.traffic {
            let lanes = 8 * access.registers.len();
            traffic.shared(&addresses, u32::MAX >> (LANES - lanes), 16);
        }
        let mut row = |l: usize| {
            let address = Self::to_shared(addresses[l]);
            Self::aligned(address, 16, "a row of a matrix")?;
            let row = self.shared_access(warp.id, address, 16, "matrix access", kind)?;
            Ok(row.cast())
        };
        let rows = 0..8 * access.registers.len();
        rows.map(|l| row(l).map_err(|e: Raised| e.of_lane(l)))
            .collect()
    }

    /// Row and column, in a tile, of half `h` of the register of `lane`.
    fn element_position(lane: usize, h: usize, transposed: bool) -> (usize, usize) {
        let (row, column) = (lane / 4, lane % 4 * 2 + h);
        if transposed {
            (column, row)
        } else {
            (row, column)
        }
    }

    pub fn load_matrix(
        &mut self,
        warp: &mut Warp,
        access: &MatrixAccess,
        mask: u32,
    ) -> Outcome<()> {
        whole_warp(mask, "ldmatrix")?;
        let rows = self.rows(warp, access, AccessKind::Read)?;
        for (tile, &register) in access.registers.iter().enumerate() {
            let rows = &rows[8 * tile..];
            let out: [u32; LANES] = std::array::from_fn(|lane| {
                let half = |h| {
                    let (row, column) = Self::element_position(lane, h, access.transposed);
                    // SAFETY: inside the row that was checked.
                    unsafe { rows[row].add(column).read() as u32 }
                };
                half(0) | half(1) << 16
            });
            *warp.registers.word_mut(register) = out;
        }
        Ok(())
    }

    pub fn store_matrix(
        &mut self,
        warp: &mut Warp,
        access: &MatrixAccess,
        mask: u32,
    ) -> Outcome<()> {
        whole_warp(mask, "stmatrix")?;
        let rows = self.rows(warp, access, AccessKind::Write)?;
        for (tile, &register) in access.registers.iter().enumerate() {
            for (lane, word) in warp.registers.word(register).iter().enumerate() {
                for h in 0..2 {
                    let (row, column) = Self::element_position(lane, h, access.transposed);
                    // SAFETY: inside the row that was checked.
                    unsafe {
                        rows[8 * tile + row]
                            .add(column)
                            .write((word >> (16 * h)) as u16)
                    };
                }
            }
        }
        Ok(())
    }
}

/// `d = a·b + c` for a 16×k times k×8 product, compiled for each instruction set.
pub(super) fn mma(registers: &mut Registers, m: &Mma) {
    #[cfg(target_arch = "x86_64")]
    {
        use crate::lanes::{Level, level};
        #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
        fn avx512(registers: &mut Registers, m: &Mma) {
            product(registers, m);
        }
        #[target_feature(enable = "avx2")]
        fn avx2(registers: &mut Registers, m: &Mma) {
            product(registers, m);
        }
        match level() {
            // SAFETY: the machine has the instructions of its level.
            Level::Avx512 => unsafe { avx512(registers, m) },
            // SAFETY: as above.
            Level::Avx2 => unsafe { avx2(registers, m) },
            Level::Baseline => product(registers, m),
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    product(registers, m);
}

/// Computes [`mma`]. The sums of an instruction's integers are exact in f32.
#[inline(always)]
fn product(registers: &mut Registers, m: &Mma) {
    match m.types[0] {
        Type::Tf32 => product_of::<16, 1>(registers, m, |_, word, _| tf32(word)),
        Type::S8 | Type::U8 => product_of::<32, 4>(registers, m, |ty, word, i| {
            integer(ty, (word >> (8 * i)) as u8)
        }),
        _ => product_of::<16, 2>(registers, m, |ty, word, i| widen(ty, word >> (16 * i))),
    }
}

/// The same with at most `K` terms. `value` returns one of the `EACH` elements of a word. Operands are spread over the
/// lanes as in the PTX manual's figures.
#[inline(always)]
fn product_of<const K: usize, const EACH: usize>(
    registers: &mut Registers,
    m: &Mma,
    value: impl Fn(Type, u32, usize) -> f32,
) {
    let (mut a, mut b) = ([[0.0; K]; 16], [[0.0; 8]; K]);
    let [a_type, b_type] = m.types;
    for (i, &slot) in m.a.iter().enumerate() {
        for (lane, &word) in registers.word(slot).iter().enumerate() {
            let (row, k) = (lane / 4 + (i & 1) * 8, (lane % 4 + (i >> 1) * 4) * EACH);
            (0..EACH).for_each(|e| a[row][k + e] = value(a_type, word, e));
        }
    }
    for (i, &slot) in m.b.iter().enumerate() {
        for (lane, &word) in registers.word(slot).iter().enumerate() {
            let k = (lane % 4 + i * 4) * EACH;
            (0..EACH).for_each(|e| b[k + e][lane / 4] = value(b_type, word, e));
        }
    }
    let k = m.k as usize;
    let mut accumulators = [[0f32; 8]; 16];
    for (row, accumulators) in accumulators.iter_mut().enumerate() {
        for (kk, column) in b.iter().enumerate().take(k) {
            for (sum, y) in accumulators.iter_mut().zip(column) {
                *sum += a[row][kk] * y;
            }
        }
    }
    store_sums(registers, m, &accumulators);
}

/// Adds `c` and spreads the result over the lanes.
#[inline(always)]
fn store_sums(registers: &mut Registers, m: &Mma, accumulators: &[[f32; 8]; 16]) {
    for i in 0..m.d.len() {
        let c = *registers.word(m.c[i]);
        let out: [u32; LANES] = std::array::from_fn(|lane| {
            let (row, column) = (lane / 4, lane % 4 * 2);
            if m.wide_sum {
                let sum = accumulators[row + (i >> 1) * 8][column + (i & 1)];
                if m.types[0].size() == 1 {
                    return c[lane].wrapping_add(sum as i32 as u32);
                }
                return (f32::from_bits(c[lane]) + sum).to_bits();
            }
            let row_accumulators = &accumulators[row + i * 8];
            let low = f32_to_f16(f16_to_f32(c[lane]) + row_accumulators[column]);
            let high = f32_to_f16(f16_to_f32(c[lane] >> 16) + row_accumulators[column + 1]);
            low | high << 16
        });
        *registers.word_mut(m.d[i]) = out;
    }
}
