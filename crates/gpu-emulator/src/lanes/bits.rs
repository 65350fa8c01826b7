//! Bit fields, counts, permutations and dot products of bytes.

use super::{Run, quaternary, ternary, unary, with_number};
use crate::ptx::Type::{self, *};

/// The loop of a one-operand instruction.
pub(crate) fn pick_unary(name: &str, ty: Type) -> Option<Run> {
    Some(match (name, ty) {
        ("popc", U32) => unary(u32::count_ones),
        ("popc", U64) => unary(u64::count_ones),
        ("clz", U32) => unary(u32::leading_zeros),
        ("clz", U64) => unary(u64::leading_zeros),
        ("brev", U32) => unary(u32::reverse_bits),
        ("brev", U64) => unary(u64::reverse_bits),
        ("bfind", U32) => unary(|x: u32| 31u32.wrapping_sub(x.leading_zeros())),
        ("bfind", S32) => unary(|x: i32| 31u32.wrapping_sub((x ^ x >> 31).leading_zeros())),
        ("bfind", U64) => unary(|x: u64| 63u32.wrapping_sub(x.leading_zeros())),
        ("bfind", S64) => unary(|x: i64| 63u32.wrapping_sub((x ^ x >> 63).leading_zeros())),
        ("bfind.shiftamt", U32) => unary(|x: u32| if x == 0 { !0 } else { x.leading_zeros() }),
        ("bfind.shiftamt", U64) => unary(|x: u64| if x == 0 { !0 } else { x.leading_zeros() }),
        _ => return None,
    })
}

/// `bfe`: `n` bits from bit `p` on; a signed type extends the field's sign.
#[inline(always)]
fn extract(x: u64, p: u32, n: u32, width: u32, signed: bool) -> u64 {
    let (p, n) = (p & 255, n & 255);
    let x = if signed {
        ((x as i64) << (64 - width) >> (64 - width)) as u64
    } else {
        x
    };
    if n == 0 {
        return 0;
    }
    let shifted = if signed {
        ((x as i64) >> p.min(63)) as u64
    } else if p > 63 {
        0
    } else {
        x >> p
    };
    // A field that extends past the value is filled with its sign or zeros.
    let bits = n.min(width);
    let top = 64 - bits;
    if signed {
        ((shifted << top) as i64 >> top) as u64
    } else {
        shifted << top >> top
    }
}

/// `bfi`: puts the low `n` bits of `x` at bit `p` of `into`.
#[inline(always)]
fn insert(x: u64, into: u64, p: u32, n: u32, width: u32) -> u64 {
    let (p, n) = (p & 255, n & 255);
    if p >= width || n == 0 {
        return into;
    }
    let field = if n >= 64 { !0 } else { (1u64 << n) - 1 };
    (into & !(field << p)) | (x & field) << p
}

/// `prmt`: each nibble of `selector` names a byte of `y:x` or, with its top bit, that byte's sign.
#[inline(always)]
fn permute(x: u32, y: u32, selector: u32) -> u32 {
    let bytes = (y as u64) << 32 | x as u64;
    let mut out = 0;
    for i in 0..4 {
        let nibble = selector >> (4 * i);
        let byte = (bytes >> (8 * (nibble & 7))) as u8;
        let byte = if nibble & 8 != 0 {
            (byte as i8 >> 7) as u8
        } else {
            byte
        };
        out |= (byte as u32) << (8 * i);
    }
    out
}

/// `lop3`: the truth table `table` of three bits.
#[inline(always)]
fn logic(x: u32, y: u32, z: u32, table: u32) -> u32 {
    let mut out = 0;
    for i in 0..8 {
        let row = if i & 4 != 0 { x } else { !x }
            & if i & 2 != 0 { y } else { !y }
            & if i & 1 != 0 { z } else { !z };
        out |= row & 0u32.wrapping_sub(table >> i & 1);
    }
    out
}

#[inline(always)]
fn funnel(low: u32, high: u32) -> u64 {
    (high as u64) << 32 | low as u64
}

/// The loop of `lop3`; its number is the truth table.
pub(crate) fn pick_lop3() -> Run {
    with_number(logic)
}

