//! Rust functions that emitted code calls for operations without a vector form.
//!
//! A call preserves every register except that of its result. The function reads its operands from slots of 64 bytes,
//! and writes its result to the first slot.

use super::emit::Emit;
use super::ir::{Action, Ir, Src, Step, Virt};
use super::locations::{Locations, Tail};
use super::step::Native;
use super::value::{Value, is_wide, to_registers};
use kiln_base::prim::{self, Binary, RandomKind, Unary};
use kiln_base::{Compute, DType};
use kiln_kernel::compute::with_compute;
use kiln_kernel::element::{Elem, cast_one};
use kiln_kernel::failures::Position;
use kiln_kernel::simd::convert::{Mem as Element, with_dtype};
use kiln_x86::{Condition, Gpr, Mask, Mem, Operand, Vreg, Width, op};

/// The type of these functions. The arguments are the slots of the result and the operands, the lanes, the parameters,
/// the context for data errors, and the index of the first lane.
type Function = unsafe extern "sysv64" fn(*mut u8, u64, u64, *const Position, u64, u64) -> u64;

/// The flag of a lane argument that is a count instead of a mask.
const COUNT: u64 = 1 << 16;
/// The bytes of a slot.
const SLOT: usize = 64;

/// The constant parameters of a call: the primitive, the half of the group, the number of lanes, and the site of data
/// errors.
#[derive(Copy, Clone, Default)]
struct FunctionCall {
    primitive: u8,
    upper: bool,
    lanes: u8,
    site: u32,
}

impl FunctionCall {
    fn bits(self) -> u64 {
        let site = u64::from(self.site) << 32;
        site | u64::from(self.upper) << 16 | u64::from(self.lanes) << 8 | u64::from(self.primitive)
    }

    fn from_bits(bits: u64) -> FunctionCall {
        FunctionCall {
            primitive: bits as u8,
            upper: bits >> 16 & 1 == 1,
            lanes: (bits >> 8) as u8,
            site: (bits >> 32) as u32,
        }
    }

    /// Returns the first lane of the half, and the number of its active lanes. `count` is the number of the group's
    /// active lanes, or a mask of them.
    fn lanes(self, count: u64) -> (usize, usize) {
        let total = if count >= COUNT {
            (count - COUNT) as usize
        } else {
            count.count_ones() as usize
        };
        let lanes = usize::from(self.lanes);
        let first = if self.upper { lanes } else { 0 };
        (first, total.saturating_sub(first).min(lanes))
    }
}

/// Returns the elements of a slot.
///
/// # Safety
/// They are in the slots of the call.
unsafe fn slot<T>(slots: *mut u8, n: usize) -> *mut T {
    slots.wrapping_add(n * SLOT).cast()
}

unsafe extern "sysv64" fn unary<T: Elem>(
    slots: *mut u8,
    count: u64,
    parameters: u64,
    _: *const Position,
    _: u64,
    _: u64,
) -> u64 {
    let parameters = FunctionCall::from_bits(parameters);
    let op = Unary::ALL[usize::from(parameters.primitive)];
    for i in 0..parameters.lanes(count).1 {
        // SAFETY: a slot has room for the lanes of a group.
        unsafe { *slot::<T>(slots, 0).add(i) = T::unary(op, *slot::<T>(slots, 1).add(i)) }
    }
    0
}

unsafe extern "sysv64" fn binary<T: Elem>(
    slots: *mut u8,
    count: u64,
    parameters: u64,
    ctx: *const Position,
    lane: u64,
    _: u64,
) -> u64 {
    let parameters = FunctionCall::from_bits(parameters);
    let op = Binary::ALL[usize::from(parameters.primitive)];
    let (first, lanes) = parameters.lanes(count);
    for i in 0..lanes {
        // SAFETY: a slot has room for the lanes of a group; a division is called with the context of the run.
        unsafe {
            let x = *slot::<T>(slots, 1).add(i);
            let y = T::binary(op, x, *slot::<T>(slots, 2).add(i));
            *slot::<T>(slots, 0).add(i) = y.unwrap_or_else(|| {
                let (lane, dividend) = (lane as usize + first + i, x.number().int(DType::I64));
                let failure = (*ctx).failure(parameters.site, lane, dividend, 0);
                (*(*ctx).failures).report(failure);
                T::ZERO
            });
        }
    }
    0
}

