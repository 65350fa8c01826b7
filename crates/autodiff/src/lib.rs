//! Gradients, as ordinary nodes.
//!
//! [`pullback`] is the derivative of one op: from the cotangents of its outputs to those of its inputs. It is written
//! against [`Builder`], so the same rules differentiate graphs and lazily recorded tensors, and the recorded
//! gradients can be optimised, fused and differentiated again. The rules are compiled once, for a type-erased
//! builder. [`backward`] chains the rules over a program. At ties and kinks the rules are PyTorch's.
//!
//! ```
//! use kiln_autodiff::gradients;
//! use kiln_ir::eval::{Array, Mode, evaluate};
//! use kiln_ir::{Builder, DType, Fact, Graph, GraphBuilder, Loc, Pw, Role};
//!
//! let mut graph = Graph::default();
//! let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
//! let x = b.input(Fact::new(DType::F32, [3]), Role::Data);
//! let y = b.pointwise(Pw::Square, &[x]).unwrap();
//! let ones = b.full(1.0, DType::F32, &[3.into()]).unwrap();
//! let dx = gradients(&mut graph, &[(y, ones)], &[x]).unwrap()[0].unwrap();
//! graph.add_output(dx);
//! let x = Array::from_f64(DType::F32, &[3], &[1.0, 2.0, 3.0]).unwrap();
//! let dx = evaluate(&graph, &[x], &[], Mode::Rounded).unwrap();
//! assert_eq!(dx[0].floats(), Some(&[2.0, 4.0, 6.0][..]));
//! ```

mod attention;
mod backward;
mod branch;
mod erased;
mod expr;
mod index;
mod linalg;
mod loops;
mod norm;
mod pointwise;
mod product;
mod reduce;
mod scan;
mod slices;
mod tape;
mod views;
mod window;

pub use backward::{
    BackwardStep, Custom, Observer, Problem, Rule, StepOutput, backward, gradients,
};
pub use loops::with_residuals;

use erased::{Erased, Id};
use kiln_base::linalg::Routine;
use kiln_ir::{Builder, Op, OpError};
use smallvec::{SmallVec, smallvec};

/// An op to be differentiated, with its operands and results.
pub struct Call<'a, V> {
    /// The op.
    pub op: &'a Op,
    /// Its operands.
    pub inputs: &'a [V],
    /// Its results.
    pub outputs: &'a [V],
    /// True for the operands that need a gradient. Only float operands do.
    pub needs_grad: &'a [bool],
}

/// One gradient for each operand; `None` where it is zero or not wanted.
pub type Gradients<V> = SmallVec<[Option<V>; 3]>;

/// Returns the gradients of the operands, for those of the outputs (`None` for zero). Each has the dtype and shape of
/// its operand.
///
/// # Errors
/// If the op has no derivative.
pub fn pullback<B: Builder>(
    b: &mut B,
    call: &Call<'_, B::Value>,
    cotangents: &[Option<B::Value>],
) -> Result<Gradients<B::Value>, OpError> {
    if cotangents.iter().all(Option::is_none) {
        return Ok(call.inputs.iter().map(|_| None).collect());
    }
    erased::pullback(b, call, cotangents)
}

/// [`pullback`] by the rule of the op, if some cotangent is not zero.
fn rule(
    b: &mut Erased<'_>,
    call: &Call<'_, Id>,
    cotangents: &[Option<Id>],
) -> Result<Gradients<Id>, OpError> {
    match call.op {
        Op::If(op) => return branch::pullback(b, op, call, cotangents),
        Op::Loop(op) => return loops::pullback(b, op, call, cotangents),
        Op::Barrier(op) if op.detach => return Ok(call.inputs.iter().map(|_| None).collect()),
        Op::Barrier(_) => return Ok(cotangents.iter().cloned().collect()),
        _ => {}
    }
    let Some(Some(g)) = cotangents.first() else {
        return Err(no_derivative(call.op));
    };
    let (x, y) = (call.inputs, call.outputs);
    let only = |v: Id| -> Gradients<Id> { smallvec![Some(v)] };
    Ok(match call.op {
        Op::Pointwise(op) => pointwise::pullback(b, op.0, call, g)?,
        Op::Cast(_) => {
            let dtype = b.with_fact(&x[0], |f| f.dtype);
            only(b.cast(g, dtype)?)
        }
        Op::Broadcast(_) => only(views::sum_to_shape(b, g, &x[0])?),
        Op::Reshape(_) => {
            let shape = b.fact(&x[0]).shape;
            only(b.reshape(g, &shape)?)
        }
        Op::Permute(op) => only(views::unpermute(b, &op.perm, g)?),
        Op::Slice(op) => only(views::unslice(b, &op.axes, g, &x[0])?),
        Op::Pad(op) => only(views::unpad(b, &op.low, g, &x[0])?),
        Op::Concat(op) => views::pullback_concat(b, op.axis, g, call)?,
        Op::Reduce(op) => only(reduce::pullback(b, op, g, &x[0], &y[0])?),
        Op::Scan(op) => only(scan::pullback(b, op, g, &x[0], &y[0])?),
        Op::Gather(op) => index::gather(b, op.axis, g, call)?,
        Op::Scatter(op) => index::scatter(b, op, g, call)?,
        Op::MatMul(_) => product::matmul(b, g, call)?,
        Op::Conv(op) => product::conv(b, op, g, call)?,
        Op::ConvTranspose(op) => product::conv_transpose(b, op, g, call)?,
        Op::ConvWeight(op) => product::conv_weight(b, op, g, call)?,
        Op::WindowReduce(op) => only(window::pullback(b, op, g, &x[0])?),
        Op::Softmax(op) => only(norm::softmax(b, op, g, &y[0])?),
        Op::BatchNorm(op) => norm::batch_norm(b, op, g, call)?,
        Op::Attention(op) => attention::pullback(b, op, g, call)?,
        Op::AttentionGrad(_) => tape::pullback_decomposed(b, call, g)?,
        Op::Input(_)
        | Op::Full(_)
        | Op::Constant(_)
        | Op::Iota(_)
        | Op::Numel(_)
        | Op::Random(_)
        | Op::ArgReduce(_)
        | Op::ArgSort(_) => call.inputs.iter().map(|_| None).collect(),
        Op::Custom(op) => {
            if let Some(routine) = Routine::named(&op.name) {
                return linalg::pullback(b, routine, call, g);
            }
            let text = "this custom op has no derivative; give it one with `backward`";
            return Err(OpError::new(text));
        }
        // A rule can't order the operations that it records among all others of the process. So the functions that
        // record collective operations bring their derivatives.
        Op::Collective(_) => return Err(no_derivative(call.op)),
        Op::If(_) | Op::Loop(_) | Op::Barrier(_) => unreachable!("handled above"),
    })
}

fn no_derivative(op: &Op) -> OpError {
    OpError(format!("{} has no derivative", op.name()))
}
