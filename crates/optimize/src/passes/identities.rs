//! Pointwise operations that do nothing or that a simpler one can replace:
//!
//! ```text
//! neutral_number   x · 1 = x    x / 1 = x    x − 0 = x    x + (−0) = x    pow(x, 1) = x
//!                  max(x, −∞) = x    min(x, ∞) = x    clamp(x, −∞, ∞) = x
//!                  of integers also x + 0, x | 0, x ^ 0, x << 0 and x >> 0; of bool x & true and x | false
//! signs            −(−x) = x    a + (−b) = a − b    a − (−b) = a + b    (−a) · (−b) = a · b
//!                  (−a) / (−b) = a / b    |−x| = |x|    (−x)² = x²    |x|² = x²    x · (−1) = −x
//! idempotent       f(f(x)) = f(x) for |·|, sign, relu, relu6 and rounding    max(x, x) = x    x & x = x
//!                  ¬¬x = x
//! choice           c ? x : x = x    ¬c ? a : b = c ? b : a    c ? (c ? a : _) : b = c ? a : b
//! power            pow(x, 2) = x²    x / 2ᵏ = x · 2⁻ᵏ
//! exact_cast       cast(cast(x, wider), t) = cast(x, t)
//! ```
//!
//! They hold for every number, NaN, infinities and −0 among them. So `x + 0` (which turns −0 into 0), `x · 0` and
//! `x − x` are not here. The sign of a NaN has no meaning. A cast is wider if it keeps every value of its operand's
//! dtype; a cast to a narrower one always rounds or wraps.

use crate::{Pass, Patch, Run, View, rules};
use kiln_ir::ops::{Cast, Pointwise};
use kiln_ir::{Builder, DType, Kind, NodeId, Op, Pw, Value};

/// The pass.
pub const PASS: Pass = Pass {
    name: "identities",
    about: "removes pointwise operations that do nothing",
    exact: true,
    run: Run::Rules(rules![
        neutral_number,
        signs,
        idempotent,
        choice,
        power,
        exact_cast
    ]),
};

/// Returns the operand of a value that `expected` computes.
fn operand_of(view: &View<'_>, v: Value, expected: Pw) -> Option<Value> {
    let (pw, operands) = view.row(v.node)?;
    (pw == expected).then(|| operands[0])
}

fn neutral_number(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (pw, x) = view.row(id)?;
    let kind = view.fact(x[0]).dtype.kind();
    let float = kind == Kind::Float;
    let left = |number: f64| view.holds(x[0], number);
    let right = |number: f64| view.holds(x[1], number);
    let (right_is, left_is) = match pw {
        Pw::Mul => (right(1.0), left(1.0)),
        Pw::Div | Pw::Pow => (right(1.0), false),
        Pw::Sub => (right(0.0), false),
        Pw::Add if float => (right(-0.0), left(-0.0)),
        Pw::Add | Pw::Or | Pw::Xor => (right(0.0), left(0.0)),
        Pw::And if kind == Kind::Bool => (right(1.0), left(1.0)),
        Pw::Shl | Pw::Shr => (right(0.0), false),
        Pw::Maximum if float => (right(f64::NEG_INFINITY), left(f64::NEG_INFINITY)),
        Pw::Minimum if float => (right(f64::INFINITY), left(f64::INFINITY)),
        Pw::First | Pw::Surrogate => (true, false),
        Pw::Clamp | Pw::Clip if float => {
            let open = right(f64::NEG_INFINITY) && view.holds(x[2], f64::INFINITY);
            (open, false)
        }
        _ => return None,
    };
    match (right_is, left_is) {
        (true, _) => view.replace(id, x[0]),
        (_, true) => view.replace(id, x[1]),
        _ => None,
    }
}

fn signs(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (pw, x) = view.row(id)?;
    let minus = |i: usize| operand_of(view, x[i], Pw::Neg);
    let dtype = view.fact(x[0]).dtype;
    let as_op = |pw: Pw, operands: &[Value]| view.replace_with(id, Pointwise(pw), operands);
    match pw {
        Pw::Neg => view.replace(id, minus(0)?),
        Pw::Add => match (minus(0), minus(1)) {
            (_, Some(b)) => as_op(Pw::Sub, &[x[0], b]),
            (Some(a), None) => as_op(Pw::Sub, &[x[1], a]),
            (None, None) => None,
        },
        Pw::Sub => as_op(Pw::Add, &[x[0], minus(1)?]),
        Pw::Mul if view.holds(x[1], -1.0) => as_op(Pw::Neg, &[x[0]]),
        Pw::Mul if view.holds(x[0], -1.0) => as_op(Pw::Neg, &[x[1]]),
        Pw::Mul => as_op(pw, &[minus(0)?, minus(1)?]),
        Pw::Div if dtype.is_float() => as_op(pw, &[minus(0)?, minus(1)?]),
        Pw::Abs if dtype.is_float() => as_op(pw, &[minus(0)?]),
        Pw::Square => as_op(pw, &[minus(0).or_else(|| operand_of(view, x[0], Pw::Abs))?]),
        _ => None,
    }
}

