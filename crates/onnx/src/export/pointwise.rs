//! Pointwise rows and casts.

use super::attributes::{float, int, text};
use super::refusals::{needs_opset, no_counterpart};
use super::writer::{Value, Writer};
use crate::tensor::number;
use kiln_base::prim::{Binary, ScalarBuilder, Unary};
use kiln_ir::{DType, Kind, OpError, Pw};
use std::f64::consts::{LN_2, LN_10, PI, SQRT_2};

/// Writes a row: as the operator for it, else as the primitives of its expression.
pub(super) fn row(w: &mut Writer, row: Pw, inputs: &[Value]) -> Result<Value, OpError> {
    let mut shape = inputs[0].fact.shape.clone();
    let last = &inputs[inputs.len() - 1];
    // Primitives that ONNX has for the wide types alone.
    let wide = match last.dtype() {
        DType::BF16 if w.opset < 22 => DType::F32,
        other => other,
    };
    let mut values: Vec<Value> = Vec::new();
    for v in inputs {
        let same = v.dtype() == DType::Bool || v.dtype() == wide;
        values.push(if same { v.clone() } else { cast(w, v, wide) });
    }
    let mut value = match single_operator(w, row, &values) {
        Some(value) => value,
        None => write_expression(w, row, values)?,
    };
    if value.dtype() != DType::Bool && wide != last.dtype() {
        value = cast(w, &value, last.dtype());
    }
    std::mem::swap(&mut value.fact.shape, &mut shape);
    Ok(value)
}

/// Writes a conversion.
pub(super) fn cast(w: &mut Writer, v: &Value, dtype: DType) -> Value {
    if v.dtype() == dtype {
        return v.clone();
    }
    if let Some(number) = w.numbers.get(&v.name).copied() {
        return w.scalar(number, dtype).stretched(v.fact.shape.clone());
    }
    // The ends of an integer's range are no floats of fewer bits.
    if v.dtype().is_float() && v.dtype().size() < 4 && dtype.kind() == Kind::Int {
        let wide = cast(w, v, DType::F32);
        return cast(w, &wide, dtype);
    }
    let mut source = v.clone();
    // Floats beyond the range of an integer become its ends, which ONNX leaves open. Those of wide ones are not floats.
    if v.dtype().is_float()
        && dtype.kind() == Kind::Int
        && let Some((low, high)) = dtype.int_range()
        && (low == 0 || dtype.size() < 4)
    {
        let ends = [low, high].map(|n| w.scalar(n as f64, v.dtype()));
        let operands = match dtype.size() < 4 {
            true => vec![v, &ends[0], &ends[1]],
            false => vec![v, &ends[0]],
        };
        source = w.broadcasting("Clip", &operands, vec![], v.dtype());
    }
    let mut attributes = vec![int("to", i32::from(number(dtype)))];
    if dtype.is_float() && dtype.size() == 1 {
        attributes.push(int("saturate", 0));
    }
    w.broadcasting("Cast", &[&source], attributes, dtype)
}

