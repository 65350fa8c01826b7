//! A kernel as a function: the parts that the emitters of all kinds share.

use super::dialect::memory;
use super::numbers::{bytes, number, numbers};
use super::stage::Called;
use super::text::{Text, affine, indices};
use super::tile::{self, ArrayParams, Function, in_scratch};
use crate::error::{Error, Result};
use kiln_base::{DType, Dim};
use kiln_plan::memory::ALIGN;
use kiln_plan::tile::{Inst, TileProgram};
use kiln_plan::{Epilogue, Kernel, Prologue};

/// The layout of a constant array for the kernel that reads it. Element i of the new array is the old one's element
/// at `offset + Σ strides · index`, where `index` is i in the row-major order of the extents.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct View {
    pub offset: i64,
    pub extents: Vec<i64>,
    pub strides: Vec<i64>,
}

impl View {
    /// The row-major strides of the new array.
    pub fn packed_strides(&self) -> Vec<i64> {
        packed_strides(&self.extents, 1)
    }

    /// The position in the old array of each element of the new one.
    pub fn positions(&self) -> Vec<i64> {
        let mut offsets = vec![self.offset];
        for (n, stride) in self.extents.iter().zip(&self.strides) {
            let current = offsets.iter();
            offsets = current
                .flat_map(|p| (0..*n).map(move |i| p + i * stride))
                .collect();
        }
        offsets
    }
}

/// The row-major strides of an array of these extents, whose elements are `unit` apart.
pub(super) fn packed_strides(extents: &[i64], unit: i64) -> Vec<i64> {
    let mut strides = vec![unit; extents.len()];
    for i in (1..strides.len()).rev() {
        strides[i - 1] = strides[i] * extents[i];
    }
    strides
}

/// An argument of a kernel.
pub(crate) struct Argument {
    /// Its name; arguments in the same memory have the same name.
    pub name: String,
    pub dtype: DType,
    pub written: bool,
    /// True if it is constant and its layout may change.
    pub fixed: bool,
    /// Its layout, if it differs from the original.
    pub view: Option<View>,
    used: bool,
}

impl Argument {
    /// Lays it out in the weights if it is constant; returns the view otherwise.
    pub fn lay_out(&mut self, view: View) -> Option<View> {
        match self.fixed && self.view.is_none() {
            true => self.view.replace(view),
            false => Some(view),
        }
    }
}

/// A kernel that is being emitted.
pub(crate) struct Emitter<'a> {
    pub name: String,
    pub values: &'a [i64],
    pub args: Vec<Argument>,
    pub sites: &'a [u32],
    /// The functions that it calls, emitted before it.
    pub before: Text,
    pub body: Text,
    scratch: usize,
    arrays: usize,
    fails: bool,
}

/// An emitted kernel, and the arguments to call it with.
pub(crate) struct EmittedKernel {
    pub function: Function,
    /// For each array parameter of the function, the argument and its layout.
    pub args: Vec<(usize, Option<View>)>,
}