fn idempotent(view: &View<'_>, id: NodeId) -> Option<Patch> {
    const ROUNDS: [Pw; 4] = [Pw::Floor, Pw::Ceil, Pw::Round, Pw::Trunc];
    let (pw, x) = view.row(id)?;
    let noop = match pw {
        Pw::Abs | Pw::Sign | Pw::Relu | Pw::Relu6 => operand_of(view, x[0], pw).is_some(),
        Pw::Floor | Pw::Ceil | Pw::Round | Pw::Trunc => view
            .row(x[0].node)
            .is_some_and(|(below, _)| ROUNDS.contains(&below)),
        Pw::Maximum | Pw::Minimum | Pw::Fmax | Pw::Fmin | Pw::And | Pw::Or => x[0] == x[1],
        Pw::Not => return view.replace(id, operand_of(view, x[0], Pw::Not)?),
        _ => false,
    };
    if noop { view.replace(id, x[0]) } else { None }
}

fn choice(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (Pw::Select, &[c, a, b]) = view.row(id)? else {
        return None;
    };
    let select = |operands: &[Value]| view.replace_with(id, Pointwise(Pw::Select), operands);
    if a == b || view.holds(c, 1.0) {
        return view.replace(id, a);
    }
    if view.holds(c, 0.0) {
        return view.replace(id, b);
    }
    if let Some(c) = operand_of(view, c, Pw::Not) {
        return select(&[c, b, a]);
    }
    let select_of = |v: Value| match view.row(v.node) {
        Some((Pw::Select, x)) if x[0] == c => Some((x[1], x[2])),
        _ => None,
    };
    match (select_of(a), select_of(b)) {
        (Some((a, _)), _) => select(&[c, a, b]),
        (_, Some((_, b))) => select(&[c, a, b]),
        _ => None,
    }
}

fn power(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let (pw, x) = view.row(id)?;
    let dtype = view.fact(x[0]).dtype;
    if !dtype.is_float() {
        return None;
    }
    match pw {
        Pw::Pow if view.holds(x[1], 2.0) => view.replace_with(id, Pointwise(Pw::Square), &x[..1]),
        Pw::Div => {
            let number = view.as_full(x[1])?;
            let inverse = inverse_of_power(number.value.as_f64(), dtype)?;
            let mut patch = view.patch(id);
            let inverse = patch.full(inverse, dtype, &number.shape).ok()?;
            let product = patch.pointwise(Pw::Mul, &[x[0], inverse]).ok()?;
            Some(patch.replacing(id.value(), product))
        }
        _ => None,
    }
}

/// 1 / x for a power of two other than ±1 whose inverse is a normal number of the dtype.
fn inverse_of_power(x: f64, dtype: DType) -> Option<f64> {
    const FRACTION: u64 = (1 << 52) - 1;
    let lowest = match dtype {
        DType::F16 => -14,
        DType::F64 => -1022,
        _ => -126,
    };
    let inverse = 1.0 / x;
    let is_power = x.is_normal() && x.to_bits() & FRACTION == 0 && x.abs() != 1.0;
    (is_power && inverse.is_normal() && inverse.abs() >= 2f64.powi(lowest)).then_some(inverse)
}

fn exact_cast(view: &View<'_>, id: NodeId) -> Option<Patch> {
    let node = view.node(id);
    let below = view.producer(*node.inputs.first()?);
    let (Op::Cast(_), Op::Cast(_)) = (&node.op, &below.op) else {
        return None;
    };
    let (from, via, to) = (
        view.fact(below.inputs[0]).dtype,
        below.fact().dtype,
        node.fact().dtype,
    );
    if !represents_all(from, via) {
        return None;
    }
    if from == to {
        return view.replace(id, below.inputs[0]);
    }
    // A float saturates where an integer wraps, and an integer is cast to narrower floats through f32.
    let is_same = match (from.kind(), via.kind()) {
        (Kind::Float, _) => to.is_float(),
        (_, Kind::Float) => to.is_float() || represents_all(from, to),
        _ => true,
    };
    if !is_same || (via == DType::F64 && to.is_narrow_float()) {
        return None;
    }
    view.replace_with(id, Cast::to(to), &below.inputs)
}

/// True if the second dtype represents every value of the first.
fn represents_all(from: DType, to: DType) -> bool {
    match (from.float(), to.float()) {
        // −0, infinities and NaN.
        _ if to.float8().is_some_and(|to| to.fnuz && from.is_float()) => from == to,
        (Some(from), Some(to)) => {
            from.digits <= to.digits && from.least >= to.least && from.largest <= to.largest
        }
        (Some(_), None) => false,
        (None, float) => {
            let (low, high) = from.int_range().unwrap_or((i128::MIN, i128::MAX));
            match (float, to.int_range()) {
                (Some(float), _) => low >= -(1 << float.digits) && high <= (1 << float.digits),
                (None, Some(range)) => range.0 <= low && high <= range.1,
                (None, None) => false,
            }
        }
    }
}