/// The operator that is the row itself.
fn single_operator(w: &mut Writer, row: Pw, values: &[Value]) -> Option<Value> {
    let x = &values[0];
    let is_float = x.dtype().is_float();
    let single =
        |w: &mut Writer, op, attributes| Some(w.broadcasting(op, &[x], attributes, x.dtype()));
    match row {
        Pw::First | Pw::Surrogate => Some(x.clone()),
        Pw::Sign => single(w, "Sign", vec![]),
        Pw::Square => Some(w.broadcasting("Mul", &[x, x], vec![], x.dtype())),
        Pw::Clamp | Pw::Clip if values[1..].iter().all(|v| v.held.is_empty()) => {
            let value = w.broadcasting("Clip", &[x, &values[1], &values[2]], vec![], x.dtype());
            Some(value)
        }
        _ if !is_float => None,
        // onnxruntime fails where it joins Relu and Clip of f64.
        Pw::Relu if x.dtype() != DType::F64 => single(w, "Relu", vec![]),
        Pw::Relu6 => {
            let bounds = [0.0, 6.0].map(|n| w.scalar(n, x.dtype()));
            Some(w.broadcasting("Clip", &[x, &bounds[0], &bounds[1]], vec![], x.dtype()))
        }
        Pw::Gelu if w.opset >= 20 => single(w, "Gelu", vec![]),
        Pw::GeluTanh if w.opset >= 20 => single(w, "Gelu", vec![text("approximate", "tanh")]),
        Pw::Silu => {
            let gate = w.broadcasting("Sigmoid", &[x], vec![], x.dtype());
            Some(w.broadcasting("Mul", &[x, &gate], vec![], x.dtype()))
        }
        Pw::Softplus => single(w, "Softplus", vec![]),
        Pw::Softsign => single(w, "Softsign", vec![]),
        Pw::Mish if w.opset >= 18 => single(w, "Mish", vec![]),
        Pw::Elu => single(w, "Elu", vec![]),
        Pw::Selu => single(w, "Selu", vec![]),
        Pw::Hardsigmoid => single(w, "HardSigmoid", vec![float("alpha", 1.0 / 6.0)]),
        Pw::Hardswish => single(w, "HardSwish", vec![]),
        _ => None,
    }
}

/// Writes the expression of a row.
fn write_expression(w: &mut Writer, row: Pw, values: Vec<Value>) -> Result<Value, OpError> {
    let operands: Vec<u32> = (0..values.len() as u32).collect();
    let mut e = Expression {
        w,
        values,
        failed: None,
    };
    let result = (row.row().expr)(&mut e, &operands);
    match e.failed {
        Some(error) => Err(error),
        None => Ok(e.values.swap_remove(result as usize)),
    }
}

/// An expression that is being written. After the first failure, its values have no meaning.
struct Expression<'a, 'w> {
    w: &'a mut Writer<'w>,
    values: Vec<Value>,
    failed: Option<OpError>,
}

impl Expression<'_, '_> {
    fn value(&self, i: u32) -> Value {
        self.values[i as usize].clone()
    }

    fn push(&mut self, value: Result<Value, OpError>, like: &Value) -> u32 {
        let value = value.unwrap_or_else(|e| {
            self.failed.get_or_insert(e);
            like.clone()
        });
        self.values.push(value);
        self.values.len() as u32 - 1
    }
}

impl ScalarBuilder for Expression<'_, '_> {
    fn unary(&mut self, op: Unary, a: u32) -> u32 {
        let a = self.value(a);
        let value = unary(self.w, op, &a);
        self.push(value, &a)
    }

    fn binary(&mut self, op: Binary, a: u32, b: u32) -> u32 {
        let (a, b) = (self.value(a), self.value(b));
        let value = binary(self.w, op, &a, &b);
        self.push(value, &a)
    }

    fn select(&mut self, mask: u32, a: u32, b: u32) -> u32 {
        let (mask, a, b) = (self.value(mask), self.value(a), self.value(b));
        let value = select(self.w, &mask, &a, &b);
        self.push(Ok(value), &a)
    }

    fn constant(&mut self, value: f64, like: u32) -> u32 {
        let prototype = self.value(like);
        let value = self.w.scalar(value, prototype.dtype());
        self.push(Ok(value), &prototype)
    }

    fn is_float(&self, a: u32) -> bool {
        self.values[a as usize].dtype().is_float()
    }
}

