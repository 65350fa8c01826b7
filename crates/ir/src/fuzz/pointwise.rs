//! Random pointwise ops, with operands in the range in which the op is well conditioned.

use super::generate::{Generator, Meta};
use crate::pointwise::{Gives, Takes};
use crate::{Pw, Value};
use kiln_base::DType;

/// The probability that an operand is not limited, where the result could then be NaN or infinite.
const WILD: f64 = 0.1;

impl Generator {
    pub fn random_pointwise(&mut self) -> Option<Value> {
        let row = *self.rng.pick(Pw::ALL)?;
        let dtype = self.dtype(|d| row.takes(d))?;
        let result = if dtype.is_float() {
            self.float_row(row, dtype)?
        } else {
            self.int_row(row, dtype)?
        };
        self.tame(result)
    }

    fn int_row(&mut self, row: Pw, dtype: DType) -> Option<Value> {
        let mut operands = self.operands(row, dtype, false)?;
        match row {
            Pw::Div | Pw::FloorDivide | Pw::Fmod | Pw::Remainder => {
                // An odd divisor is never 0.
                let meta = self.meta(operands[1]);
                operands[1] = self.row_with(Pw::Or, operands[1], 1.0, meta)?;
            }
            Pw::Shl | Pw::Shr if self.rng.chance(0.5) => {
                let meta = self.meta(operands[1]);
                operands[1] = self.row_with(Pw::And, operands[1], 7.0, meta)?;
            }
            _ => {}
        }
        let meta = Meta::integer(dtype);
        self.row(row, &operands, meta)
    }

    fn float_row(&mut self, row: Pw, dtype: DType) -> Option<Value> {
        use Pw::*;
        let has_jumps = matches!(row, IsNan | IsInf) || row != SignBit && row.has_edges();
        let is_wild = !has_jumps && self.rng.chance(WILD);
        let mut x = self.operands(row, dtype, has_jumps || is_wild)?;
        match row {
            _ if has_jumps => {}
            // A single overflow is enough, so magnitudes are limited.
            Exp | Exp2 | Expm1 | Sinh | Cosh | I0 | I1 => x[0] = self.clamp(x[0], 4.0)?,
            Tan => x[0] = self.clamp(x[0], 1.25)?,
            Sin | Cos | LogNdtr => x[0] = self.clamp(x[0], 8.0)?,
            Pow => {
                x[1] = self.clamp(x[1], 2.0)?;
                if !is_wild {
                    x[0] = self.away_from_zero(x[0])?;
                }
            }
            // Poles.
            Lgamma | Digamma | Zeta => {
                for v in &mut x {
                    *v = self.clamp(*v, 4.0)?;
                    *v = self.away_from_zero(*v)?;
                }
                if row == Zeta {
                    let meta = self.meta(x[0]);
                    let size = meta.size + 1.0;
                    x[0] = self.row_with(Add, x[0], 1.0, Meta { size, ..meta })?;
                }
            }
            // Steep at both ends.
            Ndtri | BinaryCrossEntropy => {
                let x0 = self.clamp(x[0], 4.0)?;
                let size = 1.0;
                x[0] = self.row(Sigmoid, &[x0], Meta::inexact(size))?;
            }
            // It jumps where y is 0, and `max(-0, 0)` may be either of the two.
            Atan2 | SignBit => {
                x[0] = self.away_from_zero(x[0])?;
                if self.rng.chance(0.5) {
                    x[0] = self.row(Neg, &[x[0]], self.meta(x[0]))?;
                }
            }
            _ if is_wild => {}
            Sqrt | Rsqrt | Reciprocal | Log | Log2 | Log10 => x[0] = self.away_from_zero(x[0])?,
            Log1p => x[0] = self.row(Abs, &[x[0]], self.meta(x[0]))?,
            Xlog1py => x[1] = self.row(Abs, &[x[1]], self.meta(x[1]))?,
            Asin | Acos | Atanh | ErfInv => x[0] = self.clamp(x[0], 0.875)?,
            Acosh => {
                let positive = self.away_from_zero(x[0])?;
                let meta = self.meta(positive);
                let size = meta.size + 1.0;
                x[0] = self.row_with(Add, positive, 1.0, Meta { size, ..meta })?;
            }
            Div | Xlogy => x[1] = self.away_from_zero(x[1])?,
            _ => {}
        }
        let sizes: Vec<f64> = x.iter().map(|v| self.meta(*v).size).collect();
        let is_rounding = matches!(row, Sign | Floor | Ceil | Round | Trunc | Fmod);
        let compares = row.row().gives == Gives::Bool;
        let meta = Meta {
            size: float_size(row, &sizes),
            exact: compares
                || (row.selects() || is_rounding) && x.iter().all(|v| self.meta(*v).exact),
        };
        self.row(row, &x, meta)
    }

    /// |x| + ½.
    fn away_from_zero(&mut self, v: Value) -> Option<Value> {
        let meta = self.meta(v);
        let positive = self.row(Pw::Abs, &[v], meta)?;
        let meta = Meta::inexact(meta.size + 0.5);
        self.row_with(Pw::Add, positive, 0.5, meta)
    }

    /// Operands for a row, the mask of `select` among them.
    fn operands(&mut self, row: Pw, dtype: DType, exact: bool) -> Option<Vec<Value>> {
        let first = if exact {
            self.exact(dtype)?
        } else {
            self.of_dtype(dtype)?
        };
        let shape = self.fact(first).shape;
        let mut out = vec![first];
        while out.len() < row.row().arity {
            // The first operand may be the smaller one, too.
            let next = match self.rng.below(10) {
                0 => first,
                _ => self.like(dtype, &shape, exact)?,
            };
            out.push(next);
        }
        if row.row().takes == Takes::MaskThenAny {
            out[0] = self.like(DType::Bool, &shape, true)?;
            if self.rng.chance(0.5) {
                out.swap(1, 2);
            }
            out[1] = first;
        } else if out.len() == 2 && self.rng.chance(0.3) {
            out.swap(0, 1);
        }
        Some(out)
    }
}

/// A bound on the result's magnitude for operands of these magnitudes, as they are prepared above.
fn float_size(row: Pw, x: &[f64]) -> f64 {
    use Pw::*;
    let largest = x.iter().fold(1.0, |a: f64, b| a.max(*b));
    match row {
        Sin | Cos | Tanh | Erf | Sigmoid | Softsign | Hardsigmoid | Sign | I0e | I1e | Sinc => 1.0,
        Erfc | ErfInv => 2.0,
        Ndtri => 4.0,
        Lgamma | Digamma => 8.0,
        BinaryCrossEntropy => 8.0 * (x[1] + 1.0),
        LogNdtr => 40.0,
        Tan | Asin | Acos | Atan | Atan2 | Atanh | Rsqrt | Reciprocal => 4.0,
        Exp | Exp2 | Expm1 | Sinh | Cosh | I0 | I1 | Zeta => 64.0,
        Square | Mul => x[0] * x[x.len() - 1],
        Div => 2.0 * x[0],
        Pow => (x[0] + 1.0).powi(2),
        FloorDivide => f64::INFINITY,
        Add | Sub | Hypot => x[0] + x[1],
        LogAddExp | LogAddExp2 => largest + 1.0,
        Xlogy | Xlog1py => x[0] * (x[1] + 1.0),
        Lerp => (x[0] + x[1]) * (x[2] + 1.0),
        Softplus | LogSigmoid | Selu => 2.0 * largest + 1.0,
        _ => largest,
    }
}
