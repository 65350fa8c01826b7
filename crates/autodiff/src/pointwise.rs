//! Derivatives of the pointwise ops.

use crate::erased::{Erased, Id};
use crate::expr::{Expr, select};
use crate::{Call, Gradients};
use kiln_ir::{OpError, Pw};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI, LN_2, LN_10, PI};

pub(crate) fn pullback(
    b: &mut Erased<'_>,
    op: Pw,
    call: &Call<'_, Id>,
    g: &Id,
) -> Result<Gradients<Id>, OpError> {
    let rules = derivative(op);
    let mut out = Gradients::new();
    for i in 0..call.inputs.len() {
        out.push(match rules.get(i) {
            Some(Some(rule)) if call.needs_grad[i] => {
                Some(rule.emit(b, call.inputs, &call.outputs[0], g)?)
            }
            _ => None,
        });
    }
    Ok(out)
}

/// Returns one formula for each operand; `None` or missing if it has no gradient.
fn derivative(op: Pw) -> Vec<Option<Expr>> {
    use Pw::*;
    let (g, y) = (Expr::G, Expr::Y);
    let x = Expr::X(0);
    let z = Expr::X(1);
    let unary = |e: Expr| vec![Some(e)];
    let binary = |a: Expr, b: Expr| vec![Some(a), Some(b)];
    let is = |op: Pw, a: Expr, b: Expr| Expr::call(op, [a, b]);
    let square = |e: Expr| e.then(Square);
    match op {
        Neg => unary(-g),
        Abs => unary(g * x.then(Sign)),
        Sqrt => unary(g / (y * 2.0)),
        Rsqrt => unary(g * y.clone().then(Square) * y * -0.5),
        Reciprocal => unary(-(g * square(y))),
        Square => unary(g * x * 2.0),
        Exp => unary(g * y),
        Exp2 => unary(g * y * LN_2),
        Expm1 => unary(g * (y + 1.0)),
        Log => unary(g / x),
        Log2 => unary(g / (x * LN_2)),
        Log10 => unary(g / (x * LN_10)),
        Log1p => unary(g / (x + 1.0)),
        Sin => unary(g * x.then(Cos)),
        Cos => unary(-(g * x.then(Sin))),
        Tan => unary(g * (square(y) + 1.0)),
        Asin => unary(g * (1.0 - square(x)).then(Rsqrt)),
        Acos => unary(-(g * (1.0 - square(x)).then(Rsqrt))),
        Atan => unary(g / (square(x) + 1.0)),
        Sinh => unary(g * x.then(Cosh)),
        Cosh => unary(g * x.then(Sinh)),
        Tanh => unary(g * (1.0 - square(y))),
        Asinh => unary(g * (square(x) + 1.0).then(Rsqrt)),
        Acosh => unary(g * (square(x) - 1.0).then(Rsqrt)),
        Atanh => unary(g / (1.0 - square(x))),
        Erf => unary(g * (-square(x)).then(Exp) * FRAC_2_SQRT_PI),
        Erfc => unary(-(g * (-square(x)).then(Exp) * FRAC_2_SQRT_PI)),
        ErfInv => unary(g * square(y).then(Exp) / FRAC_2_SQRT_PI),
        LogNdtr => {
            let exponent = square(x) * -0.5 - y;
            unary(g * exponent.then(Exp) * (0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2))
        }
        Ndtri => {
            let density = 0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
            unary(g * (square(y) * 0.5).then(Exp) / density)
        }
        Lgamma => unary(g * x.then(Digamma)),
        Digamma => unary(g * is(Zeta, 2.0.into(), x)),
        I0 => unary(g * x.then(I1)),
        I0e => unary(g * (x.clone().then(I1e) - x.then(Sign) * y)),
        I1 => unary(g * (x.clone().then(I0) - ratio(y, x, 1.0.into(), BESSEL))),
        I1e => {
            let decay = (-x.clone().then(Abs)).then(Exp);
            let drop = y.clone() * x.clone().then(Sign) + ratio(y, x.clone(), decay, BESSEL);
            unary(g * (x.then(I0e) - drop))
        }
        Sinc => {
            let angle = x * PI;
            let decay = angle.clone().then(Cos) - y;
            unary(g * ratio(decay, angle.clone(), angle, SINC) * PI)
        }
        Sigmoid => unary(g * (1.0 - y.clone()) * y),
        LogSigmoid => unary(g * (-x).then(Sigmoid)),
        Relu => unary(select(is(Le, y, 0.0.into()), 0.0, g)),
        Relu6 => unary(select_outside(x, 0.0, 6.0, 0.0, g)),
        Gelu => {
            let cdf = ((x.clone() * FRAC_1_SQRT_2).then(Erf) + 1.0) * 0.5;
            let pdf = (square(x.clone()) * -0.5).then(Exp) * (0.5 * FRAC_2_SQRT_PI * FRAC_1_SQRT_2);
            unary(g * (cdf + x * pdf))
        }
        GeluTanh => {
            let k = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;
            let argument = (square(x.clone()) * 0.044715 + 1.0) * x.clone() * k;
            let slope = (square(x.clone()) * (3.0 * 0.044715) + 1.0) * k;
            let t = argument.then(Tanh);
            let left = (t.clone() + 1.0) * 0.5;
            unary(g * (left + x * 0.5 * (1.0 - square(t)) * slope))
        }
        Silu => {
            let s = x.clone().then(Sigmoid);
            unary(g * s.clone() * (x * (1.0 - s) + 1.0))
        }
        Softplus => unary(g * x.then(Sigmoid)),
        Softsign => unary(g / square(x.then(Abs) + 1.0)),
        Mish => {
            let t = x.clone().then(Softplus).then(Tanh);
            let argument = x.clone() * (1.0 - square(t.clone())) * x.then(Sigmoid);
            unary(g * (t + argument))
        }
        // NaN counts as above 0.
        Elu => unary(select(is(Le, x, 0.0.into()), g.clone() * (y + 1.0), g)),
        Selu => {
            let (scale, alpha) = (1.050_700_987_355_480_5, 1.673_263_242_354_377_2);
            let above = g.clone() * scale;
            unary(select(
                is(Le, x, 0.0.into()),
                g * (y + scale * alpha),
                above,
            ))
        }
        // NaN counts as outside.
        Hardsigmoid => {
            let (above, below) = (is(Gt, x.clone(), (-3.0).into()), is(Lt, x, 3.0.into()));
            unary(select(is(And, above, below), g / 6.0, 0.0))
        }
        Hardswish => {
            let middle = g.clone() * (x.clone() / 3.0 + 0.5);
            let high = select(is(Lt, x.clone(), 3.0.into()), middle, g);
            unary(select(is(Le, x, (-3.0).into()), 0.0, high))
        }
        Add => binary(g.clone(), g),
        Sub => binary(g.clone(), -g),
        Mul => binary(g.clone() * z, g * x),
        Div => binary(g.clone() / z.clone(), -(g * (y / z))),
        Fmod => {
            let quotient = (x / z).then(Trunc);
            binary(g.clone(), -(g * quotient))
        }
        Remainder => {
            let quotient = is(FloorDivide, x, z);
            binary(g.clone(), -(g * quotient))
        }
        Pow => {
            // The derivative of a constant is nowhere infinite: 0 · x⁻¹ is 0 at 0.
            let lower = z.clone() - 1.0;
            let steep = is(Ge, x.clone().then(Abs), 1e-30.into());
            let lower = select(
                is(Eq, z.clone(), 0.0.into()),
                select(steep, lower.clone(), 0.0),
                lower,
            );
            let base = g.clone() * z.clone() * is(Pow, x.clone(), lower);
            let flat = is(And, is(Eq, x.clone(), 0.0.into()), is(Ge, z, 0.0.into()));
            binary(base, g * y * select(flat, 1.0, x).then(Log))
        }
        // At the origin the gradients are 0.
        Atan2 => {
            let length = square(x.clone()) + square(z.clone());
            let length = select(is(Eq, length.clone(), 0.0.into()), f64::INFINITY, length);
            binary(g.clone() * (z / length.clone()), -(g * (x / length)))
        }
        // At a tie both have half of the gradient.
        Maximum | Minimum => {
            let loses = if op == Maximum { Lt } else { Gt };
            let share = select(is(Eq, x.clone(), z.clone()), g.clone() * 0.5, g);
            binary(
                select(is(loses, x.clone(), z.clone()), 0.0, share.clone()),
                select(is(loses, z, x), 0.0, share),
            )
        }
        // At a tie both have half of the gradient. Of a number and NaN the number has all of it, of two NaNs the
        // first.
        Fmax | Fmin => {
            let wins = if op == Fmax { Ge } else { Le };
            let share = select(is(Eq, x.clone(), z.clone()), g.clone() * 0.5, g);
            let first_wins = is(Or, is(wins, x.clone(), z.clone()), z.clone().then(IsNan));
            let number = is(Eq, z.clone(), z.clone());
            let second_wins = is(Or, is(wins, z, x.clone()), x.then(IsNan));
            let second_wins = is(And, second_wins, number);
            binary(
                select(first_wins, share.clone(), 0.0),
                select(second_wins, share, 0.0),
            )
        }
        Hypot => {
            let length = select(is(Eq, y.clone(), 0.0.into()), f64::INFINITY, y);
            binary(g.clone() * (x / length.clone()), g * (z / length))
        }
        LogAddExp | LogAddExp2 => {
            let scale = if op == LogAddExp { 1.0 } else { LN_2 };
            let share = |a: Expr, b: Expr| g.clone() * ((a - b) * scale).then(Sigmoid);
            binary(share(x.clone(), z.clone()), share(z, x))
        }
        Xlogy | Xlog1py => {
            let (end, base) = match op {
                Xlogy => (0.0, z.clone()),
                _ => (-1.0, z.clone() + 1.0),
            };
            let is_zero_product = is(
                And,
                is(Eq, x.clone(), 0.0.into()),
                is(Le, z.clone(), end.into()),
            );
            let log = is(op, g.clone(), select(is_zero_product, 1.0 + end, z));
            let flat = is(
                And,
                is(Eq, x.clone(), 0.0.into()),
                is(Eq, base.clone(), 0.0.into()),
            );
            binary(log, g * x / select(flat, f64::INFINITY, base))
        }
        Zeta => {
            let next = is(Zeta, x.clone() + 1.0, z);
            binary(
                Expr::Missing("zeta has no derivative with respect to its exponent"),
                -(g * x * next),
            )
        }
        Select => vec![
            None,
            Some(select(x.clone(), g.clone(), 0.0)),
            Some(select(x, 0.0, g)),
        ],
        // At a bound, x and the bound have half each. Between equal bounds x has all of it, between crossed bounds
        // the upper bound.
        Clamp => {
            let (low, high) = (z, Expr::X(2));
            let half = g.clone() * 0.5;
            let apart = is(Lt, low.clone(), high.clone());
            let under = is(Lt, x.clone(), low.clone());
            let over = is(Gt, x.clone(), high.clone());
            let at_low = is(And, is(Eq, x.clone(), low.clone()), apart.clone());
            let at_high = is(And, is(Eq, x, high.clone()), apart);
            let crossed = is(Gt, low.clone(), high.clone());
            let ordered = is(Le, low, high);
            let pass = |condition, otherwise| select(condition, g.clone(), otherwise);
            let at_bound = is(Or, at_low.clone(), at_high.clone());
            let inside = select(at_bound, half.clone(), g.clone());
            let low = select(at_low, half.clone(), 0.0);
            let high = select(at_high, half, 0.0);
            vec![
                Some(select(is(Or, under.clone(), over.clone()), 0.0, inside)),
                Some(pass(is(And, under, ordered.clone()), low)),
                Some(pass(is(Or, is(And, over, ordered), crossed), high)),
            ]
        }
        // An infinite bound is not a bound.
        Clip => {
            let (low, high) = (z, Expr::X(2));
            let open_low = is(Eq, low.clone(), f64::NEG_INFINITY.into());
            let open_high = is(Eq, high.clone(), f64::INFINITY.into());
            let above = is(Or, is(Gt, x.clone(), low), open_low);
            let below = is(Or, is(Lt, x, high), open_high);
            unary(select(is(And, above, below), g, 0.0))
        }
        First => binary(g, Expr::Zeros),
        Surrogate => vec![None, Some(g)],
        BinaryCrossEntropy => {
            let variance = is(Maximum, x.clone() * (1.0 - x.clone()), 1e-12.into());
            let log = |p: Expr| is(Maximum, p.then(Log), (-100.0).into());
            let odds = log(1.0 - x.clone()) - log(x.clone());
            binary(g.clone() * ((x - z) / variance), g * odds)
        }
        Lerp => {
            let weight = Expr::X(2);
            vec![
                Some(g.clone() * (1.0 - weight.clone())),
                Some(g.clone() * weight),
                Some(g * (z - x)),
            ]
        }
        // Constant wherever they have a derivative.
        Sign | Floor | Ceil | Round | Trunc => unary(Expr::Zeros),
        FloorDivide => binary(Expr::Zeros, Expr::Zeros),
        // Without float operands, or without a float result.
        IsNan | IsInf | Not | Eq | Ne | Lt | Le | Gt | Ge | And | Or | Xor | Shl | Shr
        | SignBit | Gcd | Lcm => vec![],
    }
}

