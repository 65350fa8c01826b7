//! Operations that depend on the position of lanes: their numbers, elements at data-dependent addresses, random
//! numbers.

use super::ir::{Do, Ir, Key, Src, Virt};
use super::lines::Build;
use super::primitive::{binary, select};
use super::stage::Elements;
use super::value::{NotEmitted, Value};
use super::{cast, native, random};
use kiln_base::prim::{Binary, RandomKind};
use kiln_base::{Compute, DType, Dim, Scalar};
use kiln_plan::tile::{Dynamic, Reg};
use kiln_x86::{MaskOp, op};

impl Build<'_> {
    /// Returns the number of a call's first lane, by its position, plus `stride` per lane.
    pub(super) fn index(
        &mut self,
        dst: Reg,
        number: u16,
        stride: i64,
    ) -> Result<Value, NotEmitted> {
        if stride == 1 {
            self.lined.insert(dst.0);
        }
        let first = self.load(Key::Number(number), DType::I64);
        if stride == 0 {
            return Ok(first);
        }
        let lanes = self.load(Key::Lane, DType::I64);
        let by = self.times(lanes, stride)?;
        binary(&mut self.ir, Binary::Add, first, by)
    }

    fn times(&mut self, x: Value, by: i64) -> Result<Value, NotEmitted> {
        if by == 1 {
            return Ok(x);
        }
        let by = self.constant(Scalar::Int(by), Compute::I64)?;
        binary(&mut self.ir, Binary::Mul, x, by)
    }

    /// Loads elements at data-dependent addresses. The first part is the one that does not depend on data. Its stride
    /// is 1, its extent is the number of all addresses, and its site is one of [`Elements`].
    pub(super) fn load_at(&mut self, access: u16, parts: &[Dynamic]) -> Result<Value, NotEmitted> {
        let [first, rest @ ..] = parts else {
            return Err(NotEmitted);
        };
        let number = |d: &Dim| match d {
            Dim::Const(n) => Ok(*n),
            _ => Err(NotEmitted),
        };
        let zero = self.constant(Scalar::Int(0), Compute::I64)?;
        let mut address = self.value(first.index)?;
        for part in rest {
            let index = self.value(part.index)?;
            let extent = self.constant(Scalar::Int(number(&part.extent)?), Compute::I64)?;
            let outside = self.outside(index, extent)?;
            native::check(&mut self.ir, [index, extent], outside, part.site);
            let by = self.times(index, number(&part.stride)?)?;
            let by = select(&mut self.ir, outside, zero, by)?;
            address = binary(&mut self.ir, Binary::Add, address, by)?;
        }
        let (key, dtype) = (Key::Access(access), (self.about.dtypes)(access));
        if first.site == Elements::Address as u32 {
            return Ok(address);
        }
        let [low, high] = super::value::in_registers(&mut self.ir, address.parts);
        let ir = &mut self.ir;
        let width = ir.width();
        if first.site == Elements::SideBySide as u32 {
            let bytes = match dtype.size() {
                1 => low,
                size => ir.op1_of(op::VPSLLQ, width, Some(size.ilog2() as u8), low),
            };
            let from = ir.steps.len();
            let value = self.load(key, dtype);
            for step in &mut self.ir.steps[from..] {
                if matches!(step.what, Do::Load { .. }) {
                    step.from[0] = Some(bytes.into());
                }
            }
            return Ok(value);
        }
        // Lanes after the last may have any address.
        let length = number(&first.extent)?;
        let extent = self.constant(Scalar::Int(length), Compute::I64)?;
        let outside = self.outside(address, extent)?;
        let ir = &mut self.ir;
        let inside = ir.not_mask(outside);
        let ty = dtype.compute();
        let gather = |ir: &mut Ir, wide, at: Virt, mask: Virt| {
            let nothing = ir.i32(0);
            let what = Do::Gather { from: key, wide };
            ir.push(
                what,
                false,
                [Some(nothing), Some(at.into()), Some(mask.into())],
            )
        };
        match dtype.size() {
            8 => {
                let masks = ir.split_mask(inside);
                let parts = [
                    gather(ir, true, low, masks[0]),
                    gather(ir, true, high, masks[1]),
                ];
                Ok(Value {
                    ty,
                    parts: parts.map(Src::Virt),
                })
            }
            4 if length <= i64::from(i32::MAX) => {
                let narrow = cast::convert(ir, address, DType::I64, DType::I32)?;
                let [at, _] = super::value::in_registers(ir, narrow.parts);
                let x = gather(ir, false, at, inside);
                if dtype != DType::U32 {
                    return Ok(Value::one(ty, x));
                }
                let upper = ir.upper(x);
                let parts = [x, upper].map(|x| ir.op1(op::VPMOVZXDQ, x).into());
                Ok(Value { ty, parts })
            }
            _ => Err(NotEmitted),
        }
    }

    /// Returns a mask of the numbers outside `0..extent`.
    fn outside(&mut self, x: Value, extent: Value) -> Result<Virt, NotEmitted> {
        let zero = self.constant(Scalar::Int(0), Compute::I64)?;
        let below = binary(&mut self.ir, Binary::Lt, x, zero)?.mask()?;
        let above = binary(&mut self.ir, Binary::Ge, x, extent)?.mask()?;
        Ok(self.ir.masks(MaskOp::Or, below, above))
    }

    /// Returns random numbers of a seed, an offset and an index.
    pub(super) fn random(
        &mut self,
        kind: RandomKind,
        dst: Reg,
        from: [Reg; 3],
    ) -> Result<Value, NotEmitted> {
        let [_, _, index] = from;
        let same = from[..2].iter().all(|r| (self.about.same)(*r));
        let consecutive = same && self.lined.contains(&index.0);
        let (seed, offset) = (self.value(from[0])?, self.value(from[1])?);
        let index = self.value(index)?;
        let position = binary(&mut self.ir, Binary::Add, offset, index)?;
        Ok(match (kind, self.ty(dst)?) {
            (RandomKind::Uniform, Compute::F32) => {
                random::uniform(&mut self.ir, seed, position, consecutive)
            }
            (RandomKind::Normal, Compute::F32) => random::normal(&mut self.ir, seed, position),
            (_, ty) => native::random_of(&mut self.ir, kind, ty, [seed, position]),
        })
    }
}
