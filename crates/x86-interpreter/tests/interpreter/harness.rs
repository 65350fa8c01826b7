//! Runs one instruction on the processor and on the interpreter, with all registers from a buffer and back.

use fastrand::Rng;
use iced_x86::{CpuidFeature, Decoder, DecoderOptions};
use kiln_x86::{Asm, Code, Gpr, Mask, Mem, Operand, Vreg, Width, op};
use kiln_x86_interpreter::{Fault, Machine};

/// Contents of registers: 32 vectors, 8 masks, 8 general ones.
#[derive(Clone, PartialEq)]
#[repr(C, align(64))]
pub struct Registers {
    pub vectors: [[u8; 64]; 32],
    pub masks: [u64; 8],
    pub gprs: [u64; 8],
}

/// The registers that are loaded and stored; the others hold addresses.
pub const GPRS: [Gpr; 6] = [Gpr::RAX, Gpr::RCX, Gpr::R8, Gpr::R9, Gpr::R10, Gpr::R11];

impl Registers {
    pub fn zero() -> Registers {
        Registers {
            vectors: [[0; 64]; 32],
            masks: [0; 8],
            gprs: [0; 8],
        }
    }

    pub fn random(rng: &mut Rng) -> Registers {
        Registers {
            vectors: std::array::from_fn(|_| crate::inputs::line(rng)),
            masks: std::array::from_fn(|_| rng.u64(..)),
            gprs: std::array::from_fn(|_| rng.u64(..)),
        }
    }

    pub fn words(&self) -> &[u64] {
        // SAFETY: the fields are numbers without gaps, and the length is that of the struct.
        unsafe {
            std::slice::from_raw_parts(std::ptr::from_ref(self).cast(), size_of::<Registers>() / 8)
        }
    }

    pub fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as above, and every bit pattern is a value.
        unsafe {
            std::slice::from_raw_parts_mut(
                std::ptr::from_mut(self).cast(),
                size_of::<Registers>() / 8,
            )
        }
    }
}

/// Code for `f(registers before, registers after, memory)` around the given instructions, which find memory at `RDX`.
pub fn wrapped(evex: bool, body: impl FnOnce(&mut Asm)) -> Vec<u8> {
    let mut a = Asm::new(evex);
    let width = if evex { Width::Z } else { Width::Y };
    let [before, after] = [Mem::at(Gpr::RDI), Mem::at(Gpr::RSI)];
    let masks = |m: Mem, i: u8| m.plus(32 * 64 + 8 * i32::from(i));
    let gprs = |m: Mem, i: usize| m.plus(33 * 64 + 8 * i as i32);
    for i in 0..if evex { 8 } else { 0 } {
        a.mov(Gpr::RAX, masks(before, i));
        a.kmov(Mask(i), Gpr::RAX);
    }
    for i in 0..a.registers() {
        a.op(
            op::VMOVUPS,
            width,
            (Vreg(i), before.plus(64 * i32::from(i))),
        );
    }
    for (i, r) in GPRS.into_iter().enumerate() {
        a.mov(r, gprs(before, i));
    }
    body(&mut a);
    for (i, r) in GPRS.into_iter().enumerate() {
        a.store(gprs(after, i), r);
    }
    for i in 0..a.registers() {
        a.op(
            op::VMOVUPS_STORE,
            width,
            (after.plus(64 * i32::from(i)), Vreg(i)),
        );
    }
    for i in 0..if evex { 8 } else { 0 } {
        a.kmov_to(Gpr::RAX, Mask(i));
        a.store(masks(after, i), Gpr::RAX);
    }
    a.leave(&[], 0);
    a.finish()
}

/// The native type of `wrapped` code.
pub type Native = extern "sysv64" fn(*const Registers, *mut Registers, *mut u8);

/// Runs the code on the processor.
pub fn native(code: &Code, before: &Registers, data: &mut [u8]) -> Registers {
    // SAFETY: `wrapped` made the code, a function of these arguments, and the instruction under test uses `data`.
    let f: Native = unsafe { std::mem::transmute(code.entry()) };
    let mut after = Registers::zero();
    f(before, &mut after, data.as_mut_ptr());
    after
}

