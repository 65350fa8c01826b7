//! Operands of products that their prologues compute while they are read.

use super::call::Call;
use crate::cuda::source::Source;
use crate::cuda::values::Values;
use crate::kir::{Arg, Kernel};
use crate::work::Slot;
use kiln_base::DType;
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::CudaCpp;

/// The class of such operands, placed after the type of elements.
pub(super) const CLASS: &str = include_str!("prologue.cu");

/// The number of values above which a prologue is slow for a thread.
const MAX_CHEAP_VALUES: usize = 16;

/// Adds the arguments of a kernel that reads operands of these dtypes, or computes them by prologues.
pub(super) fn push(call: &mut Call, operands: &[(Slot, Option<&Kernel>); 2], dtypes: [DType; 2]) {
    for ((slot, operand), dtype) in operands.iter().zip(dtypes) {
        match operand {
            None => call.push(*slot, dtype, false),
            Some(prologue) => {
                let operand = prologue.args.len() - 1;
                let args = prologue.accesses.iter().map(|a| a.arg as usize);
                for a in args.filter(|a| *a != operand) {
                    call.push(Slot::Arg(a), prologue.args[a].dtype, false);
                }
            }
        }
    }
}

/// True if an element takes many instructions, so that each thread should compute few.
pub(super) fn is_costly(prologue: &Kernel) -> bool {
    let expensive = prologue.body.iter().any(|d| d.expr.is_expensive());
    expensive || prologue.body.len() > MAX_CHEAP_VALUES
}

/// Declares `make_{name}`, which returns an element of the operand, as memory would hold it, by its position.
pub(super) fn function(source: &mut Source, call: &Call, prologue: &Kernel, name: &str) -> String {
    let kernel = called(prologue, call);
    source.capture(|source| {
        source.line(format!(
            "const auto make_{name} = [&](const Index p) -> Elem {{"
        ));
        let mut values = Values::new(&kernel);
        values.decompose(source, "p");
        values.define_all(source);
        let value = values.name(kernel.stores[0].value);
        let element = CudaCpp::stored(&value, kernel.args[kernel.args.len() - 1].dtype);
        source.line(format!("return {element};"));
        source.line("};");
    })
}

/// Returns the prologue in terms of the arguments of the kernel that is called.
fn called(prologue: &Kernel, call: &Call) -> Kernel {
    let mut kernel = prologue.clone();
    let operand = kernel.args.len() - 1;
    for access in &mut kernel.accesses {
        access.arg = match access.arg as usize {
            arg if arg == operand => call.args.len(),
            arg => call.position(Slot::Arg(arg)),
        } as u16;
    }
    let whole = kernel.args[operand];
    let args = call.args.iter().map(|(_, a)| *a);
    kernel.args = args.chain([whole]).collect::<Vec<Arg>>();
    kernel
}