unsafe extern "sysv64" fn cast<S: Elem, D: Element, const UNSIGNED: bool>(
    slots: *mut u8,
    count: u64,
    parameters: u64,
    _: *const Position,
    _: u64,
    _: u64,
) -> u64
where
    D::C: Elem,
{
    for i in 0..FunctionCall::from_bits(parameters).lanes(count).1 {
        // SAFETY: a slot has room for the lanes of a group.
        unsafe {
            let x = *slot::<S>(slots, 1).add(i);
            *slot::<D::C>(slots, 0).add(i) = cast_one::<S, D, UNSIGNED>(x);
        }
    }
    0
}

/// Computes random numbers; the second operand is the position.
unsafe extern "sysv64" fn random(
    slots: *mut u8,
    count: u64,
    parameters: u64,
    _: *const Position,
    _: u64,
    _: u64,
) -> u64 {
    /// # Safety
    /// As for all of these functions. The kind is known at compile time.
    #[inline(always)]
    unsafe fn fill<T>(slots: *mut u8, lanes: usize, kind: RandomKind, f: fn([u32; 4]) -> T) {
        // Computing all words first lets their rounds overlap.
        let mut words = [[0; 4]; SLOT / size_of::<u64>()];
        // SAFETY: a slot has room for the lanes of a group.
        unsafe {
            for (i, words) in words[..lanes].iter_mut().enumerate() {
                let [seed, position] = [1, 2].map(|n| *slot::<u64>(slots, n).add(i));
                *words = prim::random_words(kind, true, position, seed);
            }
            for (i, words) in words[..lanes].iter().enumerate() {
                *slot::<T>(slots, 0).add(i) = f(*words);
            }
        }
    }
    use RandomKind::{Bits, Normal, Uniform};
    let parameters = FunctionCall::from_bits(parameters);
    let lanes = parameters.lanes(count).1;
    // SAFETY: the caller's.
    unsafe {
        match RandomKind::ALL[usize::from(parameters.primitive)] {
            Bits => fill(slots, lanes, Bits, prim::random_bits),
            Uniform => fill(slots, lanes, Uniform, prim::random_uniform_f64),
            Normal => fill(slots, lanes, Normal, prim::random_normal_f64),
        }
    }
    0
}

/// Reports the indices that are not below the extent, the second operand.
unsafe extern "sysv64" fn report(
    slots: *mut u8,
    count: u64,
    parameters: u64,
    ctx: *const Position,
    lane: u64,
    _: u64,
) -> u64 {
    let parameters = FunctionCall::from_bits(parameters);
    let (first, lanes) = parameters.lanes(count);
    for i in 0..lanes {
        // SAFETY: a slot has room for the lanes of a group; the context is that of the run.
        unsafe {
            let (index, extent) = (*slot::<i64>(slots, 1).add(i), *slot::<i64>(slots, 2).add(i));
            if index as u64 >= extent as u64 {
                let lane = lane as usize + first + i;
                let failure = (*ctx).failure(parameters.site, lane, index, extent);
                (*(*ctx).failures).report(failure);
            }
        }
    }
    0
}

