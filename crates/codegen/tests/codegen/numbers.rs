//! The numbers that interpreters of kernels compute with.

use kiln_base::prim::{self, Binary, RandomKind, Reduction, Unary};
use kiln_base::{Compute, DType, Scalar, float_to_int, round_float, wrap_int};

/// A number in one of the compute types; masks are 0 and 1. Registers hold poison before they are written.
#[derive(Copy, Clone, Debug)]
pub enum Num {
    F(f64),
    I(i64),
    Poison,
}

impl Num {
    pub fn f(self) -> f64 {
        match self {
            Num::F(x) => x,
            other => panic!("{other:?} as a float"),
        }
    }

    pub fn i(self) -> i64 {
        match self {
            Num::I(x) => x,
            other => panic!("{other:?} as an integer"),
        }
    }

    /// Rounds or wraps to a value of a register's type.
    pub fn fit(self, c: Compute) -> Num {
        match (self, c) {
            (Num::F(x), Compute::F32) => Num::F(x as f32 as f64),
            (Num::F(x), Compute::F64) => Num::F(x),
            (Num::I(x), Compute::I32) => Num::I(x as i32 as i64),
            (Num::I(x), Compute::I64) => Num::I(x),
            (Num::I(x), Compute::Mask) => Num::I((x != 0) as i64),
            (n, c) => panic!("{n:?} in a {} register", c.name()),
        }
    }
}

pub fn scalar(s: Scalar, c: Compute) -> Num {
    match c.is_float() {
        true => Num::F(s.as_f64()),
        false => Num::I(s.as_i64()),
    }
}

/// True if a min or max reduction prefers `x` to the best number so far. A NaN beats every number.
pub fn beats(op: Reduction, x: Num, best: Num) -> bool {
    match (x, best) {
        (Num::F(x), Num::F(b)) if x.is_nan() || b.is_nan() => x.is_nan() && !b.is_nan(),
        (Num::F(x), Num::F(b)) => {
            if op == Reduction::Min {
                x < b
            } else {
                x > b
            }
        }
        _ => {
            if op == Reduction::Min {
                x.i() < best.i()
            } else {
                x.i() > best.i()
            }
        }
    }
}

/// Evaluates a primitive; `mask` is true if the operand is a mask.
pub fn unary(op: Unary, a: Num, mask: bool) -> Num {
    match a {
        Num::F(x) if op.gives_mask() => Num::I(op.eval_f64(x) as i64),
        Num::F(x) => Num::F(op.eval_f64(x)),
        Num::I(x) if mask => Num::I(op.eval_f64(x as f64) as i64),
        Num::I(x) => Num::I(op.eval_i64(x).unwrap()),
        Num::Poison => panic!("{} of poison", op.name()),
    }
}

/// Evaluates a primitive; `None` on an integer division by zero.
pub fn binary(op: Binary, a: Num, b: Num) -> Option<Num> {
    Some(match (a, b) {
        (Num::F(a), Num::F(b)) if op.gives_mask() => Num::I(op.eval_f64(a, b) as i64),
        (Num::F(a), Num::F(b)) => Num::F(op.eval_f64(a, b)),
        _ => Num::I(op.eval_i64(a.i(), b.i()).ok()?),
    })
}

pub fn convert(a: Num, from: DType, to: DType) -> Num {
    match (a, to.is_float()) {
        (Num::F(x), true) => Num::F(round_float(x, to)),
        (Num::F(x), false) => Num::I(float_to_int(x, to)),
        (Num::I(x), true) if from == DType::U64 => Num::F(round_float(x as u64 as f64, to)),
        (Num::I(x), true) => Num::F(round_float(x as f64, to)),
        (Num::I(x), false) => Num::I(wrap_int(x, to)),
        (Num::Poison, _) => panic!("a cast of poison"),
    }
}

/// Returns a random number in a register of this type.
pub fn random(kind: RandomKind, counter: u64, seed: u64, c: Compute) -> Num {
    let words = prim::random_words(kind, c.size() == 8, counter, seed);
    match (kind, c) {
        (RandomKind::Bits, _) => Num::I(prim::random_bits(words)),
        (RandomKind::Uniform, Compute::F64) => Num::F(prim::random_uniform_f64(words)),
        (RandomKind::Uniform, _) => Num::F(prim::random_uniform_f32(words) as f64),
        (RandomKind::Normal, Compute::F64) => Num::F(prim::random_normal_f64(words)),
        (RandomKind::Normal, _) => Num::F(prim::random_normal_f32(words)),
    }
}
