//! Tile programs as functions.

use super::dialect::{C99, Dialect, memory};
use super::numbers::Numbers;
use super::stage::{Called, StageAddress, Stages};
use super::text::{Text, indices, sum};
use super::{lanes, rows};
use crate::error::{Error, Result};
use kiln_base::{Compute, DType};
use kiln_plan::memory::ALIGN;
use kiln_plan::tile::{Inst, TileProgram};

/// The parameters of a function that are arrays, each with its declaration, such as `const float *restrict a0`.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArrayParams(Vec<(String, String)>);

impl ArrayParams {
    /// Adds an array, unless there is one of this name. True if it was added.
    pub fn add(&mut self, name: &str, dtype: DType, written: bool) -> bool {
        let is_new = self.0.iter().all(|(other, _)| other != name);
        if is_new {
            let constant = if written { "" } else { "const " };
            let text = format!("{constant}{} *restrict {name}", memory(dtype));
            self.0.push((name.into(), text));
        }
        is_new
    }

    /// The names of the arrays, which are the arguments of a call from a function with arrays of the same names.
    pub fn names(&self) -> Vec<String> {
        self.0.iter().map(|(name, _)| name.clone()).collect()
    }
}

/// An emitted function.
pub(crate) struct Function {
    pub name: String,
    /// The arrays that it takes, by their names when it was emitted.
    pub params: ArrayParams,
    /// True if it takes a pointer for error numbers.
    pub fails: bool,
    /// The bytes of scratch memory that it needs.
    pub scratch: usize,
}

impl Function {
    /// A call of it, with `numbers` between the arrays and the remaining arguments.
    pub fn call(&self, arrays: &[String], numbers: &[String], scratch: &str) -> String {
        let mut args = arrays.to_vec();
        args.extend_from_slice(numbers);
        if self.fails {
            args.push("failed".into());
        }
        if self.scratch > 0 {
            args.push(scratch.into());
        }
        format!("{}({});", self.name, args.join(", "))
    }

    /// Opens its definition, with `numbers` between the arrays and the remaining parameters.
    pub fn open(&self, numbers: &[&str], text: &mut Text) {
        let mut params: Vec<&str> = self.params.0.iter().map(|(_, text)| &text[..]).collect();
        params.extend(numbers);
        params.extend(self.fails.then_some("int *failed"));
        params.extend((self.scratch > 0).then_some("unsigned char *scratch"));
        if params.is_empty() {
            params.push("void");
        }
        text.open(format!("static void {}({})", self.name, params.join(", ")));
    }
}

/// Emits a program: over all its points, or over the points `from..to` if an argument exists in part.
pub(crate) fn emit(called: &Called<'_>, text: &mut Text) -> Result<Function> {
    let numbers = Numbers::new(called.program, called.values)?;
    let stages = Stages::new(&numbers, called);
    let mut declared = Text::default();
    let function = Function {
        name: called.name.clone(),
        params: params(&numbers, called),
        fails: can_fail(called.program),
        scratch: slots(&numbers, &mut declared)?,
    };
    let range: &[&str] = match called.raw {
        Some(_) => &["kiln_int first", "kiln_int from", "kiln_int to"],
        None => &[],
    };
    function.open(range, text);
    text.block(&declared.into_string());
    if called.raw.is_some() {
        text.line("(void)first;");
    }
    match numbers.by_rows() {
        true => rows::emit(&stages, text)?,
        false => lanes::emit(&stages, text)?,
    }
    text.close();
    text.line("");
    Ok(function)
}

/// True if a program can report an error.
fn can_fail(program: &TileProgram) -> bool {
    let mut code = program.stages.iter().flat_map(|s| &s.code);
    code.any(|i| match i {
        Inst::LoadAt { dynamic, .. } => !dynamic.is_empty(),
        Inst::Binary { op, a, .. } => {
            let ty = program.registers.get(usize::from(a.0));
            op.divides() && !ty.is_some_and(|t| t.is_float())
        }
        _ => false,
    })
}

/// The arrays that a program uses, each once.
fn params(numbers: &Numbers<'_>, called: &Called<'_>) -> ArrayParams {
    let mut params = ArrayParams::default();
    let code = || numbers.program.stages.iter().flat_map(|s| &s.code);
    let used = |arg: usize| {
        code().any(|i| match i {
            Inst::Load { access, .. }
            | Inst::LoadAt { access, .. }
            | Inst::Store { access, .. } => numbers.accesses[usize::from(*access)].arg == arg,
            _ => false,
        })
    };
    for (arg, name) in called.args.iter().enumerate() {
        if used(arg) {
            let mut same = called.args.iter().zip(&numbers.program.args);
            let written = same.any(|(n, a)| n == name && a.written);
            params.add(name, numbers.program.args[arg].dtype, written);
        }
    }
    params
}

/// The number of elements of a slot.
fn slot_len(numbers: &Numbers<'_>) -> Result<usize> {
    let lanes = if numbers.by_rows() { 1 } else { lanes::TILE };
    let len = numbers.inner_points().checked_mul(lanes);
    let len = len.and_then(|n| usize::try_from(n).ok());
    len.ok_or_else(|| Error::Damaged("a slot without size".into()))
}

/// Declares the slots and returns the bytes of scratch memory that they take.
fn slots(numbers: &Numbers<'_>, text: &mut Text) -> Result<usize> {
    let len = slot_len(numbers)?;
    let mut offset = 0;
    for (i, ty) in numbers.program.slots.iter().enumerate() {
        let ctype = C99::ctype(*ty);
        text.line(in_scratch(ctype, &format!("k{i}"), offset));
        let width = if *ty == Compute::Mask { 4 } else { ty.size() };
        offset += (len * width).next_multiple_of(ALIGN);
    }
    Ok(offset)
}

/// The declaration of an array at an offset of the scratch memory.
pub(super) fn in_scratch(ctype: &str, name: &str, offset: usize) -> String {
    format!("{ctype} *restrict {name} = ({ctype} *)(void *)(scratch + {offset});")
}

/// The address of a point: the indices of the axes are `i0`, `i1`, .., those of the inner axes `j0`, ...
pub(super) fn address(numbers: &Numbers<'_>) -> StageAddress {
    let axes = numbers.axes.len();
    let names = indices("i", axes).into_iter();
    let names = names.chain(indices("j", numbers.inner.len()));
    StageAddress {
        index: names.map(|name| vec![name]).collect(),
        number: String::new(),
        lane: "",
        part: "",
        slot: String::new(),
    }
}

/// The number of an inner point, as an expression of the terms of its indices.
pub(super) fn inner_number(numbers: &Numbers<'_>, address: &StageAddress) -> String {
    let mut stride: i64 = numbers.inner_points();
    let mut terms = Vec::new();
    for (n, names) in numbers
        .inner
        .iter()
        .zip(&address.index[numbers.axes.len()..])
    {
        stride /= (*n).max(1);
        terms.extend(names.iter().map(|name| (stride, &name[..])));
    }
    sum(0, terms)
}