/// Runs the code on the interpreter.
pub fn interpreted(code: &[u8], before: &Registers, data: &mut [u8]) -> Result<Registers, Fault> {
    let mut after = Registers::zero();
    let arguments = [
        before.words().as_ptr() as u64,
        after.words_mut().as_mut_ptr() as u64,
        data.as_mut_ptr() as u64,
    ];
    Machine::new()
        .readable(before.words())
        .writable(after.words_mut())
        .writable(data)
        .call(code, &arguments)?;
    Ok(after)
}

/// Describes the differences between two runs.
pub fn difference(native: &Registers, interpreted: &Registers, before: &Registers) -> String {
    let mut text = String::new();
    for i in 0..32 {
        let [n, m] = [native, interpreted].map(|r| r.vectors[i]);
        if n != m {
            text += &format!(
                "vector {i}:\n was    {:02x?}\n native {n:02x?}\n here   {m:02x?}\n",
                before.vectors[i]
            );
        }
    }
    let rest = [before, native, interpreted].map(|r| (r.masks, r.gprs));
    if rest[1] != rest[2] {
        text += &format!(
            "masks and general registers:\n was {:x?}\n native {:x?}\n here {:x?}\n",
            rest[0], rest[1], rest[2]
        );
    }
    text
}

/// True if the processor has every feature that the code needs.
pub fn runs_here(code: &[u8]) -> bool {
    let decoder = Decoder::with_ip(64, code, 0, DecoderOptions::NONE);
    let mut features = decoder.into_iter().flat_map(|i| i.cpuid_features());
    features.all(|f| match f {
        CpuidFeature::AVX => is_x86_feature_detected!("avx"),
        CpuidFeature::AVX2 => is_x86_feature_detected!("avx2"),
        CpuidFeature::FMA => is_x86_feature_detected!("fma"),
        CpuidFeature::F16C => is_x86_feature_detected!("f16c"),
        CpuidFeature::AVX512F => is_x86_feature_detected!("avx512f"),
        CpuidFeature::AVX512VL => is_x86_feature_detected!("avx512vl"),
        CpuidFeature::AVX512BW => is_x86_feature_detected!("avx512bw"),
        CpuidFeature::AVX512DQ => is_x86_feature_detected!("avx512dq"),
        CpuidFeature::AVX512CD => is_x86_feature_detected!("avx512cd"),
        CpuidFeature::AVX512_BF16 => is_x86_feature_detected!("avx512bf16"),
        CpuidFeature::AVX512_VBMI => is_x86_feature_detected!("avx512vbmi"),
        CpuidFeature::AVX512_VBMI2 => is_x86_feature_detected!("avx512vbmi2"),
        CpuidFeature::AVX512_VNNI => is_x86_feature_detected!("avx512vnni"),
        CpuidFeature::AVX512_BITALG => is_x86_feature_detected!("avx512bitalg"),
        CpuidFeature::AVX512_VPOPCNTDQ => is_x86_feature_detected!("avx512vpopcntdq"),
        CpuidFeature::POPCNT => is_x86_feature_detected!("popcnt"),
        CpuidFeature::CMOV | CpuidFeature::INTEL286 | CpuidFeature::INTEL486 => true,
        CpuidFeature::BMI1 => is_x86_feature_detected!("bmi1"),
        CpuidFeature::BMI2 => is_x86_feature_detected!("bmi2"),
        CpuidFeature::INTEL8086
        | CpuidFeature::INTEL386
        | CpuidFeature::X64
        | CpuidFeature::SSE => true,
        _ => false,
    })
}

/// A vector instruction, masked or not.
pub fn emit(
    a: &mut Asm,
    form: &crate::forms::Form,
    operands: Vec<Operand>,
    mask: Option<(Mask, bool)>,
) {
    let operands = crate::forms::List(operands);
    match mask {
        Some(mask) => a.masked(form.op, form.width, mask, operands),
        None => a.op(form.op, form.width, operands),
    }
}
