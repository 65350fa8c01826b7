//! Tile programs as functions.

use super::dialect::{C99, Dialect, memory};
use super::numbers::Numbers;
use super::stage::{StageAddress, Stages};
use super::text::{Text, indices, sum};
use super::{lanes, rows};
use crate::error::{Error, Result};
use kiln_base::Compute;
use kiln_plan::tile::{Inst, TileProgram};

/// A parameter of an emitted function: an array.
#[derive(Clone, Debug)]
pub(crate) struct Param {
    pub name: String,
    /// Its declaration in C, such as `const float *restrict a0`.
    pub text: String,
}

/// An emitted function.
pub(crate) struct Function {
    pub name: String,
    /// The arrays that it takes, by their names when it was emitted.
    pub params: Vec<Param>,
    /// True if it takes a pointer for error numbers.
    pub fails: bool,
    /// The bytes of scratch memory that it needs.
    pub scratch: usize,
}

/// A program, and the arguments to emit it with.
pub(crate) struct Called<'a> {
    pub name: String,
    pub program: &'a TileProgram,
    pub values: &'a [i64],
    /// The name of each argument; arguments in the same memory have the same name.
    pub args: &'a [String],
    pub sites: &'a [u32],
    /// The argument of which only a part exists, if the program works on ranges of its points.
    pub raw: Option<usize>,
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
        let mut params: Vec<&str> = self.params.iter().map(|p| &p.text[..]).collect();
        params.extend(numbers);
        params.extend(self.fails.then_some("int *failed"));
        params.extend((self.scratch > 0).then_some("unsigned char *scratch"));
        if params.is_empty() {
            params.push("void");
        }
        text.open(format!("static void {}({})", self.name, params.join(", ")));
    }

    /// The arrays by their own names, for a call from a function whose arrays have the same names.
    pub fn own_arguments(&self) -> Vec<String> {
        self.params.iter().map(|p| p.name.clone()).collect()
    }
}

/// Emits a program: over all its points, or over the points `from..to` if an argument exists in part.
pub(crate) fn emit(called: &Called<'_>, text: &mut Text) -> Result<Function> {
    let with_name = |e: Error| e.in_kernel(&called.program.name);
    emit_program(called, text).map_err(with_name)
}

fn emit_program(called: &Called<'_>, text: &mut Text) -> Result<Function> {
    let numbers = Numbers::new(called.program, called.values)?;
    let stages = Stages::new(&numbers, called.args, called.sites, called.raw);
    let function = Function {
        name: called.name.clone(),
        params: params(&numbers, called),
        fails: can_fail(called.program),
        scratch: scratch(&numbers)?,
    };
    let range: &[&str] = match called.raw {
        Some(_) => &["kiln_int first", "kiln_int from", "kiln_int to"],
        None => &[],
    };
    function.open(range, text);
    slots(&numbers, text)?;
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
fn params(numbers: &Numbers<'_>, called: &Called<'_>) -> Vec<Param> {
    let mut params: Vec<Param> = Vec::new();
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
        if !used(arg) || params.iter().any(|p| p.name == *name) {
            continue;
        }
        let same = called.args.iter().zip(&numbers.program.args);
        let written = same.clone().any(|(n, a)| n == name && a.written);
        let ctype = memory(numbers.program.args[arg].dtype);
        params.push(Param {
            name: name.clone(),
            text: pointer(ctype, written, name),
        });
    }
    params
}

/// A parameter that is an array.
pub(crate) fn pointer(ctype: &str, written: bool, name: &str) -> String {
    match written {
        true => format!("{ctype} *restrict {name}"),
        false => format!("const {ctype} *restrict {name}"),
    }
}

/// The number of elements of a slot.
fn slot_len(numbers: &Numbers<'_>) -> Result<usize> {
    let lanes = if numbers.by_rows() { 1 } else { lanes::TILE };
    let len = numbers.inner_points().checked_mul(lanes);
    let len = len.and_then(|n| usize::try_from(n).ok());
    len.ok_or_else(|| Error::Damaged("a slot without size".into()))
}

fn scratch(numbers: &Numbers<'_>) -> Result<usize> {
    let len = slot_len(numbers)?;
    let slots = numbers.program.slots.iter();
    let slots = slots.map(|ty| (len * width(*ty)).next_multiple_of(kiln_plan::memory::ALIGN));
    Ok(slots.sum())
}

/// The bytes of a value that is kept.
fn width(ty: Compute) -> usize {
    ty.size().max(if ty == Compute::Mask { 4 } else { 0 })
}

fn slots(numbers: &Numbers<'_>, text: &mut Text) -> Result<()> {
    let len = slot_len(numbers)?;
    let mut offset = 0;
    for (i, ty) in numbers.program.slots.iter().enumerate() {
        let ctype = C99::ctype(*ty);
        text.line(format!(
            "{ctype} *restrict k{i} = ({ctype} *)(void *)(scratch + {offset});"
        ));
        offset += (len * width(*ty)).next_multiple_of(kiln_plan::memory::ALIGN);
    }
    Ok(())
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