impl<'a> Emitter<'a> {
    /// The emission of a kernel with these names of arguments; `add_constant` marks the constant ones.
    pub fn new(
        name: String,
        kernel: &Kernel,
        (names, fixed): (&[String], &[bool]),
        (sites, values): (&'a [u32], &'a [i64]),
    ) -> Result<Emitter<'a>> {
        let contract = kernel.contract();
        let contract = contract.map_err(|e| Error::Damaged(e.to_string()))?;
        let read_by_programs = read_by_programs(kernel);
        let args = contract.args.iter().enumerate().map(|(i, a)| Argument {
            name: names[i].clone(),
            dtype: a.dtype,
            written: (contract.args.iter().zip(names)).any(|(a, n)| a.writes && *n == names[i]),
            fixed: fixed[i] && !read_by_programs.contains(&i),
            view: None,
            used: false,
        });
        Ok(Emitter {
            name,
            values,
            args: args.collect(),
            sites,
            before: Text::default(),
            body: Text::default(),
            scratch: 0,
            arrays: 0,
            fails: false,
        })
    }

    pub fn number(&self, d: &Dim) -> Result<i64> {
        number(d, self.values)
    }

    pub fn numbers(&self, dims: &[Dim]) -> Result<Vec<i64>> {
        numbers(dims, self.values)
    }

    /// The name of an argument.
    pub fn arg(&mut self, at: u16) -> String {
        let arg = &mut self.args[usize::from(at)];
        arg.used = true;
        arg.name.clone()
    }

    /// Reserves bytes of scratch memory and returns their offset.
    pub fn room(&mut self, bytes: usize) -> usize {
        let offset = self.scratch;
        self.scratch += bytes.next_multiple_of(ALIGN);
        offset
    }

    /// Declares an array in scratch memory and returns its name.
    pub fn array(&mut self, dtype: DType, len: i64) -> Result<String> {
        let offset = self.room(bytes(len, dtype)?);
        let name = format!("own{}", self.arrays);
        self.arrays += 1;
        self.body.line(in_scratch(memory(dtype), &name, offset));
        Ok(name)
    }

    /// Emits the copy of an array in the layout of a view.
    pub fn pack(&mut self, to: &str, from: &str, view: &View) {
        let names = indices("e", view.extents.len());
        for (name, n) in names.iter().zip(&view.extents) {
            self.body.loop_to(name, n);
        }
        let packed = affine(0, &view.packed_strides(), &names);
        let element = affine(view.offset, &view.strides, &names);
        self.body
            .line(format!("{to}[{packed}] = {from}[{element}];"));
        self.body.close_all(names.len());
    }

    /// Emits a prologue or epilogue, whose last argument is the array `last`; of `raw`, only a part exists.
    fn program(&mut self, program: &TileProgram, last: &str) -> Result<Function> {
        let mut names: Vec<String> = self.args.iter().map(|a| a.name.clone()).collect();
        names.truncate(program.args.len() - 1);
        let in_part = last == RAW;
        let name = match in_part {
            true => format!("{}_epilogue", self.name),
            false => format!("{}_prologue{}", self.name, self.arrays),
        };
        let raw = in_part.then_some(names.len());
        names.push(last.into());
        let call = Called {
            name,
            program,
            values: self.values,
            args: &names,
            sites: self.sites,
            raw,
        };
        let function = tile::emit(&call, &mut self.before)?;
        for name in function.params.names() {
            if let Some(arg) = self.args.iter_mut().find(|a| a.name == name) {
                arg.used = true;
            }
        }
        self.fails |= function.fails;
        Ok(function)
    }

    /// The array of an operand: an argument, or what its prologue computes.
    pub fn operand(&mut self, arg: u16, prologue: &Option<Box<Prologue>>) -> Result<String> {
        match prologue {
            Some(prologue) => self.materialise(prologue),
            None => Ok(self.arg(arg)),
        }
    }

    /// Computes a whole operand by its prologue, into an array in scratch memory.
    fn materialise(&mut self, prologue: &Prologue) -> Result<String> {
        let program = &prologue.program;
        let points = self.numbers(&program.axes)?.iter().product();
        let dtype = program.args.last().map(|a| a.dtype);
        let dtype = dtype.ok_or_else(|| Error::Damaged("a prologue without arguments".into()))?;
        let array = self.array(dtype, points)?;
        let function = self.program(program, &array)?;
        let room = self.room(function.scratch);
        let call = function.call(&function.params.names(), &[], &format!("scratch + {room}"));
        self.body.line(call);
        Ok(array)
    }

    /// The destination of results of a dtype: the argument `out`, or an array of `len` that the epilogue reads.
    pub fn destination(
        &mut self,
        epilogue: &Option<Epilogue>,
        out: u16,
        (dtype, len): (DType, i64),
    ) -> Result<Destination> {
        let epilogue = self.epilogue(epilogue)?;
        let array = match &epilogue {
            Some(_) => self.array(dtype, len)?,
            None => self.arg(out),
        };
        Ok(Destination { array, epilogue })
    }

    fn epilogue(&mut self, epilogue: &Option<Epilogue>) -> Result<Option<EpilogueCode>> {
        let Some(epilogue) = epilogue else {
            return Ok(None);
        };
        let function = self.program(&epilogue.program, RAW)?;
        let room = self.room(function.scratch);
        // The epilogue's points may be whole rows.
        let row = match epilogue.over_rows() {
            true => self.numbers(&epilogue.program.inner)?.iter().product(),
            false => 1,
        };
        Ok(Some(EpilogueCode {
            function,
            room,
            row,
        }))
    }

    /// Emits the whole function after the functions that it calls.
    pub fn finish(self, text: &mut Text) -> EmittedKernel {
        let mut args = Vec::new();
        let mut params = ArrayParams::default();
        for (i, a) in self.args.iter().enumerate() {
            if a.used && params.add(&a.name, a.dtype, a.written) {
                args.push((i, a.view.clone()));
            }
        }
        let function = Function {
            name: self.name,
            params,
            fails: self.fails,
            scratch: self.scratch,
        };
        text.block(&self.before.into_string());
        function.open(&[], text);
        text.block(&self.body.into_string());
        text.close();
        text.line("");
        EmittedKernel { function, args }
    }

    /// Records that it can report an error.
    pub fn fails(&mut self) {
        self.fails = true;
    }
}

