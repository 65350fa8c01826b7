//! Operands that prologues compute when a product reads them.

use super::call::Call;
use crate::cuda::source::Source;
use crate::cuda::values::Values;
use crate::kir::{Access, Arg, Expr, Kernel};
use crate::work::Slot;
use kiln_base::{DType, Dim, contiguous_strides};
use kiln_plan::contraction::{COLUMNS, Contraction, ROWS, TERMS};
use kiln_plan::cstyle::Dialect;
use kiln_plan::cuda::CudaCpp;

mod pairs;

/// The device classes of such operands. They follow the type of elements.
pub(super) const CLASS: &str = include_str!("prologue.cu");

/// The maximum number of values of a cheap prologue.
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

/// True if an element takes so many instructions that each thread should compute few.
pub(super) fn is_costly(prologue: &Kernel) -> bool {
    let expensive = prologue.body.iter().any(|d| d.expr.is_expensive());
    expensive || prologue.body.len() > MAX_CHEAP_VALUES
}

/// Returns the declaration of `make_{name}`, which returns the operand's element at a position.
pub(super) fn declare(source: &mut Source, call: &Call, prologue: &Kernel, name: &str) -> String {
    let kernel = with_call_args(prologue, call);
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

/// Returns an estimate, from the machine code of kernels, of a thread's instructions to compute an element in registers
/// from an element of argument `source`.
pub(super) fn instructions_per_element(prologue: &Kernel, source: usize) -> f64 {
    let each = match pairs::suits(prologue, source) {
        _ if is_costly(prologue) => return 40.0,
        true => 0.5,
        false => 1.5,
    };
    each * prologue.body.len() as f64
}

/// Returns the argument from which threads that multiply can compute a prologue in registers: the only one that it
/// reads elementwise. Its other operands are scalars, or vectors along lines or terms.
pub(super) fn elementwise_arg(c: &Contraction, side: usize, prologue: &Kernel) -> Option<usize> {
    let mut loads: Vec<&Access> = Vec::new();
    for def in &prologue.body {
        match def.expr {
            Expr::Load { access } => loads.push(&prologue.accesses[access as usize]),
            Expr::LoadAt { .. } | Expr::Index { .. } | Expr::Random { .. } => return None,
            _ => {}
        }
    }
    let strides = contiguous_strides(&prologue.axes);
    let is_in_order = |a: &&Access| a.offset.is(0) && a.strides == strides;
    let arg = loads.iter().copied().find(is_in_order)?.arg;
    let indices = axis_indices(c, side, prologue);
    let is_vector = |a: &Access| {
        let mut moving = a.strides.iter().zip(&indices).filter(|(s, _)| !s.is(0));
        moving.next().is_none_or(|(_, index)| index.is_some()) && moving.next().is_none()
    };
    let fits = |a: &&Access| match a.arg == arg {
        true => is_in_order(a),
        false => is_vector(a),
    };
    let is_plain = loads.iter().all(|a| a.bounds.is_empty() && fits(a));
    is_plain.then_some(arg.into())
}

/// Returns the name of the index of each axis of a prologue that is an operand's lines or terms.
fn axis_indices(c: &Contraction, side: usize, prologue: &Kernel) -> Vec<Option<&'static str>> {
    let lines = [ROWS, COLUMNS][side];
    let c = c.seen_by(&c.operands[side]);
    let strides = contiguous_strides(&prologue.axes);
    let extents: Vec<&Dim> = c.extents().collect();
    let axis = |at: usize| {
        let mut axes = prologue.axes.iter().zip(&strides);
        axes.position(|(n, stride)| n == extents[at] && *stride == c.result.strides[at])
    };
    let mut indices = vec![None; prologue.axes.len()];
    // Every loop must be an axis or have stride 0. Then no other loop moves along lines or terms.
    let is_axis = |at: usize| c.result.strides[at].is(0) || axis(at).is_some();
    if !c.result.offset.is(0) || !(0..extents.len()).all(is_axis) {
        return indices;
    }
    for (kind, name) in [(lines, "i"), (TERMS, "j")] {
        if let (Some(at), 1) = (c.range(kind).next(), c.range(kind).len())
            && let Some(axis) = axis(at)
        {
            indices[axis] = Some(name);
        }
    }
    indices
}

