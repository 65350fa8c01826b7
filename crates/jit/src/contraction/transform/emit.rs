//! Emission of transforms.

use super::super::epilogue::RegisterEpilogue;
use super::{POINTERS, Transform};
use crate::emission::Target;
use crate::emission::lines::{Key, LaneLocation, Locations, Tail};
use crate::emission::stage::Body;
use kiln_base::prim::Binary;
use kiln_base::{Compute, DType, Scalar};
use kiln_kernel::bugs::bug;
use kiln_plan::schedule::lanes;
use kiln_plan::tile::{Inst, Reg};
use kiln_x86::{Asm, Condition, Gpr, Mask, Mem, Vreg};

const CALL: Gpr = Gpr::RDI;
const FROM: Gpr = Gpr::RSI;
const TO: Gpr = Gpr::RDX;
/// The number of remaining vectors; before the loop, the address of the list of accesses.
const COUNT: Gpr = Gpr::RCX;
/// The addresses of the epilogue's accesses.
const ACCESSES: [Gpr; POINTERS] = [
    Gpr::RAX,
    Gpr::R8,
    Gpr::R9,
    Gpr::R10,
    Gpr::R11,
    Gpr::RBX,
    Gpr::R12,
    Gpr::R13,
    Gpr::R14,
    Gpr::R15,
];
/// The number of registers for pinned constants, with EVEX.
const PINNED: u8 = 4;

/// Returns the code of a transform.
pub(in crate::contraction) fn emit(t: &Transform) -> Vec<u8> {
    let lanes = u32::from(lanes(t.level, DType::F32));
    let evex = lanes == 16;
    let target = Target { evex };
    let mut asm = Asm::new(evex);
    let body = body(t);
    let lines = body.lines(target, &body.code, &[]);
    let lines = lines.unwrap_or_else(|_| panic!("a transform that is not emitted"));
    let locations = t.epilogue.as_ref().map_or(&[][..], |f| &f.locations);
    let saved: Vec<Gpr> = (ACCESSES[..locations.len()].iter().copied())
        .filter(|r| Gpr::SAVED.contains(r))
        .collect();
    let frame_bytes = lines.stack().max(64) as i32;
    asm.enter(&saved, frame_bytes);
    asm.mov(FROM, Mem::at(CALL));
    asm.mov(TO, Mem::at(CALL).plus(16));
    asm.mov(COUNT, Mem::at(CALL).plus(24));
    for (i, r) in ACCESSES.iter().enumerate().take(locations.len()) {
        asm.mov(*r, Mem::at(COUNT).plus(8 * i as i32));
    }
    let register_count = asm.registers();
    let pins = if evex { PINNED } else { 0 };
    let pins: Vec<Vreg> = (register_count - pins..register_count).map(Vreg).collect();
    let free: Vec<Vreg> = (0..register_count - pins.len() as u8).map(Vreg).collect();
    let pinned = lines.pin_constants(&mut asm, &pins);
    let group = |asm: &mut Asm, tail: Option<Tail>| {
        let stack = Mem::at(Gpr::RSP);
        lines.emit(asm, &mut Squares(t), (&free, stack), &pinned, tail);
    };
    if t.channels >= lanes {
        asm.mov_number(COUNT, i64::from(t.channels / lanes));
        let top = asm.here();
        group(&mut asm, None);
        for (r, size) in [(FROM, t.reads.size()), (TO, 4)] {
            asm.add_number(r, (size * lanes as usize) as i32);
        }
        for (location, r) in locations.iter().zip(ACCESSES) {
            if let Some(p) = location.as_ref().filter(|p| p.column != 0) {
                asm.add_number(r, p.size as i32 * lanes as i32);
            }
        }
        asm.add_number(COUNT, -1);
        asm.jump_if(Condition::NotEqual, top);
    }
    if !t.channels.is_multiple_of(lanes) {
        let rest = bug(
            "the last channel is not transformed",
            t.channels % lanes,
            |n| n - 1,
        );
        let tail = tail(&mut asm, evex, rest);
        group(&mut asm, Some(tail));
    }
    asm.leave(&saved, frame_bytes);
    asm.finish()
}

/// Returns the tail of `lanes` lanes.
fn tail(asm: &mut Asm, evex: bool, lanes: u32) -> Tail {
    if evex {
        let (low, high) = (Mask(1), Mask(2));
        asm.mov_number(CALL, (1 << lanes) - 1);
        asm.kmov(low, CALL);
        // A vector holds half as many elements of 64 bits.
        asm.kshiftr(high, low, 8);
        return Tail::Bits { low, high };
    }
    Tail::in_memory(asm, lanes, CALL)
}

/// The numbering of accesses: those of the square, those of the result, and for each result those of its epilogue.
struct Squares<'a>(&'a Transform);