/// The name of the argument of an epilogue that it reads results from.
const RAW: &str = "raw";

/// The destination of results.
pub(crate) struct Destination {
    /// The argument, or the array that an epilogue reads.
    pub array: String,
    epilogue: Option<EpilogueCode>,
}

impl Destination {
    pub fn has_epilogue(&self) -> bool {
        self.epilogue.is_some()
    }

    /// A pointer to the block of results that begins with number `first`; with an epilogue, it begins the array.
    pub fn block(&self, first: &str) -> String {
        match self.has_epilogue() {
            true => self.array.clone(),
            false => format!("{} + {first}", self.array),
        }
    }

    /// Emits the epilogue, if there is one, on `len` results, which begin with number `first`.
    pub fn finish(&self, first: &str, len: &str, body: &mut Text) {
        if let Some(epilogue) = &self.epilogue {
            body.line(epilogue.call(&self.array, first, len));
        }
    }
}

/// An epilogue on results.
struct EpilogueCode {
    function: Function,
    room: usize,
    /// The number of elements of a point.
    row: i64,
}

impl EpilogueCode {
    /// A call for the `len` elements of `raw` from number `first` on.
    fn call(&self, raw: &str, first: &str, len: &str) -> String {
        let arrays = self.function.params.names().into_iter();
        let arrays = arrays.map(|name| if name == RAW { raw.into() } else { name });
        let arrays: Vec<String> = arrays.collect();
        let point = |n: &str| match self.row {
            1 => n.to_string(),
            row => format!("({n}) / {}", row.max(1)),
        };
        let end = format!("{first} + {len}");
        let numbers = [first.to_string(), point(first), point(&end)];
        let room = format!("scratch + {}", self.room);
        self.function.call(&arrays, &numbers, &room)
    }
}

/// The arguments that the tile programs of a kernel access.
fn read_by_programs(kernel: &Kernel) -> Vec<usize> {
    let programs = kernel.programs();
    let of = programs.flat_map(|p| {
        let code = p.stages.iter().flat_map(|s| &s.code);
        code.filter_map(|i| match i {
            Inst::Load { access, .. }
            | Inst::LoadAt { access, .. }
            | Inst::Store { access, .. } => {
                Some(usize::from(p.accesses.get(usize::from(*access))?.arg))
            }
            _ => None,
        })
    });
    of.collect()
}