/// Returns the constants and functions before the text that makes the left operand in registers.
pub(super) fn scope(prologue: &Kernel, raw: usize, is_whole: bool) -> String {
    let by_pairs = pairs::suits(prologue, raw);
    let mut text = format!(
        "constexpr bool TAILS = {}, BY_PAIRS = {by_pairs};\n",
        !is_whole
    );
    if by_pairs {
        text += &pairs::functions(prologue.args[raw].dtype);
    }
    text
}

/// Returns the declaration of `make_a`, which returns an element of the left operand as an unrounded f32, from the
/// element of argument `raw`, its line and its term; or a register with two neighbours, from one with those of `raw`. It
/// follows the declarations of `m` and `k`.
pub(super) fn declare_in_registers(
    source: &mut Source,
    call: &Call,
    (c, prologue): (&Contraction, &Kernel),
    raw: usize,
) -> String {
    let kernel = with_call_args(prologue, call);
    let dtype = prologue.args[raw].dtype;
    let by_pairs = pairs::suits(prologue, raw);
    let moves = |axis: usize| {
        let mut operands = prologue.accesses.iter().filter(|a| {
            let arg = usize::from(a.arg);
            arg != raw && arg != prologue.args.len() - 1
        });
        operands.any(|a| !a.strides[axis].is(0))
    };
    let indices = axis_indices(c, 0, prologue).into_iter().enumerate();
    let indices = indices.map(|(axis, index)| index.filter(|_| moves(axis)));
    let indices: Vec<Option<&str>> = indices.collect();
    source.capture(|source| {
        let [from, made] = if by_pairs { ["unsigned", "unsigned"] } else { ["Raw", "float"] };
        source.line(format!(
            "const auto make_a = [&](const {from} raw, const Index line, const Index term) -> {made} {{"
        ));
        // Lines and terms outside of the operand are read somewhere in it, and not used.
        for index in indices.iter().flatten() {
            source.line(match *index {
                "i" => "const Index i = line < m ? line : 0;",
                _ => "const Index j = !TAILS || term < k ? term : 0;",
            });
            if *index == "j" && by_pairs {
                source.line("const Index next = !TAILS || term + 1 < k ? term + 1 : 0;");
            }
        }
        if by_pairs {
            let arg = call.position(Slot::Arg(raw)) as u16;
            let is_even = c.size(TERMS).as_const().is_some_and(|k| k % 2 == 0);
            let made = pairs::emit(source, &kernel, arg, &indices, is_even);
            source.line(format!("return {made};"));
            source.line("};");
            return;
        }
        let mut values = Values::new(&kernel);
        values.replace(call.position(Slot::Arg(raw)), CudaCpp::loaded("raw", dtype));
        let names = indices.iter().map(|index| index.unwrap_or("0").to_string());
        values.indices = names.collect();
        values.define_all(source);
        // The caller rounds f32.
        let stored = kernel.stores[0].value;
        let unrounded = match kernel.body[stored.index()].expr {
            Expr::Convert {
                a,
                from: DType::F32,
            } => a,
            _ => stored,
        };
        source.line(format!("return {};", values.name(unrounded)));
        source.line("};");
    })
}

/// Returns the prologue with the argument numbers of a call.
fn with_call_args(prologue: &Kernel, call: &Call) -> Kernel {
    let mut kernel = prologue.clone();
    let operand = kernel.args.len() - 1;
    for access in &mut kernel.accesses {
        access.arg = match access.arg as usize {
            arg if arg == operand => call.args.len(),
            arg => call.position(Slot::Arg(arg)),
        } as u16;
    }
    let operand_arg = kernel.args[operand];
    let args = call.args.iter().map(|(_, a)| *a);
    kernel.args = args.chain([operand_arg]).collect::<Vec<Arg>>();
    kernel
}
