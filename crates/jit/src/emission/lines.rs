//! Instructions of a tile program for one group of lanes.
//!
//! A group has as many lanes as a vector has f32: 16 from `Features::AVX512` on, 8 at `Features::AVX2`. A value of 64
//! bits per lane takes two registers. A mask takes one: a mask register with EVEX, a vector of lanes of 32 bits with
//! VEX.
//!
//! A caller that emits a loop around them, or puts them after a product, makes [`Lines`] of the list. It gets the
//! number of registers that they [need](Lines::needs) and the bytes of [stack](Lines::stack). Then it emits them, with
//! [`Locations`] for accesses, and for registers of the program that come from elsewhere.

use super::Target;
use super::cast;
use super::emit::{Emit, load_constant};
pub use super::ir::Key;
use super::ir::{Cmp, Form, Ir, Src, Virt};
pub use super::locations::{LaneLocation, Locations, ReportArguments, Tail};
use super::pressure::{constant_uses, pressure};
use super::primitive::{binary, select, unary};
pub use super::value::NotEmitted;
use super::value::{Value, in_registers, is_wide};
use super::{float8, native};
use hashbrown::{HashMap, HashSet};
use kiln_base::prim::Reduction;
use kiln_base::{Compute, DType, Dim, Scalar};
use kiln_kernel::compute::scalar_bits;
use kiln_plan::tile::{Inst, Reg};
use kiln_x86::{Asm, Mem, Vreg, op};

/// The context of a list of instructions.
pub struct About<'a> {
    /// The type of each register.
    pub registers: &'a [Compute],
    /// The registers that are constants.
    pub constants: &'a [(Reg, Scalar)],
    /// The types of row slots.
    pub slots: &'a [Compute],
    /// The dtype of each access in memory.
    pub dtypes: &'a dyn Fn(u16) -> DType,
    /// True if a register has the same value in all lanes.
    pub same: &'a dyn Fn(Reg) -> bool,
}

/// A list of instructions, as vector code.
pub struct Lines {
    ir: Ir,
    needs: usize,
    stack: usize,
    /// The constants, most frequently read first.
    popular: Vec<u32>,
}

/// The constants of [`Lines`] that are in registers.
#[derive(Clone, Default)]
pub struct Pinned(Vec<Option<Vreg>>);

impl Lines {
    /// Returns vector code for `code`; `outputs` are registers that are read elsewhere.
    ///
    /// # Errors
    /// If some instruction can't be emitted.
    pub fn new(
        target: Target,
        about: &About,
        code: &[Inst],
        outputs: &[Reg],
    ) -> Result<Lines, NotEmitted> {
        let mut build = Build {
            ir: Ir::new(target),
            about,
            values: HashMap::new(),
            accumulators: HashSet::new(),
            lined: HashSet::new(),
        };
        for inst in code {
            build.inst(inst)?;
        }
        for r in outputs {
            let value = build.value(*r)?;
            let dtype = value.ty.dtype();
            build.store(Key::Output(*r), dtype, value)?;
        }
        let mut ir = build.ir;
        ir.drop_unused();
        #[cfg(feature = "testing")]
        super::bugs::apply(&mut ir);
        let (needs, slots) = pressure(&ir);
        let uses = constant_uses(&ir);
        let mut popular: Vec<u32> = (0..uses.len() as u32).collect();
        popular.retain(|c| uses[*c as usize] > 0);
        popular.sort_by_key(|c| std::cmp::Reverse(uses[*c as usize]));
        Ok(Lines {
            ir,
            needs,
            stack: slots * 64,
            popular,
        })
    }

    /// Returns the number of free vector registers with which nothing is spilled.
    pub fn needs(&self) -> usize {
        self.needs
    }

    /// The minimum number of registers that it can be emitted with.
    pub const MIN_REGISTERS: usize = 6;

    /// Returns the number of bytes that it may need on the stack.
    pub fn stack(&self) -> usize {
        self.stack
    }