/// Adds a call for each half of a group if an operand or the result has 64 bits per lane, otherwise one call.
fn add_call(
    ir: &mut Ir,
    (f, parameters): (Function, FunctionCall),
    reports: bool,
    ty: Compute,
    from: &[Value],
    condition: Option<Virt>,
) -> Value {
    let has_two_registers = is_wide(ty) || from.iter().any(|v| is_wide(v.ty));
    let lanes = ir.target.lanes() / if has_two_registers { 2 } else { 1 };
    let mut add_half = |upper: bool| {
        let parameters = FunctionCall {
            upper,
            lanes: lanes as u8,
            ..parameters
        };
        let mut sources = [None; 3];
        for (to, v) in sources.iter_mut().zip(from) {
            *to = Some(match (is_wide(v.ty), upper) {
                (true, _) => v.parts[usize::from(upper)],
                (false, false) => v.parts[0],
                (false, true) => {
                    let [x, _] = to_registers(ir, v.parts);
                    ir.upper_half(x).into()
                }
            });
        }
        if let Some(mask) = condition {
            sources[2] = Some(mask.into());
        }
        // SAFETY: the interpreter uses addresses only as numbers.
        #[cfg(feature = "testing")]
        kiln_kernel::interpreted::register_function(unsafe {
            std::mem::transmute::<Function, kiln_x86_interpreter::Function>(f)
        });
        let parameters = parameters.bits();
        ir.push(
            Action::Call(Native {
                f: f as usize,
                parameters,
                reports,
                masked: condition.is_some(),
            }),
            false,
            sources,
        )
    };
    let low = add_half(false);
    if !has_two_registers {
        return Value::new(ty, low);
    }
    let high = add_half(true);
    match is_wide(ty) {
        true => Value {
            ty,
            parts: [low.into(), high.into()],
        },
        false => Value::new(ty, ir.join_halves(low, high)),
    }
}

/// Adds a lane-by-lane primitive on one value. With a mask, the call is skipped unless a lane is set, and the result is
/// then arbitrary.
pub(super) fn add_unary(ir: &mut Ir, op: Unary, a: Value, mask: Option<Virt>) -> Value {
    let f = with_compute!(a.ty, T => unary::<T> as Function);
    let parameters = FunctionCall {
        primitive: op as u8,
        ..FunctionCall::default()
    };
    add_call(ir, (f, parameters), false, a.ty, &[a], mask)
}

/// Adds a lane-by-lane primitive on two values. Integer division by 0 is reported.
pub(super) fn add_binary(ir: &mut Ir, op: Binary, [a, b]: [Value; 2], site: u32) -> Value {
    let f = with_compute!(a.ty, T => binary::<T> as Function);
    let reports = op.divides() && !a.ty.is_float();
    let parameters = FunctionCall {
        primitive: op as u8,
        site,
        ..FunctionCall::default()
    };
    add_call(ir, (f, parameters), reports, a.ty, &[a, b], None)
}

/// Adds a lane-by-lane conversion of a value that is not a mask.
pub(super) fn add_cast(ir: &mut Ir, a: Value, from: DType, to: DType) -> Value {
    let f = with_dtype!(to, D => with_compute!(from.compute(), S => match from {
        DType::U64 => cast::<S, D, true> as Function,
        _ => cast::<S, D, false>,
    }));
    add_call(
        ir,
        (f, FunctionCall::default()),
        false,
        to.compute(),
        &[a],
        None,
    )
}

/// Adds 64-bit random numbers from seeds and positions.
pub(super) fn add_random(ir: &mut Ir, kind: RandomKind, ty: Compute, from: [Value; 2]) -> Value {
    let parameters = FunctionCall {
        primitive: kind as u8,
        ..FunctionCall::default()
    };
    add_call(ir, (random, parameters), false, ty, &from, None)
}

/// Adds a check that reports the lanes of a mask, whose index is outside the extent.
pub(super) fn add_index_check(ir: &mut Ir, from: [Value; 2], outside: Virt, site: u32) {
    let parameters = FunctionCall {
        site,
        ..FunctionCall::default()
    };
    add_call(
        ir,
        (report, parameters),
        true,
        Compute::I64,
        &from,
        Some(outside),
    );
}

/// The general registers that a function may change.
const CALLER_SAVED: [Gpr; 9] = [
    Gpr::RAX,
    Gpr::RCX,
    Gpr::RDX,
    Gpr::RSI,
    Gpr::RDI,
    Gpr::R8,
    Gpr::R9,
    Gpr::R10,
    Gpr::R11,
];