fn unary(w: &mut Writer, op: Unary, x: &Value) -> Result<Value, OpError> {
    let dtype = x.dtype();
    let is_float = dtype.is_float();
    let name = match op {
        Unary::Neg if dtype == DType::U8 => {
            let zero = w.scalar(0i64, dtype);
            return Ok(w.broadcasting("Sub", &[&zero, x], vec![], dtype));
        }
        Unary::Neg => "Neg",
        Unary::Abs => "Abs",
        Unary::Not if dtype == DType::Bool => "Not",
        Unary::Not if w.opset < 18 => return needs_opset("the bitwise not", 18),
        Unary::Not => "BitwiseNot",
        Unary::Sqrt => "Sqrt",
        Unary::Recip => "Reciprocal",
        Unary::Exp => "Exp",
        Unary::Log => "Log",
        Unary::Sin => "Sin",
        Unary::Cos => "Cos",
        Unary::Tan => "Tan",
        Unary::Asin => "Asin",
        Unary::Acos => "Acos",
        Unary::Atan => "Atan",
        Unary::Sinh => "Sinh",
        Unary::Cosh => "Cosh",
        Unary::Tanh => "Tanh",
        Unary::Asinh => "Asinh",
        Unary::Acosh => "Acosh",
        Unary::Atanh => "Atanh",
        Unary::Sigmoid => "Sigmoid",
        Unary::Erf => "Erf",
        Unary::Floor | Unary::Ceil | Unary::Round | Unary::Trunc if !is_float => {
            return Ok(x.clone());
        }
        Unary::Floor => "Floor",
        Unary::Ceil => "Ceil",
        Unary::Round => "Round",
        Unary::IsNan | Unary::IsInf if !is_float => return Ok(w.scalar(false, DType::Bool)),
        Unary::IsNan => return Ok(w.broadcasting("IsNaN", &[x], vec![], DType::Bool)),
        Unary::IsInf => return Ok(w.broadcasting("IsInf", &[x], vec![], DType::Bool)),
        Unary::Rsqrt => return apply_all(w, x, &[Unary::Sqrt, Unary::Recip]),
        Unary::Exp2 => {
            let two = w.scalar(2.0, dtype);
            return Ok(w.broadcasting("Pow", &[&two, x], vec![], dtype));
        }
        // tanh(x / 2) · (eˣ + 1), without cancellation.
        Unary::Expm1 => {
            let half = with(w, Binary::Mul, x, 0.5)?;
            let tanh = unary(w, Unary::Tanh, &half)?;
            let exp = unary(w, Unary::Exp, x)?;
            let more = with(w, Binary::Add, &exp, 1.0)?;
            return binary(w, Binary::Mul, &tanh, &more);
        }
        Unary::Log2 | Unary::Log10 => {
            let log = unary(w, Unary::Log, x)?;
            let base = if op == Unary::Log2 { LN_2 } else { LN_10 };
            return with(w, Binary::Mul, &log, 1.0 / base);
        }
        // 2 artanh(x / (x + 2)) near 0, without cancellation.
        Unary::Log1p => {
            let sum = with(w, Binary::Add, x, 1.0)?;
            let log_half = unary(w, Unary::Log, &sum)?;
            let divisor = with(w, Binary::Add, x, 2.0)?;
            let ratio = binary(w, Binary::Div, x, &divisor)?;
            let artanh = unary(w, Unary::Atanh, &ratio)?;
            let small = with(w, Binary::Mul, &artanh, 2.0)?;
            let size = unary(w, Unary::Abs, x)?;
            let is_near = with(w, Binary::Lt, &size, 0.5)?;
            return Ok(select(w, &is_near, &small, &log_half));
        }
        Unary::Trunc => {
            let size = apply_all(w, x, &[Unary::Abs, Unary::Floor])?;
            let sign = w.broadcasting("Sign", &[x], vec![], dtype);
            return binary(w, Binary::Mul, &sign, &size);
        }
        // −0 by its reciprocal. The sign of NaN is lost.
        Unary::SignBit => {
            let reciprocal = unary(w, Unary::Recip, x)?;
            let minus = with(w, Binary::Lt, x, 0.0)?;
            let zero = with(w, Binary::Lt, &reciprocal, 0.0)?;
            return binary(w, Binary::Or, &minus, &zero);
        }
        Unary::Erfc => {
            let (unit, erf) = (w.scalar(1.0, dtype), unary(w, Unary::Erf, x)?);
            return binary(w, Binary::Sub, &unit, &erf);
        }
        Unary::ErfInv
        | Unary::LogNdtr
        | Unary::Ndtri
        | Unary::Lgamma
        | Unary::Digamma
        | Unary::I0
        | Unary::I0e
        | Unary::I1
        | Unary::I1e => return no_counterpart(op.name()),
    };
    Ok(w.broadcasting(name, &[x], vec![], dtype))
}

