//! Integer arithmetic with the carry flag: `add.cc`, `addc`, `mad.cc` and `madc` of 32 bits.

use super::opcode::Opcode;
use super::operand::operand;
use super::{Decoder, Frame, Result};
use crate::code::Constant;
use crate::lanes::{Operands, quaternary};
use crate::ptx::{Operand, Type};

/// `a · b + c + carry` in 64 bits, or the upper half of `a · b` in place of the product.
fn sum(a: u32, b: u32, c: u32, carry: u32, upper: bool) -> u64 {
    let product = a as u64 * b as u64;
    let part = if upper {
        product >> 32
    } else {
        product as u32 as u64
    };
    part + c as u64 + carry as u64
}

impl<'m> Decoder<'m> {
    /// Decodes one of these; `writes` says whether it leaves a carry.
    pub(super) fn carried(
        &mut self,
        frame: &mut Frame,
        opcode: &Opcode,
        o: &[Operand],
        writes: bool,
    ) -> Result<()> {
        let upper = opcode.has("hi");
        let _ = opcode.has("lo");
        let ty = opcode.ty()?;
        if !matches!(ty, Type::U32 | Type::S32) {
            return Err("a carry of other than 32 bits".into());
        }
        let carry = match self.carry {
            Some(slot) => slot,
            None => self.fresh(false),
        };
        self.carry = Some(carry);
        let x = match opcode.name.ends_with('c') {
            true => carry,
            false => self.constant(Constant::Value(0), false),
        };
        let a = self.source(frame, operand(o, 1)?, ty)?;
        // A sum is a product by one.
        let (b, c) = match opcode.name.starts_with("add") {
            true => (
                self.constant(Constant::Value(1), false),
                self.source(frame, operand(o, 2)?, ty)?,
            ),
            false => (
                self.source(frame, operand(o, 2)?, ty)?,
                self.source(frame, operand(o, 3)?, ty)?,
            ),
        };
        let d = self.destination(frame, operand(o, 0)?, ty)?;
        let (value, over) = match upper {
            true => (
                quaternary(|a: u32, b: u32, c, x| sum(a, b, c, x, true) as u32),
                quaternary(|a: u32, b: u32, c, x| (sum(a, b, c, x, true) >> 32) as u32),
            ),
            false => (
                quaternary(|a: u32, b: u32, c, x| sum(a, b, c, x, false) as u32),
                quaternary(|a: u32, b: u32, c, x| (sum(a, b, c, x, false) >> 32) as u32),
            ),
        };
        // The destination may be an operand, so the carry is found first and kept aside.
        let aside = self.fresh(false);
        if writes {
            self.lanes(
                over,
                Operands {
                    d: aside,
                    a,
                    b,
                    c,
                    x,
                },
            );
        }
        self.lanes(value, Operands { d, a, b, c, x });
        if writes {
            let copy = quaternary(|a: u32, _: u32, _, _| a);
            self.lanes(
                copy,
                Operands {
                    d: carry,
                    a: aside,
                    b: aside,
                    c: aside,
                    x: aside,
                },
            );
        }
        Ok(())
    }
}
