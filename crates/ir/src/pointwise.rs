//! The pointwise table: one row for each op.
//!
//! A row is the whole definition of a pointwise op: its name, the dtypes it takes, its meaning on floats and on
//! integers (the reference), and its expression in [`kiln_base::prim`] primitives (from which every kernel is
//! emitted). Adding a row adds the op to inference, the reference evaluation, the text form and every engine.

mod expr;
mod table;

use crate::ops::prelude::check_computes;
use crate::{Fact, OpError, ensure};
use kiln_base::prim::{DivisionByZero, ScalarBuilder};
use kiln_base::{DType, Kind};
pub use table::Pw;
use table::ROWS;

/// The operands that a row takes. All operands have one dtype, except the bool mask of `select`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Floats.
    Float,
    /// Integers and floats.
    Number,
    /// Integers and bool.
    IntOrBool,
    /// Integers.
    Int,
    /// Bool.
    Bool,
    /// Every dtype with arithmetic.
    Any,
    /// Every dtype.
    Stored,
    /// A bool mask, then two operands of any dtype.
    MaskThenAny,
}

/// The result's dtype.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Gives {
    /// That of the operands.
    Same,
    /// Bool.
    Bool,
}

/// A row of the table.
pub struct Row {
    /// The name in the text form.
    pub name: &'static str,
    /// Number of operands.
    pub arity: usize,
    /// The operands that it takes.
    pub takes: Takes,
    /// The result's dtype.
    pub gives: Gives,
    /// The meaning on floats; bool results and masks are 0 and 1.
    pub float: fn(&[f64]) -> f64,
    /// The meaning on integers and bool (as 0 and 1), before wrapping to the dtype. Rows that take
    /// floats only never call it.
    pub int: fn(&[i64]) -> Result<i64, DivisionByZero>,
    /// The meaning as an expression of primitives.
    pub expr: fn(&mut dyn ScalarBuilder, &[u32]) -> u32,
}

impl Pw {
    /// The row.
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// The name in the text form.
    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// The row with this name.
    pub fn from_name(name: &str) -> Option<Pw> {
        Pw::ALL.iter().copied().find(|p| p.name() == name)
    }

    /// True if the row takes operands of this dtype (for `select`, of its two values).
    pub fn takes(self, dtype: DType) -> bool {
        let kind = dtype.kind();
        let is_accepted = match self.row().takes {
            Takes::Float => kind == Kind::Float,
            Takes::Number => kind != Kind::Bool,
            Takes::IntOrBool => kind != Kind::Float,
            Takes::Int => kind == Kind::Int,
            Takes::Bool => kind == Kind::Bool,
            Takes::Any => true,
            Takes::Stored | Takes::MaskThenAny => return true,
        };
        is_accepted && dtype.computes()
    }

    /// True if a small error in a float may change the result discretely: where it is rounded to an integer,
    /// compared, or divided by with a remainder.
    pub fn has_edges(self) -> bool {
        use Pw::*;
        matches!(
            self,
            Sign | SignBit
                | Floor
                | Ceil
                | Round
                | Trunc
                | FloorDivide
                | Fmod
                | Remainder
                | Eq
                | Ne
                | Lt
                | Le
                | Gt
                | Ge
        )
    }

    /// True if the result is an operand, its negative, or a bound, so nothing is rounded.
    pub(crate) fn selects(self) -> bool {
        use Pw::*;
        matches!(
            self,
            Neg | Abs
                | Relu
                | Relu6
                | Maximum
                | Minimum
                | Fmax
                | Fmin
                | Select
                | First
                | Surrogate
                | Clamp
                | Clip
        )
    }

    /// The result's dtype.
    ///
    /// # Errors
    /// If the row does not take operands of these dtypes.
    pub fn infer_dtype(self, inputs: &[&Fact]) -> Result<DType, OpError> {
        let row = self.row();
        let values = match row.takes {
            Takes::MaskThenAny => {
                ensure!(
                    inputs[0].dtype == DType::Bool,
                    "the condition must be bool, not {}",
                    inputs[0].dtype
                );
                &inputs[1..]
            }
            _ => inputs,
        };
        let dtype = values[0].dtype;
        for f in values {
            ensure!(
                f.dtype == dtype,
                "operands have dtypes {dtype} and {}; cast one of them",
                f.dtype
            );
        }
        if !matches!(row.takes, Takes::Stored | Takes::MaskThenAny) {
            check_computes(dtype)?;
        }
        ensure!(
            self.takes(dtype),
            "is not defined on {dtype}{}",
            match row.takes {
                Takes::Float => ", only on floats",
                Takes::Number => ", only on numbers",
                Takes::IntOrBool => ", only on integers and bool",
                Takes::Int => ", only on integers",
                _ => "",
            }
        );
        Ok(match row.gives {
            Gives::Same => dtype,
            Gives::Bool => DType::Bool,
        })
    }
}
