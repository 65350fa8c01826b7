//! Lists of instructions of a tile program as vector code for one group of lanes.
//!
//! A group has as many lanes as a vector has f32: 16 from `Features::AVX512` on, 8 at `Features::AVX2`. A value of 64
//! bits per lane takes two registers. A mask takes one: a mask register with EVEX, a vector of lanes of 32 bits with
//! VEX.
//!
//! A caller that emits a loop around the list, or an epilogue, creates [`Lines`]. It reserves
//! [registers](Lines::pressure) and [stack](Lines::stack), and then [emits](Lines::emit) the code, with
//! [`Locations`] for accesses and live registers of the program.

use super::Target;
use super::cast;
use super::emit::{Emit, load_constant};
pub use super::ir::Key;
use super::ir::{Cmp, Form, Ir, Src, Virt};
pub use super::locations::{LaneLocation, Locations, ReportArguments, Tail};
use super::pressure::{constant_uses, pressure};
use super::primitive::{binary, select, unary};
pub use super::value::NotEmitted;
use super::value::{Value, is_wide, to_registers};
use super::{float8, native};
use hashbrown::{HashMap, HashSet};
use kiln_base::prim::Reduction;
use kiln_base::{Compute, DType, Dim, Scalar};
use kiln_kernel::compute::scalar_bits;
use kiln_plan::tile::{Inst, Reg};
use kiln_x86::{Asm, Mem, Vreg, op};

/// The declarations that a list of instructions refers to.
pub struct LinesContext<'a> {
    /// The type of each register.
    pub registers: &'a [Compute],
    /// The registers that are constants.
    pub constants: &'a [(Reg, Scalar)],
    /// The types of row slots.
    pub slots: &'a [Compute],
    /// The dtype of each access in memory.
    pub dtypes: &'a dyn Fn(u16) -> DType,
    /// True if a register has the same value in all lanes.
    pub is_uniform: &'a dyn Fn(Reg) -> bool,
}

/// A list of instructions, as vector code.
pub struct Lines {
    ir: Ir,
    pressure: usize,
    stack_bytes: usize,
    /// The constants by descending number of reads.
    constants_by_reads: Vec<u32>,
}

/// The constants of [`Lines`] that are in registers.
#[derive(Clone, Default)]
pub struct Pinned(Vec<Option<Vreg>>);

impl Lines {
    /// Lowers `code` to vector code; `outputs` are the live registers after it.
    ///
    /// # Errors
    /// If some instruction can't be emitted.
    pub fn new(
        target: Target,
        context: &LinesContext,
        code: &[Inst],
        outputs: &[Reg],
    ) -> Result<Lines, NotEmitted> {
        let mut builder = LinesBuilder {
            ir: Ir::new(target),
            context,
            values: HashMap::new(),
            accumulators: HashSet::new(),
            consecutive: HashSet::new(),
        };
        for inst in code {
            builder.add_inst(inst)?;
        }
        for r in outputs {
            let value = builder.value(*r)?;
            let dtype = value.ty.dtype();
            builder.store(Key::Output(*r), dtype, value)?;
        }
        let mut ir = builder.ir;
        ir.eliminate_dead_code();
        #[cfg(feature = "testing")]
        super::bugs::apply(&mut ir);
        let (pressure, slots) = pressure(&ir);
        let uses = constant_uses(&ir);
        let mut constants_by_reads: Vec<u32> = (0..uses.len() as u32).collect();
        constants_by_reads.retain(|c| uses[*c as usize] > 0);
        constants_by_reads.sort_by_key(|c| std::cmp::Reverse(uses[*c as usize]));
        Ok(Lines {
            ir,
            pressure,
            stack_bytes: slots * 64,
            constants_by_reads,
        })
    }

    /// Returns the number of vector registers below which values are spilled.
    pub fn pressure(&self) -> usize {
        self.pressure
    }

    /// The minimum number of free registers for emission.
    pub const MIN_REGISTERS: usize = 6;

    /// Returns the size of the spill area in bytes.
    pub fn stack(&self) -> usize {
        self.stack_bytes
    }

    /// Returns the interleaved code for two groups of lanes, which hides the latency of long dependency chains.
    pub fn interleave_groups(&self) -> Lines {
        let ir = self.ir.interleave_groups();
        let (pressure, slots) = pressure(&ir);
        Lines {
            ir,
            pressure,
            stack_bytes: slots * 64,
            constants_by_reads: self.constants_by_reads.clone(),
        }
    }

    /// Returns the approximate number of instructions.
    pub fn instruction_count(&self) -> usize {
        self.ir.steps.len()
    }

    /// Returns the number of constants.
    pub fn constants(&self) -> usize {
        self.constants_by_reads.len()
    }

    /// Loads the most frequently read constants into these registers, before a loop.
    pub fn pin_constants(&self, asm: &mut Asm, registers: &[Vreg]) -> Pinned {
        let mut pinned = vec![None; self.ir.constants.len()];
        for (c, r) in self.constants_by_reads.iter().zip(registers) {
            let constant = &self.ir.constants[*c as usize];
            load_constant(asm, constant, self.ir.target.width(), *r);
            pinned[*c as usize] = Some(*r);
        }
        Pinned(pinned)
    }

