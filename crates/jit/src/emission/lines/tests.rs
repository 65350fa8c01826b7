//! Tests of an epilogue after a product.

use super::*;
use kiln_base::prim::{Binary, Unary};
use kiln_kernel::simd::Features;
use kiln_x86::{Gpr, Width};

/// The locations of an epilogue: the accumulator is in a register, a bias is one element, a residual is in memory.
struct EpilogueLocations {
    accumulator: Vreg,
}

impl Locations for EpilogueLocations {
    fn location(&mut self, _: &mut Asm, key: Key) -> LaneLocation {
        match key {
            Key::Access(0) => LaneLocation::Register {
                registers: [self.accumulator; 2],
                last: true,
            },
            Key::Access(1) => LaneLocation::Splat(Mem::at(Gpr::RSI)),
            Key::Access(2) => LaneLocation::Vector(Mem::at(Gpr::RDX)),
            Key::Access(3) => LaneLocation::Vector(Mem::at(Gpr::RCX)),
            key => panic!("{key:?}"),
        }
    }
}

/// Computes `gelu(x + bias) · residual + x`, stored as bf16, with `free` registers.
fn epilogue(target: Target, free: usize, pins: usize) -> [u8; 64] {
    let r = |n| Reg(n);
    let (a, b, site) = (r(0), r(1), 0);
    let load = |n| Inst::Load {
        dst: r(n),
        access: n,
    };
    let binary = |op, dst, a, b| Inst::Binary {
        op,
        dst: r(dst),
        a,
        b,
        site,
    };
    let op = Unary::Erf;
    let code = [
        load(0),
        load(1),
        load(2),
        binary(Binary::Add, 3, a, b),
        binary(Binary::Mul, 4, r(3), r(8)),
        Inst::Unary {
            op,
            dst: r(5),
            a: r(4),
        },
        binary(Binary::Mul, 6, r(5), r(3)),
        binary(Binary::Mul, 6, r(6), r(2)),
        binary(Binary::Add, 7, r(6), r(0)),
        Inst::Store {
            access: 3,
            src: r(7),
        },
    ];
    let context = LinesContext {
        registers: &[Compute::F32; 9],
        constants: &[(r(8), Scalar::Float(0.5f64.sqrt()))],
        slots: &[],
        dtypes: &|access| [DType::F32, DType::F32, DType::F16, DType::BF16][access as usize],
        is_uniform: &|_| false,
    };
    let lines = Lines::new(target, &context, &code, &[]).unwrap();
    let registers: Vec<Vreg> = (1..=free as u8).map(Vreg).collect();
    let mut asm = Asm::new(target.evex);
    let room = lines.stack() as i32;
    asm.enter(&[], room);
    asm.op(op::VMOVUPS, target.width(), (Vreg(0), Mem::at(Gpr::RDI)));
    let (pinned, free) = registers.split_at(pins);
    let pinned = lines.pin_constants(&mut asm, pinned);
    let mut locations = EpilogueLocations {
        accumulator: Vreg(0),
    };
    let memory = (free, Mem::at(Gpr::RSP));
    lines.emit(&mut asm, &mut locations, memory, &pinned, None);
    asm.leave(&[], room);
    let x: [f32; 16] = std::array::from_fn(|i| i as f32 * 0.3 - 2.0);
    let residual: [half::f16; 16] =
        std::array::from_fn(|i| half::f16::from_f32(1.0 + i as f32 / 4.0));
    let (bias, mut out) = ([0.25f32], [0u8; 64]);
    let bits = residual.map(half::f16::to_bits);
    let arguments = [
        x.as_ptr() as u64,
        bias.as_ptr() as u64,
        bits.as_ptr() as u64,
        out.as_mut_ptr() as u64,
    ];
    let mut machine = kiln_x86_interpreter::Machine::new()
        .readable(&x)
        .readable(&bias)
        .readable(&bits)
        .writable(&mut out);
    machine.call(&asm.finish(), &arguments).unwrap();
    for i in 0..target.lanes() {
        let y = x[i] + bias[0];
        let erf = kiln_base::special::erf(f64::from(y * 0.5f32.sqrt())) as f32;
        let expected = erf * y * residual[i].to_f32() + x[i];
        let actual = half::bf16::from_le_bytes([out[2 * i], out[2 * i + 1]]).to_f32();
        assert!(
            (actual - expected).abs() <= expected.abs() / 100.0 + 1e-3,
            "{actual} {expected}"
        );
    }
    out
}

#[test]
fn epilogues_give_the_same_bits_with_few_registers() {
    for level in [Features::AVX2, Features::AVX512] {
        let Some(target) = Target::of(level).filter(|_| level.is_supported()) else {
            continue;
        };
        let max = if target.width() == Width::Z { 31 } else { 15 };
        let expected = epilogue(target, max, 0);
        for free in Lines::MIN_REGISTERS..max {
            assert_eq!(epilogue(target, free, 0), expected, "{free} registers");
        }
        assert_eq!(epilogue(target, max, 5), expected, "pinned constants");
    }
}