impl Locations for Squares<'_> {
    fn location(&mut self, _: &mut Asm, key: Key) -> LaneLocation {
        let Squares(t) = self;
        let Key::Access(access) = key else {
            panic!("{key:?} in a transform");
        };
        let (side, kept) = (t.matrix[0].len() as i64, i64::from(t.kept[1]));
        let (n, squares) = (i64::from(access), side * side);
        let at = |base: Gpr, [row, column]: [i64; 2], n: i64, across: i64| {
            let at = n / across * row + n % across * column;
            Mem::at(base).plus(at as i32)
        };
        if n < squares {
            return LaneLocation::Vector(at(FROM, t.from, n, side));
        }
        let n = n - squares;
        let Some(epilogue) = &t.epilogue else {
            return LaneLocation::Vector(at(TO, t.to, n, kept));
        };
        let per_result = epilogue.locations.len() as i64;
        let access = (n % per_result) as usize;
        let Some(location) = &epilogue.locations[access] else {
            panic!("results are in registers");
        };
        let strides = t.to.map(|n| n * location.row * location.size as i64);
        let at = at(ACCESSES[access], strides, n / per_result, kept);
        match location.column {
            0 => LaneLocation::Splat(at),
            _ => LaneLocation::Vector(at),
        }
    }
}

/// Returns the code for a vector of each element; its first registers are those of the epilogue.
fn body(t: &Transform) -> Body {
    let epilogue = t.epilogue.as_deref();
    let mut body = epilogue.map(|f| f.body.clone()).unwrap_or_default();
    body.code.clear();
    body.dtypes.clear();
    let side = t.matrix[0].len();
    let [down, across] = t.kept.map(usize::from);
    let mut sums = vec![vec![]; down];
    for j in 0..side {
        let column: Vec<Reg> = (0..side)
            .map(|i| {
                let (dst, access) = (new_register(&mut body), (i * side + j) as u16);
                body.code.push(Inst::Load { dst, access });
                dst
            })
            .collect();
        for (row, sums) in t.matrix.iter().zip(&mut sums) {
            let dst = new_register(&mut body);
            let last = sum(&mut body, row, &column, dst);
            body.code.push(last);
            sums.push(dst);
        }
    }
    body.dtypes.resize(side * side, t.reads);
    for sums in &sums {
        for row in &t.matrix[..across] {
            let access = body.dtypes.len() as u16;
            match epilogue {
                Some(epilogue) => add_epilogue(&mut body, epilogue, row, sums),
                None => {
                    let src = new_register(&mut body);
                    let last = sum(&mut body, row, sums, src);
                    body.dtypes.push(DType::F32);
                    body.code.extend([last, Inst::Store { access, src }]);
                }
            }
        }
    }
    body
}

/// Adds the epilogue of a result to the code. The result replaces the loads of the accumulators.
fn add_epilogue(body: &mut Body, epilogue: &RegisterEpilogue, row: &[f64], x: &[Reg]) {
    let first = body.dtypes.len() as u16;
    body.dtypes.extend(&epilogue.body.dtypes);
    for inst in &epilogue.body.code {
        let mut inst = inst.clone();
        match &mut inst {
            Inst::Load { dst, access } if epilogue.locations[usize::from(*access)].is_none() => {
                let dst = *dst;
                inst = sum(body, row, x, dst);
            }
            Inst::Load { access, .. } | Inst::Store { access, .. } => *access += first,
            _ => {}
        }
        body.code.push(inst);
    }
}

/// Returns a new register for f32.
fn new_register(body: &mut Body) -> Reg {
    body.registers.push(Compute::F32);
    Reg(body.registers.len() as u16 - 1)
}

/// Returns the register of a coefficient.
fn constant(body: &mut Body, x: f64) -> Reg {
    let x = Scalar::Float(f64::from(x as f32));
    // The epilogue's constants may have other types.
    let is_equal =
        |(r, c): &&(Reg, Scalar)| *c == x && body.registers[usize::from(r.0)] == Compute::F32;
    if let Some((r, _)) = body.constants.iter().find(is_equal) {
        return *r;
    }
    let r = new_register(body);
    body.constants.push((r, x));
    r
}

/// Adds `Σ coefficient · x` to the code, except the last instruction, which writes `dst`; returns that one.
fn sum(body: &mut Body, row: &[f64], x: &[Reg], dst: Reg) -> Inst {
    let mut terms: Vec<(f64, Reg)> = row.iter().copied().zip(x.iter().copied()).collect();
    terms.retain(|(c, _)| *c != 0.0);
    // A term with coefficient 1 comes first.
    terms.sort_by_key(|(c, _)| *c != 1.0);
    let (first, others) = (terms[0], &terms[1..]);
    let mut operation = (Binary::Mul, first.1, constant(body, first.0));
    for (i, (c, x)) in others.iter().enumerate() {
        let sum = match (i, first.0) {
            (0, 1.0) => first.1,
            _ => push(body, operation),
        };
        let term = match c.abs() {
            1.0 => *x,
            magnitude => {
                let magnitude = constant(body, magnitude);
                push(body, (Binary::Mul, *x, magnitude))
            }
        };
        let is_negative = bug("a coefficient has another sign", *c < 0.0, |is_negative| {
            !is_negative && c.abs() != 1.0
        });
        let op = if is_negative {
            Binary::Sub
        } else {
            Binary::Add
        };
        operation = (op, sum, term);
    }
    binary(dst, operation)
}

/// An instruction's operation and operands.
type Operation = (Binary, Reg, Reg);

fn push(body: &mut Body, operation: Operation) -> Reg {
    let dst = new_register(body);
    body.code.push(binary(dst, operation));
    dst
}

fn binary(dst: Reg, (op, a, b): Operation) -> Inst {
    Inst::Binary {
        op,
        dst,
        a,
        b,
        site: 0,
    }
}
