//! Every encoding of every vector instruction, with every kind of operand, on special numbers.

use crate::forms::{self, Choice, Form};
use crate::harness::{GPRS, Registers, difference, emit, interpreted, native, runs_here, wrapped};
use crate::inputs;
use fastrand::Rng;
use kiln_x86::{Code, Gpr, Mask, Mem, Operand, Vreg, Width, disassemble, op};

/// The bytes around the address in `RDX`.
const DATA: usize = 4096;

/// The random cases of each encoding, and the contents of registers for each.
const CASES: usize = 3;
const INPUTS: usize = 24;

/// Memory for one run, aligned because some instructions need it.
#[derive(Clone, PartialEq)]
#[repr(align(64))]
struct Data([u8; DATA]);

struct Case {
    code: Vec<u8>,
    text: String,
    /// The instruction's mask, if it has one.
    mask: Option<Mask>,
    /// The vector of a gather's addresses, and the bytes of its lanes.
    index: Option<(Vreg, usize)>,
}

/// One instruction with random operands, memory at `RDX + R11`.
fn case(form: &Form, choice: Choice, rng: &mut Rng) -> Case {
    let m = Mem::at(Gpr::RDX).plus(64 * rng.i32(0..4));
    let m = if form.gathers() {
        m.plus(1024)
    } else {
        m.index(Gpr::R11, 1 << rng.u8(..4))
    };
    let operands = form.operands(choice, rng, &GPRS[..5], m);
    let mask = form.mask(choice, rng);
    let index = match (form.gathers(), operands[0]) {
        (true, Operand::Vector(to)) => Some((
            form.index(to),
            if form.name.contains("vm64") { 8 } else { 4 },
        )),
        _ => None,
    };
    let code = wrapped(form.evex, |a| emit(a, form, operands.clone(), mask));
    let text = format!("{} {operands:?} {mask:?}", form.name);
    Case {
        code,
        text,
        mask: mask.map(|(k, _)| k),
        index,
    }
}

/// Registers before, with addresses that lie within the data.
fn before(case: &Case, rng: &mut Rng) -> Registers {
    let mut before = Registers::random(rng);
    // R11 is an index.
    before.gprs[5] = 64 * rng.u64(..2);
    if let Some((index, bytes)) = case.index {
        let index = &mut before.vectors[usize::from(index.0)];
        for lane in index.chunks_exact_mut(bytes) {
            let offset = rng.i64(-100..127).to_le_bytes();
            lane.copy_from_slice(&offset[..bytes]);
        }
    }
    if let Some(mask) = case.mask {
        let shift = rng.u32(..64);
        let masks = [
            0,
            !0,
            1,
            1 << rng.u8(..16),
            rng.u64(..) >> shift,
            rng.u64(..),
            rng.u64(..),
        ];
        before.masks[usize::from(mask.0)] = masks[rng.usize(..masks.len())];
    }
    before
}

/// Runs a case with random contents of registers and memory on both and compares.
fn compare(case: &Case, code: Option<&Code>, rng: &mut Rng) {
    let before = before(case, rng);
    let mut data = Data([0; DATA]);
    (data.0.chunks_exact_mut(64)).for_each(|line| line.copy_from_slice(&inputs::line(rng)));
    let mut same = data.clone();
    let here = interpreted(&case.code, &before, &mut same.0);
    let here = here.unwrap_or_else(|fault| panic!("{}: {fault}", case.text));
    let Some(code) = code else { return };
    let there = native(code, &before, &mut data.0);
    if there != here || data != same {
        let at: Vec<usize> = (0..DATA).filter(|i| data.0[*i] != same.0[*i]).collect();
        panic!(
            "{}\n{}memory differs at {at:?}\n{}",
            case.text,
            difference(&there, &here, &before),
            disassemble(&case.code)
        );
    }
}

#[test]
fn instructions_do_what_the_processor_does() {
    let mut rng = Rng::with_seed(7);
    let mut skipped = Vec::new();
    for form in forms::all() {
        for choice in form.choices() {
            for _ in 0..CASES {
                let case = case(&form, choice, &mut rng);
                let code = runs_here(&case.code).then(|| Code::new(&case.code).unwrap());
                if code.is_none() {
                    skipped.push(form.name.clone());
                }
                (0..INPUTS).for_each(|_| compare(&case, code.as_ref(), &mut rng));
            }
        }
    }
    skipped.dedup();
    if !skipped.is_empty() {
        println!("not compared, because this processor has them not: {skipped:?}");
    }
}

/// Every value of an immediate.
#[test]
fn immediates_do_what_the_processor_does() {
    let mut rng = Rng::with_seed(8);
    for form in forms::all() {
        let by_immediate = [
            op::VCMPPS,
            op::VCMPPD,
            op::VROUNDPS,
            op::VROUNDPD,
            op::VCVTPS2PH,
        ];
        let named = by_immediate.iter().any(|o| o.name == form.op.name);
        if !named || form.width != Width::Y {
            continue;
        }
        let values = match (form.evex, &form.op.name[..3]) {
            (false, "VCM") => 32,
            (false, "VRO") => 16,
            (_, "VCV") => 8,
            _ => 256u16,
        };
        for n in 0..values {
            let mut operands = form.operands(Choice::Register, &mut rng, &GPRS, Mem::at(Gpr::RDX));
            let last = operands.len() - 1;
            operands[last] = (n as u8).into();
            let code = wrapped(form.evex, |a| emit(a, &form, operands.clone(), None));
            let text = format!("{} {operands:?}", form.name);
            let case = Case {
                code,
                text,
                mask: None,
                index: None,
            };
            let code = runs_here(&case.code).then(|| Code::new(&case.code).unwrap());
            (0..16).for_each(|_| compare(&case, code.as_ref(), &mut rng));
        }
    }
}