    /// Emits the code for one group of lanes: a full group, or the lanes of the tail. It uses the registers `free` (at
    /// least [`Lines::MIN_REGISTERS`]), registers of [locations](LaneLocation::Register), the masks 3 to 7, and
    /// [stack](Lines::stack) at `stack`.
    pub fn emit(
        &self,
        asm: &mut Asm,
        locations: &mut impl Locations,
        (free, stack): (&[Vreg], Mem),
        pinned: &Pinned,
        tail: Option<Tail>,
    ) {
        let unpinned = vec![None; self.ir.constants.len()];
        let pinned = if pinned.0.is_empty() {
            &unpinned
        } else {
            &pinned.0
        };
        Emit::new(&self.ir, asm, locations, free, stack, pinned, tail).run();
    }
}

pub(super) struct LinesBuilder<'a> {
    pub ir: Ir,
    pub context: &'a LinesContext<'a>,
    values: HashMap<u16, Value>,
    accumulators: HashSet<u16>,
    /// The registers whose lanes hold consecutive numbers.
    pub consecutive: HashSet<u16>,
}

impl LinesBuilder<'_> {
    pub(super) fn ty(&self, r: Reg) -> Result<Compute, NotEmitted> {
        let ty = self.context.registers.get(usize::from(r.0));
        ty.copied().ok_or(NotEmitted)
    }

    /// Returns the value of a register, and loads it if it is live into the code.
    pub(super) fn value(&mut self, r: Reg) -> Result<Value, NotEmitted> {
        if let Some(v) = self.values.get(&r.0) {
            return Ok(*v);
        }
        if self.accumulators.contains(&r.0) {
            return Err(NotEmitted);
        }
        let ty = self.ty(r)?;
        let constant = self.context.constants.iter().find(|(c, _)| *c == r);
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
            Compute::F32 => Value::new(ty, self.ir.f32(f32::from_bits(bits as u32))),
            Compute::I32 => Value::new(ty, self.ir.i32(bits as i32)),
            Compute::F64 => Value::new(ty, self.ir.f64(f64::from_bits(bits))),
            Compute::I64 => Value::new(ty, self.ir.i64(bits as i64)),
            Compute::Mask => {
                let (a, b) = (self.ir.i32(bits as i32), self.ir.i32(1));
                Value::new(ty, self.ir.compare_int(false, Cmp::Eq, a, b))
            }
        })
    }

    /// Loads elements of a dtype, as its compute type.
    pub(super) fn load(&mut self, from: Key, dtype: DType) -> Value {
        let ty = dtype.compute();
        let ir = &mut self.ir;
        let word = |ir: &mut Ir, form: Form| Value::new(ty, ir.load(from, form, false));
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
                Value::new(ty, ir.op1_with(op::VPSLLD, width, Some(16), low))
            }
            DType::F64 | DType::I64 | DType::U64 => {
                Value::from_parts(ty, |p| ir.load(from, Form::Double(p), false).into())
            }
            DType::U32 => Value::from_parts(ty, |p| ir.load(from, Form::Unsigned(p), false).into()),
            DType::Bool if ir.target.evex => Value::new(ty, ir.load(from, Form::Bits, true)),
            DType::Bool => {
                let bytes = ir.load(from, Form::Byte { signed: false }, false);
                let zero = ir.i32(0);
                Value::new(ty, ir.compare_int(false, Cmp::Gt, bytes.into(), zero))
            }
            _ => {
                let float = dtype.float8();
                let float = float.unwrap_or_else(|| panic!("no form of {dtype} in memory"));
                let bits = ir.load(from, Form::Byte { signed: false }, false);
                Value::new(ty, float8::widen(ir, bits, float))
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
                let [low, high] = to_registers(ir, value.parts);
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
        let shorts = self.pack_shorts(value, 0xffff);
        self.ir.store(to, Form::Shorts, shorts.into());
    }

    fn store_byte(&mut self, to: Key, value: Src) {
        if self.ir.target.evex {
            return self.ir.store(to, Form::Byte { signed: false }, value);
        }
        let shorts = self.pack_shorts(value, 0xff);
        let width = kiln_x86::Width::X;
        let bytes = self.ir.op2_with(op::VPACKUSWB, width, None, shorts, shorts);
        self.ir.store(to, Form::Bytes, bytes.into());
    }

    /// With VEX, packs the low bits of eight lanes to elements of 16 bits.
    fn pack_shorts(&mut self, value: Src, bits: i32) -> Virt {
        let ir = &mut self.ir;
        let bits = ir.i32(bits);
        let low = ir.commutative(op::VPAND, value, bits);
        let packed = ir.op2(op::VPACKUSDW, low, low);
        let width = ir.width();
        ir.op1_with(op::VPERMQ, width, Some(0x08), packed)
    }

    fn add_inst(&mut self, inst: &Inst) -> Result<(), NotEmitted> {
        let (dst, value) = match inst {
            Inst::Load { dst, access } => {
                let dtype = (self.context.dtypes)(*access);
                (*dst, self.load(Key::Access(*access), dtype))
            }
            Inst::Kept { dst, slot } => {
                let ty = self.context.slots[usize::from(*slot)];
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
                        native::add_binary(&mut self.ir, *op, [a, b], *site)
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
                let dtype = (self.context.dtypes)(*access);
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
            // The offset is the index of a [`Key::Number`], the number at the first lane.
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
        let parts = Value::from_parts(ty, |p| {
            let code = if wide { p + 1 } else { 0 };
            let part = a.parts[usize::from(p)];
            self.ir.fill(reduction, code, ty.is_float(), part).into()
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