/// The series of I₁(x) / x: `1 / (4ᵏ 2 k! (k + 1)!)`.
const BESSEL: &[f64] = &[
    0.5,
    1.0 / 16.0,
    1.0 / 384.0,
    1.0 / 18_432.0,
    1.0 / 1_474_560.0,
    1.0 / 176_947_200.0,
    1.0 / 29_727_129_600.0,
    1.0 / 6_658_877_030_400.0,
    1.0 / 1_917_756_584_755_200.0,
];

/// The series of (cos(x) − sin(x) / x) / x²: `(−1)ᵏ⁺¹ / ((2k + 3) (2k + 1)!)`.
const SINC: &[f64] = &[
    -1.0 / 3.0,
    1.0 / 30.0,
    -1.0 / 840.0,
    1.0 / 45_360.0,
    -1.0 / 3_991_680.0,
    1.0 / 518_918_400.0,
    -1.0 / 93_405_312_000.0,
    1.0 / 22_230_464_256_000.0,
    -1.0 / 6_758_061_133_824_000.0,
];

/// `y / x`, but for |x| < 1 the series `factor · Σ cₖ x²ᵏ`, which has every derivative at 0.
fn ratio(y: Expr, x: Expr, factor: Expr, c: &[f64]) -> Expr {
    let is_small = Expr::call(Pw::Lt, [x.clone().then(Pw::Abs), 1.0.into()]);
    let square = select(is_small.clone(), x.clone(), 0.0).then(Pw::Square);
    let sum = |sum: Expr, c: &f64| sum * square.clone() + *c;
    let series = c.iter().rev().fold(Expr::from(0.0), sum) * factor;
    select(is_small.clone(), series, y / select(is_small, 1.0, x))
}

/// `x <= low or x >= high ? other : inside`; NaN is inside.
fn select_outside(x: Expr, low: f64, high: f64, other: f64, inside: Expr) -> Expr {
    let below = Expr::call(Pw::Le, [x.clone(), low.into()]);
    let above = Expr::call(Pw::Ge, [x, high.into()]);
    select(Expr::call(Pw::Or, [below, above]), other, inside)
}