    /// Returns the code for two groups of lanes at once, interleaved. It is worthwhile for long dependency chains,
    /// which would stall the processor.
    pub fn twice(&self) -> Lines {
        let ir = self.ir.twice();
        let (needs, slots) = pressure(&ir);
        Lines {
            ir,
            needs,
            stack: slots * 64,
            popular: self.popular.clone(),
        }
    }

    /// Returns the approximate number of instructions.
    pub fn instructions(&self) -> usize {
        self.ir.steps.len()
    }

    /// Returns the number of constants that it reads.
    pub fn constants(&self) -> usize {
        self.popular.len()
    }

    /// Loads constants into these registers, before a loop.
    pub fn pin(&self, asm: &mut Asm, registers: &[Vreg]) -> Pinned {
        let mut pinned = vec![None; self.ir.constants.len()];
        for (c, r) in self.popular.iter().zip(registers) {
            let constant = &self.ir.constants[*c as usize];
            load_constant(asm, constant, self.ir.target.width(), *r);
            pinned[*c as usize] = Some(*r);
        }
        Pinned(pinned)
    }

    /// Emits the code for one group of lanes: all of them, or those of the tail. It uses the registers `free` (at least
    /// [`Lines::MIN_REGISTERS`], and those that places give), the masks 3 to 7, and the bytes of [stack](Lines::stack)
    /// at `stack`.
    pub fn emit(
        &self,
        asm: &mut Asm,
        locations: &mut impl Locations,
        (free, stack): (&[Vreg], Mem),
        pinned: &Pinned,
        tail: Option<Tail>,
    ) {
        let none = vec![None; self.ir.constants.len()];
        let pinned = if pinned.0.is_empty() {
            &none
        } else {
            &pinned.0
        };
        Emit::new(&self.ir, asm, locations, free, stack, pinned, tail).run();
    }
}

pub(super) struct Build<'a> {
    pub ir: Ir,
    pub about: &'a About<'a>,
    values: HashMap<u16, Value>,
    accumulators: HashSet<u16>,
    /// The registers whose lanes are consecutive numbers.
    pub lined: HashSet<u16>,
}