fn apply_all(w: &mut Writer, x: &Value, ops: &[Unary]) -> Result<Value, OpError> {
    ops.iter().try_fold(x.clone(), |x, op| unary(w, *op, &x))
}

fn select(w: &mut Writer, mask: &Value, a: &Value, b: &Value) -> Value {
    w.broadcasting("Where", &[mask, a, b], vec![], a.dtype())
}

/// `x op c`.
fn with(w: &mut Writer, op: Binary, x: &Value, c: f64) -> Result<Value, OpError> {
    let c = w.scalar(c, x.dtype());
    binary(w, op, x, &c)
}

fn binary(w: &mut Writer, op: Binary, a: &Value, b: &Value) -> Result<Value, OpError> {
    let dtype = a.dtype();
    let kind = dtype.kind();
    let mask = DType::Bool;
    let bits = |bool: &'static str, int: &'static str| match kind {
        Kind::Bool => bool,
        _ => int,
    };
    let (name, result) = match op {
        Binary::Add => ("Add", dtype),
        Binary::Sub => ("Sub", dtype),
        Binary::Mul => ("Mul", dtype),
        Binary::Div => ("Div", dtype),
        Binary::Pow => ("Pow", dtype),
        Binary::Max => (bits("Or", "Max"), dtype),
        Binary::Min => (bits("And", "Min"), dtype),
        Binary::And | Binary::Or | Binary::Xor if kind == Kind::Int && w.opset < 18 => {
            return needs_opset("bitwise logic", 18);
        }
        Binary::And => (bits("And", "BitwiseAnd"), dtype),
        Binary::Or => (bits("Or", "BitwiseOr"), dtype),
        Binary::Xor => (bits("Xor", "BitwiseXor"), dtype),
        Binary::Eq => ("Equal", mask),
        Binary::Lt => ("Less", mask),
        Binary::Le => ("LessOrEqual", mask),
        Binary::Gt => ("Greater", mask),
        Binary::Ge => ("GreaterOrEqual", mask),
        Binary::Ne => {
            let equal = w.broadcasting("Equal", &[a, b], vec![], mask);
            return Ok(w.broadcasting("Not", &[&equal], vec![], mask));
        }
        Binary::Rem => {
            return Ok(w.broadcasting("Mod", &[a, b], vec![int("fmod", 1)], dtype));
        }
        Binary::FloorMod if kind == Kind::Int => ("Mod", dtype),
        // The remainder with the dividend's sign, moved by the divisor where signs differ.
        Binary::FloorMod => {
            let remainder = binary(w, Binary::Rem, a, b)?;
            let sum = binary(w, Binary::Add, &remainder, b)?;
            let inexact = with(w, Binary::Ne, &remainder, 0.0)?;
            let low = with(w, Binary::Lt, &remainder, 0.0)?;
            let negative = with(w, Binary::Lt, b, 0.0)?;
            let differ = binary(w, Binary::Xor, &low, &negative)?;
            let moved = binary(w, Binary::And, &inexact, &differ)?;
            return Ok(select(w, &moved, &sum, &remainder));
        }
        Binary::FloorDiv => {
            let remainder = binary(w, Binary::FloorMod, a, b)?;
            let exact = binary(w, Binary::Sub, a, &remainder)?;
            return binary(w, Binary::Div, &exact, b);
        }
        // The angle of the quadrants right of 0, moved by half a turn left of it.
        Binary::Atan2 => {
            let (y, x) = (a, b);
            let ratio = binary(w, Binary::Div, y, x)?;
            let right = unary(w, Unary::Atan, &ratio)?;
            let is_minus = unary(w, Unary::SignBit, y)?;
            let halves = [-PI, PI].map(|n| w.scalar(n, dtype));
            let half = select(w, &is_minus, &halves[0], &halves[1]);
            let left = binary(w, Binary::Add, &right, &half)?;
            // At 0 the quotient is NaN, and the angle that of ±0 right of 0.
            let is_left = unary(w, Unary::SignBit, x)?;
            let (is_zero, is_number) = (with(w, Binary::Eq, y, 0.0)?, binary(w, Binary::Eq, x, x)?);
            let on_axis = binary(w, Binary::And, &is_zero, &is_number)?;
            let ends = select(w, &is_left, &half, y);
            let angle = select(w, &is_left, &left, &right);
            return Ok(select(w, &on_axis, &ends, &angle));
        }
        // The longer side times what the shorter one adds, which does not overflow.
        Binary::Hypot => {
            let (a, b) = (unary(w, Unary::Abs, a)?, unary(w, Unary::Abs, b)?);
            let long = binary(w, Binary::Max, &a, &b)?;
            let short = binary(w, Binary::Min, &a, &b)?;
            let ratio = binary(w, Binary::Div, &short, &long)?;
            let square = binary(w, Binary::Mul, &ratio, &ratio)?;
            let sum = with(w, Binary::Add, &square, 1.0)?;
            let root = unary(w, Unary::Sqrt, &sum)?;
            let length = binary(w, Binary::Mul, &long, &root)?;
            let is_flat = binary(w, Binary::Eq, &a, &b)?;
            let flat = with(w, Binary::Mul, &long, SQRT_2)?;
            return Ok(select(w, &is_flat, &flat, &length));
        }
        Binary::Shl | Binary::Shr => return shift(w, op, a, b),
        Binary::Zeta | Binary::Gcd | Binary::Lcm => return no_counterpart(op.name()),
    };
    Ok(w.broadcasting(name, &[a, b], vec![], result))
}