impl<P: Locations> Emit<'_, P> {
    /// Emits the call of a function.
    pub(super) fn emit_call(&mut self, native: Native, step: &Step, now: u32) {
        let busy = &step.from;
        let mut from = vec![];
        let operands = if native.masked { 2 } else { 3 };
        for s in busy.iter().take(operands).flatten() {
            from.push(self.register(*s, now, busy));
        }
        let done = self.asm.label();
        let condition = busy[2].filter(|_| native.masked).map(|s| match s {
            Src::Virt(v) => self.register_operand(v),
            Src::Const(_) => panic!("a mask is not a constant"),
        });
        self.release_dead_sources(step, now);
        let result = step.to.map(|to| self.result_register(to, now, busy));
        self.locations.select_group(usize::from(step.group));
        let report_arguments = if native.reports {
            self.locations.report_arguments()
        } else {
            None
        };
        let (width, evex) = (self.ir.target.width(), self.ir.target.evex);
        let lanes = self.ir.target.lanes();
        let tail = self.tail;
        let asm = &mut *self.asm;
        match condition {
            Some(Operand::Mask(k)) => {
                asm.push(Gpr::RAX);
                asm.kmov_to(Gpr::RAX, k);
                asm.cmp_number(Gpr::RAX, 0);
                asm.pop(Gpr::RAX);
                asm.jump_if(Condition::Equal, done);
            }
            Some(mask) => {
                asm.op(op::VPTEST, Width::Y, (mask, mask));
                asm.jump_if(Condition::Equal, done);
            }
            None => {}
        }
        let registers = asm.registers();
        // The layout of the frame: the slots, the vector registers, the masks.
        let slot = |n: usize| Mem::at(Gpr::RSP).plus((n * SLOT) as i32);
        let saved = |r: u8| slot(4 + usize::from(r));
        let mask = |k: u8| slot(4 + usize::from(registers)).plus(8 * i32::from(k));
        for r in CALLER_SAVED {
            asm.push(r);
        }
        asm.push(Gpr::RBP);
        asm.mov(Gpr::RBP, Gpr::RSP);
        asm.add_number(Gpr::RSP, -((4 + i32::from(registers) + 1) * SLOT as i32));
        asm.and_number(Gpr::RSP, -64);
        for (n, r) in from.iter().enumerate() {
            asm.op(op::VMOVUPS_STORE, width, (slot(n + 1), *r));
        }
        for r in 0..registers {
            asm.op(op::VMOVUPS_STORE, width, (saved(r), Vreg(r)));
        }
        for k in if evex { 1..8 } else { 0..0 } {
            asm.kmov_store(mask(k), Mask(k));
        }
        // Each argument's register is written after its last read.
        if let Some(report) = report_arguments {
            asm.lea(Gpr::R8, Mem::at(report.lane).plus(report.group));
            asm.add(Gpr::R8, report.first);
            asm.mov(Gpr::RCX, report.context);
        }
        match tail {
            None => asm.mov_number(Gpr::RSI, (COUNT as usize + lanes) as i64),
            Some(Tail::Bits { low, .. }) => asm.kmov_to(Gpr::RSI, low),
            Some(Tail::Memory { lanes, .. }) => {
                asm.lea(Gpr::RSI, Mem::at(lanes).plus(COUNT as i32))
            }
        }
        asm.mov_number(Gpr::RDX, native.parameters as i64);
        asm.mov(Gpr::RDI, Gpr::RSP);
        asm.mov_number(Gpr::RAX, native.f as i64);
        asm.zero_upper();
        asm.call(Gpr::RAX);
        for k in if evex { 1..8 } else { 0..0 } {
            asm.kmov_load(Mask(k), mask(k));
        }
        for r in 0..registers {
            let from = if Some(Vreg(r)) == result {
                slot(0)
            } else {
                saved(r)
            };
            asm.op(op::VMOVUPS, width, (Vreg(r), from));
        }
        asm.mov(Gpr::RSP, Gpr::RBP);
        asm.pop(Gpr::RBP);
        for r in CALLER_SAVED.into_iter().rev() {
            asm.pop(r);
        }
        asm.bind(done);
    }
}
