//! Operands of products that their prologues compute while they are read.

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

/// Returns an estimate, from the machine code of kernels, of the instructions of a thread that make an element in
/// registers, of an element of argument `source`.
pub(super) fn making(prologue: &Kernel, source: usize) -> f64 {
    let each = match pairs::suits(prologue, source) {
        _ if is_costly(prologue) => return 40.0,
        true => 0.5,
        false => 1.5,
    };
    each * prologue.body.len() as f64
}

/// Returns the only argument that a prologue reads at the position of each element, so that it can be computed in the
/// registers of threads that multiply. What else it reads is for all elements, or one for each line or each term.
pub(super) fn source(c: &Contraction, side: usize, prologue: &Kernel) -> Option<usize> {
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
    let source = loads.iter().copied().find(is_in_order)?.arg;
    let indices = indices(c, side, prologue);
    let is_along_one = |a: &Access| {
        let mut moving = a.strides.iter().zip(&indices).filter(|(s, _)| !s.is(0));
        moving.next().is_none_or(|(_, index)| index.is_some()) && moving.next().is_none()
    };
    let fits = |a: &&Access| match a.arg == source {
        true => is_in_order(a),
        false => is_along_one(a),
    };
    let is_plain = loads.iter().all(|a| a.bounds.is_empty() && fits(a));
    is_plain.then_some(source.into())
}

/// Returns the index of each axis of a prologue that is an operand's lines or its terms.
fn indices(c: &Contraction, side: usize, prologue: &Kernel) -> Vec<Option<&'static str>> {
    let lines = [ROWS, COLUMNS][side];
    let c = c.seen_by(&c.operands[side]);
    let strides = contiguous_strides(&prologue.axes);
    let extents: Vec<&Dim> = c.extents().collect();
    let axis = |at: usize| {
        let mut axes = prologue.axes.iter().zip(&strides);
        axes.position(|(n, stride)| n == extents[at] && *stride == c.result.strides[at])
    };
    let mut indices = vec![None; prologue.axes.len()];
    // Every loop must be an axis, or stay at its elements: then no other moves along the lines or terms.
    let still = |at: usize| c.result.strides[at].is(0);
    if !c.result.offset.is(0) || !(0..extents.len()).all(|at| still(at) || axis(at).is_some()) {
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

/// Declares `make_a`, which returns the f32 that an element of the left operand is rounded from, of the element of
/// `source` in memory, its line and its term; or a register with two neighbours, of a register with those of `source`.
/// The text follows the numbers `m` and `k`.
pub(super) fn in_registers(
    source: &mut Source,
    call: &Call,
    (c, prologue): (&Contraction, &Kernel),
    raw: usize,
) -> String {
    let kernel = called(prologue, call);
    let dtype = prologue.args[raw].dtype;
    let by_pairs = pairs::suits(prologue, raw);
    let moves = |axis: usize| {
        let mut others = prologue.accesses.iter().filter(|a| {
            let arg = usize::from(a.arg);
            arg != raw && arg != prologue.args.len() - 1
        });
        others.any(|a| !a.strides[axis].is(0))
    };
    let indices = indices(c, 0, prologue).into_iter().enumerate();
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
            let aligned = |arg: u16| is_even && call.work.is_aligned(call.args[usize::from(arg)].0);
            let made = pairs::emit(source, &kernel, arg, &indices, aligned);
            source.line(format!("return {made};"));
            source.line("};");
            return;
        }
        let mut values = Values::new(&kernel);
        values.replace(call.position(Slot::Arg(raw)), CudaCpp::loaded("raw", dtype));
        let names = indices.iter().map(|index| index.unwrap_or("0").to_string());
        values.indices = names.collect();
        values.define_all(source);
        // Registers round an f32 themselves.
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
