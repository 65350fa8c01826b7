//! Collective operations, recorded in the order in which they are called.

use crate::autograd::with_derivative;
use crate::record::compose;
use crate::{AsTensor, Result, Tensor, Var, no_grad};
use kiln_base::collective::Kind;
use kiln_ir::{Builder, OpError, ensure, ops};
use kiln_lazy::body;
use std::sync::Arc;

/// Records a collective operation of the group of this name, which has so many ranks; see [`kiln_base::collective`].
/// It is for the crate that makes groups.
///
/// The cell holds the process's token, an i64 of shape `[1]`, and is assigned the next one. So operations run in the
/// order in which they are recorded, each once, when anything of their recording is read. `backward` returns the
/// gradient of `x` for one of the result.
#[track_caller]
pub fn collective(
    kind: Kind,
    (group, ranks): (&Arc<str>, usize),
    token: &Var,
    x: impl AsTensor,
    backward: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
) -> Tensor {
    let (x, last) = (x.as_tensor().into_owned(), token.get());
    compose(kind.name(), &[&x, &last], |b| {
        ensure!(
            !body::is_tracing(),
            "processes can't communicate inside scan, cond and while_loop; call it outside"
        );
        ensure!(
            x.device() == last.device(),
            "the group communicates on {}, and the operand is on {}: move it there, or begin with the backend of that \
             device (`mpi` on CPUs, `nccl` on GPUs)",
            last.device(),
            x.device()
        );
        let op = ops::Collective {
            group: group.clone(),
            ranks: ranks as u32,
            kind,
        };
        let outputs = no_grad(|| b.emit(op.into(), &[x.clone(), last.clone()]))?;
        let failed = |e: crate::Error| OpError(e.to_string());
        token.assign(&outputs[1]).map_err(failed)?;
        Ok(with_derivative(&outputs[0], &[&x], b.call_site(), || {
            Arc::new(move |_, _, g| {
                let gradient = backward(g);
                vec![Some(gradient.unwrap_or_else(Tensor::from_error))]
            })
        }))
    })
}