impl Build<'_> {
    pub(super) fn ty(&self, r: Reg) -> Result<Compute, NotEmitted> {
        let ty = self.about.registers.get(usize::from(r.0));
        ty.copied().ok_or(NotEmitted)
    }

    pub(super) fn value(&mut self, r: Reg) -> Result<Value, NotEmitted> {
        if let Some(v) = self.values.get(&r.0) {
            return Ok(*v);
        }
        if self.accumulators.contains(&r.0) {
            return Err(NotEmitted);
        }
        let ty = self.ty(r)?;
        let constant = self.about.constants.iter().find(|(c, _)| *c == r);
        let value = match constant {
            Some((_, x)) => self.constant(*x, ty)?,
            None => self.load(Key::Input(r), ty.dtype()),
        };
        self.values.insert(r.0, value);
        Ok(value)
    }

    pub(super) fn constant(&mut self, x: Scalar, ty: Compute) -> Result<Value, NotEmitted> {
        let bits = scalar_bits(x, ty);
        Ok(match ty {
            Compute::F32 => Value::one(ty, self.ir.f32(f32::from_bits(bits as u32))),
            Compute::I32 => Value::one(ty, self.ir.i32(bits as i32)),
            Compute::F64 => Value::one(ty, self.ir.f64(f64::from_bits(bits))),
            Compute::I64 => Value::one(ty, self.ir.i64(bits as i64)),
            Compute::Mask => {
                let (a, b) = (self.ir.i32(bits as i32), self.ir.i32(1));
                Value::one(ty, self.ir.compare_int(false, Cmp::Eq, a, b))
            }
        })
    }

    /// Loads elements of a dtype, as its compute type.
    pub(super) fn load(&mut self, from: Key, dtype: DType) -> Value {
        let ty = dtype.compute();
        let ir = &mut self.ir;
        let word = |ir: &mut Ir, form: Form| Value::one(ty, ir.load(from, form, false));
        match dtype {
            DType::F32 | DType::I32 => word(ir, Form::Word),
            DType::U8 => word(ir, Form::Byte { signed: false }),
            DType::I8 => word(ir, Form::Byte { signed: true }),
            DType::U16 => word(ir, Form::Short { signed: false }),
            DType::I16 => word(ir, Form::Short { signed: true }),
            DType::F16 => word(ir, Form::Half),
            DType::BF16 => {
                let low = ir.load(from, Form::Short { signed: false }, false);
                let width = ir.width();
                Value::one(ty, ir.op1_of(op::VPSLLD, width, Some(16), low))
            }
            DType::F64 | DType::I64 | DType::U64 => {
                Value::of(ty, |p| ir.load(from, Form::Double(p), false).into())
            }
            DType::U32 => Value::of(ty, |p| ir.load(from, Form::Unsigned(p), false).into()),
            DType::Bool if ir.target.evex => Value::one(ty, ir.load(from, Form::Bits, true)),
            DType::Bool => {
                let bytes = ir.load(from, Form::Byte { signed: false }, false);
                let zero = ir.i32(0);
                Value::one(ty, ir.compare_int(false, Cmp::Gt, bytes.into(), zero))
            }
            _ => {
                let float = dtype.float8();
                let float = float.unwrap_or_else(|| panic!("no form of {dtype} in memory"));
                let bits = ir.load(from, Form::Byte { signed: false }, false);
                Value::one(ty, float8::widen(ir, bits, float))
            }
        }
    }

    /// Stores a value of a dtype's compute type as elements of the dtype.
    fn store(&mut self, to: Key, dtype: DType, value: Value) -> Result<(), NotEmitted> {
        let ir = &mut self.ir;
        let evex = ir.target.evex;
        let [low, high] = value.parts;
        match dtype {
            DType::F32 | DType::I32 => ir.store(to, Form::Word, low),
            DType::F64 | DType::I64 | DType::U64 => {
                ir.store(to, Form::Double(0), low);
                ir.store(to, Form::Double(1), high);
            }
            DType::U32 if evex => {
                ir.store(to, Form::Unsigned(0), low);
                ir.store(to, Form::Unsigned(1), high);
            }
            DType::U32 => {
                let [low, high] = in_registers(ir, value.parts);
                let narrow = ir.narrow64(low, high);
                ir.store(to, Form::Word, narrow.into());
            }
            DType::F16 => ir.store(to, Form::Half, low),
            DType::BF16 => {
                let bits = cast::to_bf16(ir, low);
                self.store_short(to, bits.into());
            }
            DType::U16 | DType::I16 => self.store_short(to, low),
            DType::U8 | DType::I8 => self.store_byte(to, low),
            DType::Bool if evex => {
                let m = value.mask()?;
                ir.store(to, Form::Bits, m.into());
            }
            DType::Bool => {
                let one = ir.i32(1);
                let bytes = ir.op2(op::VPAND, value.mask()?, one);
                self.store_byte(to, bytes.into());
            }
            _ => {
                let bits = float8::round(ir, low, dtype.float8().ok_or(NotEmitted)?);
                self.store_byte(to, bits.into());
            }
        }
        Ok(())
    }

    fn store_short(&mut self, to: Key, value: Src) {
        let ir = &mut self.ir;
        if ir.target.evex {
            return ir.store(to, Form::Short { signed: false }, value);
        }
        let shorts = self.shorts(value, 0xffff);
        self.ir.store(to, Form::Shorts, shorts.into());
    }

    fn store_byte(&mut self, to: Key, value: Src) {
        if self.ir.target.evex {
            return self.ir.store(to, Form::Byte { signed: false }, value);
        }
        let shorts = self.shorts(value, 0xff);
        let width = kiln_x86::Width::X;
        let bytes = self.ir.op2_of(op::VPACKUSWB, width, None, shorts, shorts);
        self.ir.store(to, Form::Bytes, bytes.into());
    }

    /// With VEX, returns the low bits of eight lanes as elements of 16 bits.
    fn shorts(&mut self, value: Src, bits: i32) -> Virt {
        let ir = &mut self.ir;
        let bits = ir.i32(bits);
        let low = ir.either(op::VPAND, value, bits);
        let packed = ir.op2(op::VPACKUSDW, low, low);
        let width = ir.width();
        ir.op1_of(op::VPERMQ, width, Some(0x08), packed)
    }

    fn inst(&mut self, inst: &Inst) -> Result<(), NotEmitted> {
        let (dst, value) = match inst {
            Inst::Load { dst, access } => {
                let dtype = (self.about.dtypes)(*access);
                (*dst, self.load(Key::Access(*access), dtype))
            }
            Inst::Kept { dst, slot } => {
                let ty = self.about.slots[usize::from(*slot)];
                (*dst, self.load(Key::Slot(*slot), ty.dtype()))
            }
            Inst::Unary { op, dst, a } => {
                let a = self.value(*a)?;
                (*dst, unary(&mut self.ir, *op, a)?)
            }
            Inst::Binary {
                op,
                dst,
                a,
                b,
                site,
            } => {
                let (a, b) = (self.value(*a)?, self.value(*b)?);
                let value = match binary(&mut self.ir, *op, a, b) {
                    Err(NotEmitted) if a.ty != Compute::Mask => {
                        native::binary_of(&mut self.ir, *op, [a, b], *site)
                    }
                    value => value?,
                };
                (*dst, value)
            }
            Inst::Select { dst, mask, a, b } => {
                let m = self.value(*mask)?.mask()?;
                let (a, b) = (self.value(*a)?, self.value(*b)?);
                (*dst, select(&mut self.ir, m, a, b)?)
            }
            Inst::Convert { dst, a, from, to } => {
                let a = self.value(*a)?;
                (*dst, cast::convert(&mut self.ir, a, *from, *to)?)
            }
            Inst::Reduce { op, acc, a } => return self.reduce(*op, *acc, *a),
            Inst::Keep { slot, src } => {
                let value = self.value(*src)?;
                return self.store(Key::Slot(*slot), value.ty.dtype(), value);
            }
            Inst::Store { access, src } => {
                let value = self.value(*src)?;
                let dtype = (self.about.dtypes)(*access);
                let value = if value.ty == dtype.compute() {
                    value
                } else {
                    cast::convert(&mut self.ir, value, value.ty.dtype(), dtype)?
                };
                return self.store(Key::Access(*access), dtype, value);
            }
            Inst::LoadAt {
                dst,
                access,
                dynamic,
            } => (*dst, self.load_at(*access, dynamic)?),
            // The number of the first lane, by position, and its increment per lane.
            Inst::Index {
                dst,
                offset,
                strides,
            } => {
                let [Dim::Const(stride)] = strides[..] else {
                    return Err(NotEmitted);
                };
                let Dim::Const(n) = offset else {
                    return Err(NotEmitted);
                };
                (*dst, self.index(*dst, *n as u16, stride)?)
            }
            Inst::Random {
                kind,
                dst,
                seed,
                offset,
                index,
            } => (*dst, self.random(*kind, *dst, [*seed, *offset, *index])?),
            Inst::ArgReduce { .. } => return Err(NotEmitted),
        };
        self.accumulators.remove(&dst.0);
        self.values.insert(dst.0, value);
        Ok(())
    }

    fn reduce(&mut self, reduction: Reduction, acc: Reg, a: Reg) -> Result<(), NotEmitted> {
        let a = self.value(a)?;
        let ty = a.ty;
        if ty == Compute::Mask {
            return Err(NotEmitted);
        }
        let wide = is_wide(ty);
        let parts = Value::of(ty, |p| {
            let code = if wide { p + 1 } else { 0 };
            let part = a.parts[usize::from(p)];
            self.ir.neutral(reduction, code, ty.is_float(), part).into()
        });
        let sum = self.load(Key::Accumulator(acc), ty.dtype());
        let sum = binary(&mut self.ir, reduction.combine(), sum, parts)?;
        self.store(Key::Accumulator(acc), ty.dtype(), sum)?;
        self.values.remove(&acc.0);
        self.accumulators.insert(acc.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