/// The loop of a three-operand instruction.
pub(crate) fn pick_ternary(name: &str, ty: Type) -> Option<Run> {
    Some(match (name, ty) {
        ("bfe", U32) => ternary(|x: u32, p: u32, n: u32| extract(x as u64, p, n, 32, false) as u32),
        ("bfe", S32) => ternary(|x: u32, p: u32, n: u32| extract(x as u64, p, n, 32, true) as u32),
        ("bfe", U64) => ternary(|x: u64, p: u32, n: u32| extract(x, p, n, 64, false)),
        ("bfe", S64) => ternary(|x: u64, p: u32, n: u32| extract(x, p, n, 64, true)),
        ("prmt", U32) => ternary(permute),
        ("shf.l.wrap", U32) => {
            ternary(|low: u32, high: u32, n: u32| (funnel(low, high) << (n & 31) >> 32) as u32)
        }
        ("shf.r.wrap", U32) => {
            ternary(|low: u32, high: u32, n: u32| (funnel(low, high) >> (n & 31)) as u32)
        }
        ("shf.l.clamp", U32) => {
            ternary(|low: u32, high: u32, n: u32| (funnel(low, high) << n.min(32) >> 32) as u32)
        }
        ("shf.r.clamp", U32) => {
            ternary(|low: u32, high: u32, n: u32| (funnel(low, high) >> n.min(32)) as u32)
        }
        _ => return None,
    })
}

/// The loop of `bfi`.
pub(crate) fn pick_insert(ty: Type) -> Option<Run> {
    Some(match ty {
        U32 => quaternary(|x: u32, into: u32, p, n| insert(x as u64, into as u64, p, n, 32) as u32),
        U64 => quaternary(|x: u64, into: u64, p, n| insert(x, into, p, n, 64)),
        _ => return None,
    })
}

/// The number of a dot product's loop: bits 0 and 1 are set for signed elements of a and b, bit 2 for `.hi`.
pub(crate) fn dot_number(x: Type, y: Type, upper: bool) -> Option<u32> {
    let signed = |ty| match ty {
        U32 => Some(0),
        S32 => Some(1),
        _ => None,
    };
    Some(signed(x)? | signed(y)? << 1 | (upper as u32) << 2)
}

/// The sum of `c` and `terms` products: of the elements of `a`, which fill it, by bytes of `b`.
#[inline(always)]
fn dot(a: u32, b: u32, c: u32, number: u32, terms: u32) -> u32 {
    let element = |word: u32, bit: u32, width: u32, signed: bool| {
        let top = word >> bit << (32 - width);
        match signed {
            true => top as i32 >> (32 - width),
            false => (top >> (32 - width)) as i32,
        }
    };
    let (width, first_byte) = (32 / terms, if number & 4 != 0 { 16 } else { 0 });
    (0..terms).fold(c, |sum, i| {
        let x = element(a, width * i, width, number & 1 != 0);
        let y = element(b, first_byte + 8 * i, 8, number & 2 != 0);
        sum.wrapping_add((x * y) as u32)
    })
}

/// The loop of `dp2a`; its number is that of [`dot_number`].
pub(crate) fn dp2a() -> Run {
    with_number(|a: u32, b: u32, c: u32, number| dot(a, b, c, number, 2))
}

/// The loop of `dp4a`, likewise.
pub(crate) fn dp4a() -> Run {
    with_number(|a: u32, b: u32, c: u32, number| dot(a, b, c, number, 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_cut_out_and_put_in() {
        assert_eq!(extract(0xabcd, 4, 8, 32, false), 0xbc);
        assert_eq!(extract(0x80, 4, 4, 32, true) as u32, 0xffff_fff8);
        assert_eq!(extract(0x8000_0000, 31, 8, 32, true) as u32, !0);
        assert_eq!(extract(!0, 40, 8, 32, false), (!0u64 >> 40) & 0xff);
        assert_eq!(insert(0x5, 0, 4, 4, 32), 0x50);
        assert_eq!(insert(!0, 0, 28, 8, 32) as u32, 0xf000_0000);
    }

    #[test]
    fn permute_selects_bytes_and_signs() {
        assert_eq!(permute(0x3322_1100, 0x7766_5544, 0x5410), 0x5544_1100);
        assert_eq!(permute(0x0000_0080, 0, 0x8888), 0xffff_ffff);
    }

    #[test]
    fn every_truth_table_is_itself() {
        for table in 0..256 {
            // The inputs whose columns spell the table.
            assert_eq!(logic(0xf0, 0xcc, 0xaa, table) & 0xff, table);
        }
    }
}