/// Writes a shift, which ONNX has for integers without a sign, in 64 bits. Right shifts of numbers below 0 are those of
/// their complements.
fn shift(w: &mut Writer, op: Binary, a: &Value, count: &Value) -> Result<Value, OpError> {
    let (a64, count64) = (cast(w, a, DType::I64), cast(w, count, DType::I64));
    let is_negative = with(w, Binary::Lt, &a64, 0.0)?;
    let all_bits = w.scalar(-1i64, DType::I64);
    let complement = binary(w, Binary::Sub, &all_bits, &a64)?;
    let (direction, bits) = match op {
        Binary::Shl => ("LEFT", a64),
        _ => ("RIGHT", select(w, &is_negative, &complement, &a64)),
    };
    let operands = [&bits, &count64].map(|v| cast(w, v, DType::U64));
    let attributes = vec![text("direction", direction)];
    let shifted = w.broadcasting("BitShift", &operands.each_ref(), attributes, DType::U64);
    let shifted = cast(w, &shifted, DType::I64);
    let not_negative = with(w, Binary::Ge, &count64, 0.0)?;
    let in_width = with(w, Binary::Lt, &count64, 64.0)?;
    let in_range = binary(w, Binary::And, &not_negative, &in_width)?;
    let zero = w.scalar(0i64, DType::I64);
    let mut result = select(w, &in_range, &shifted, &zero);
    if op == Binary::Shr {
        let complement = binary(w, Binary::Sub, &all_bits, &result)?;
        result = select(w, &is_negative, &complement, &result);
    }
    Ok(cast(w, &result, a.dtype()))
}
