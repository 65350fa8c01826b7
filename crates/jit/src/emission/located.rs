//! Operations that depend on the position of lanes: indices, loads at data-dependent addresses, random numbers.

use super::ir::{Action, Ir, Key, Src, Virt};
use super::lines::LinesBuilder;
use super::primitive::{binary, select};
use super::stage::Elements;
use super::value::{NotEmitted, Value};
use super::{cast, native, random};
use kiln_base::prim::{Binary, RandomKind};
use kiln_base::{Compute, DType, Dim, Scalar};
use kiln_plan::tile::{Dynamic, Reg};
use kiln_x86::{MaskOp, op};

impl LinesBuilder<'_> {
    /// Returns the value of a [`Key::Number`] plus `stride` per lane.
    pub(super) fn index(
        &mut self,
        dst: Reg,
        number: u16,
        stride: i64,
    ) -> Result<Value, NotEmitted> {
        if stride == 1 {
            self.consecutive.insert(dst.0);
        }
        let first = self.load(Key::Number(number), DType::I64);
        if stride == 0 {
            return Ok(first);
        }
        let lanes = self.load(Key::Lane, DType::I64);
        let offset = self.multiply(lanes, stride)?;
        binary(&mut self.ir, Binary::Add, first, offset)
    }

    fn multiply(&mut self, x: Value, factor: i64) -> Result<Value, NotEmitted> {
        if factor == 1 {
            return Ok(x);
        }
        let factor = self.constant(Scalar::Int(factor), Compute::I64)?;
        binary(&mut self.ir, Binary::Mul, x, factor)
    }

    /// Loads elements at data-dependent addresses. The first part does not depend on data. Its stride is 1, its extent
    /// is the length of the argument, and its site is one of [`Elements`].
    pub(super) fn load_at(&mut self, access: u16, parts: &[Dynamic]) -> Result<Value, NotEmitted> {
        let [base, dynamic @ ..] = parts else {
            return Err(NotEmitted);
        };
        let constant_of = |d: &Dim| match d {
            Dim::Const(n) => Ok(*n),
            _ => Err(NotEmitted),
        };
        let zero = self.constant(Scalar::Int(0), Compute::I64)?;
        let mut address = self.value(base.index)?;
        for part in dynamic {
            let index = self.value(part.index)?;
            let extent = self.constant(Scalar::Int(constant_of(&part.extent)?), Compute::I64)?;
            let is_outside = self.outside_mask(index, extent)?;
            native::add_index_check(&mut self.ir, [index, extent], is_outside, part.site);
            let offset = self.multiply(index, constant_of(&part.stride)?)?;
            let offset = select(&mut self.ir, is_outside, zero, offset)?;
            address = binary(&mut self.ir, Binary::Add, address, offset)?;
        }
        let (key, dtype) = (Key::Access(access), (self.context.dtypes)(access));
        if base.site == Elements::Address as u32 {
            return Ok(address);
        }
        let [low, high] = super::value::to_registers(&mut self.ir, address.parts);
        let ir = &mut self.ir;
        let width = ir.width();
        if base.site == Elements::Contiguous as u32 {
            let bytes = match dtype.size() {
                1 => low,
                size => ir.op1_with(op::VPSLLQ, width, Some(size.ilog2() as u8), low),
            };
            let from = ir.steps.len();
            let value = self.load(key, dtype);
            for step in &mut self.ir.steps[from..] {
                if matches!(step.action, Action::Load { .. }) {
                    step.from[0] = Some(bytes.into());
                }
            }
            return Ok(value);
        }
        // The indices of lanes beyond the tail are arbitrary.
        let length = constant_of(&base.extent)?;
        let extent = self.constant(Scalar::Int(length), Compute::I64)?;
        let is_outside = self.outside_mask(address, extent)?;
        let ir = &mut self.ir;
        let is_inside = ir.not_mask(is_outside);
        let ty = dtype.compute();
        let gather = |ir: &mut Ir, wide, at: Virt, mask: Virt| {
            let fill = ir.i32(0);
            let action = Action::Gather { from: key, wide };
            ir.push(
                action,
                false,
                [Some(fill), Some(at.into()), Some(mask.into())],
            )
        };
        match dtype.size() {
            8 => {
                let masks = ir.split_mask(is_inside);
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
                let [at, _] = super::value::to_registers(ir, narrow.parts);
                let x = gather(ir, false, at, is_inside);
                if dtype != DType::U32 {
                    return Ok(Value::new(ty, x));
                }
                let upper = ir.upper_half(x);
                let parts = [x, upper].map(|x| ir.op1(op::VPMOVZXDQ, x).into());
                Ok(Value { ty, parts })
            }
            _ => Err(NotEmitted),
        }
    }

    /// Returns a mask of the lanes whose index is outside `0..extent`.
    fn outside_mask(&mut self, x: Value, extent: Value) -> Result<Virt, NotEmitted> {
        let zero = self.constant(Scalar::Int(0), Compute::I64)?;
        let below = binary(&mut self.ir, Binary::Lt, x, zero)?.mask()?;
        let above = binary(&mut self.ir, Binary::Ge, x, extent)?.mask()?;
        Ok(self.ir.mask_op(MaskOp::Or, below, above))
    }

    /// Returns random numbers for a seed, an offset and an index.
    pub(super) fn random(
        &mut self,
        kind: RandomKind,
        dst: Reg,
        sources: [Reg; 3],
    ) -> Result<Value, NotEmitted> {
        let [_, _, index] = sources;
        let is_uniform = sources[..2].iter().all(|r| (self.context.is_uniform)(*r));
        let consecutive = is_uniform && self.consecutive.contains(&index.0);
        let (seed, offset) = (self.value(sources[0])?, self.value(sources[1])?);
        let index = self.value(index)?;
        let position = binary(&mut self.ir, Binary::Add, offset, index)?;
        Ok(match (kind, self.ty(dst)?) {
            (RandomKind::Uniform, Compute::F32) => {
                random::uniform(&mut self.ir, seed, position, consecutive)
            }
            (RandomKind::Normal, Compute::F32) => random::normal(&mut self.ir, seed, position),
            (_, ty) => native::add_random(&mut self.ir, kind, ty, [seed, position]),
        })
    }
}
