//! Operands of products that prologues make while they are read.

use super::call::Call;
use crate::cuda::source::Source;
use crate::cuda::values::Values;
use crate::kir::{Arg, Kernel};
use crate::work::Slot;
use kiln_base::DType;
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::CudaCpp;

/// The class of such operands, behind the type of elements.
pub(super) const CLASS: &str = include_str!("made.cu");

/// More values than this take a thread long.
const LONG: usize = 16;

/// What operands are, which are these arguments of some work, or what they are made of.
pub(super) fn reads(
    made: [Option<&Kernel>; 2],
    args: [u16; 2],
    dtype: DType,
) -> Vec<(Slot, DType)> {
    let mut reads = Vec::new();
    for (prologue, arg) in made.into_iter().zip(args) {
        match prologue {
            None => reads.push((Slot::Arg(arg as usize), dtype)),
            Some(prologue) => {
                let made = prologue.args.len() - 1;
                let args = prologue.accesses.iter().map(|a| a.arg as usize);
                let args = args.filter(|a| *a != made);
                reads.extend(args.map(|a| (Slot::Arg(a), prologue.args[a].dtype)));
            }
        }
    }
    reads
}

/// Whether an element takes many instructions, so that threads should make few each.
pub(super) fn is_costly(prologue: &Kernel) -> bool {
    let expensive = prologue.body.iter().any(|d| d.expr.is_expensive());
    expensive || prologue.body.len() > LONG
}

/// Declares `make_{name}`, which gives an element of the operand, as memory would hold it, by its position.
pub(super) fn function(source: &mut Source, call: &Call, prologue: &Kernel, name: &str) -> String {
    let kernel = called(prologue, call);
    source.apart(|source| {
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

/// Declares what gives elements of an operand by position, with its type and the place of the first: an argument
/// of the work, or what a prologue makes.
pub(super) fn place(
    source: &mut Source,
    call: &Call,
    made: Option<&Kernel>,
    arg: u16,
    name: &str,
) -> (String, String, String) {
    let Some(prologue) = made else {
        let pointer = call.pointer(Slot::Arg(arg as usize));
        return (String::new(), "const Elem*".into(), pointer);
    };
    let class = format!("Place<decltype(make_{name})>");
    let first = format!("{class}{{make_{name}, 0}}");
    (function(source, call, prologue, name), class, first)
}

/// The prologue, whose arguments are those of the kernel that is called.
fn called(prologue: &Kernel, call: &Call) -> Kernel {
    let mut kernel = prologue.clone();
    let made = kernel.args.len() - 1;
    for access in &mut kernel.accesses {
        access.arg = match access.arg as usize {
            arg if arg == made => call.args.len(),
            arg => call.place(Slot::Arg(arg)),
        } as u16;
    }
    let whole = kernel.args[made];
    let args = call.args.iter().map(|(_, a)| *a);
    kernel.args = args.chain([whole]).collect::<Vec<Arg>>();
    kernel
}
