//! What a kernel does with its arguments, whatever computes it.
//!
//! Each kind of kernel says it once, in [`Described`]: whoever checks a plan, orders its steps, or decides what may
//! share memory reads the [`Contract`] and nothing else.

use crate::tile::{Inst, TileProgram};
use crate::{Epilogue, Plan, Prologue, Reach};
use kiln_base::{DType, Dim};

/// What a kernel does with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    /// One an argument of the steps that call it.
    pub args: Vec<ArgUse>,
    /// How many places in it can report a data error.
    pub sites: u32,
}

/// What a kernel does with an argument.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ArgUse {
    /// Its element type.
    pub dtype: DType,
    /// When it is read.
    pub reads: Reads,
    /// Whether it is written.
    pub writes: bool,
}

/// When a kernel reads an argument.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reads {
    /// Not at all, or only what it wrote there itself.
    Never,
    /// Each element before anything is written at its place: a result may lie in its memory.
    First,
    /// Also after parts of a result are written.
    Throughout,
}

impl ArgUse {
    /// Whether it is read at all.
    pub fn is_read(&self) -> bool {
        self.reads != Reads::Never
    }
}

/// Why a kernel is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Contradiction(pub String);

/// Makes a [`Contradiction`].
macro_rules! contradiction {
    ($($text:tt)*) => { $crate::Contradiction(format!($($text)*)) };
}
pub(crate) use contradiction;

/// Is called with each size; false ends the walk.
pub(crate) type Visit<'a> = dyn FnMut(&Dim) -> bool + 'a;

/// What every kind of kernel says of itself.
pub trait Described {
    /// A readable name.
    fn name(&self) -> &str;

    /// What it does with its arguments.
    ///
    /// # Errors
    /// If it contradicts itself.
    fn contract(&self) -> Result<Contract, Contradiction>;

    /// Whether something holds for every size in it but those of its programs and bodies. Nothing is left out:
    /// patterns there name every field.
    fn own_dims(&self, holds: &mut dyn FnMut(&Dim) -> bool) -> bool;

    /// The extents whose product is the number of elements of the one result that it writes whole, if it does.
    fn results(&self) -> Option<Vec<&Dim>> {
        None
    }

    /// Arithmetic operations of a run, as an estimate, of a kernel that nothing is fused with.
    fn operations(&self) -> Dim {
        let results = self.results().into_iter().flatten();
        results.fold(Dim::ONE, |n, d| &n * d)
    }

    /// Which elements of its arguments it touches, but for those of its programs and bodies.
    fn reaches(&self) -> Vec<Reach> {
        Vec::new()
    }

    /// Whether it runs on the CPU in parts, so that steps of it can start together with others.
    fn in_parts(&self) -> bool {
        false
    }

    /// What makes its operands, one for each that it may be made for.
    fn prologues(&self) -> &[Option<Box<Prologue>>] {
        &[]
    }

    /// The tile program that works on its result; a fused group is nothing else.
    fn program(&self) -> Option<&TileProgram> {
        None
    }

    /// The programs that it runs.
    fn bodies(&self) -> &[Plan] {
        &[]
    }
}

/// A contract in the making.
pub(crate) struct Draft<'a> {
    name: &'a str,
    args: Vec<Option<ArgUse>>,
}

impl<'a> Draft<'a> {
    /// Of a kernel of this name.
    pub fn new(name: &'a str) -> Draft<'a> {
        let args = Vec::new();
        Draft { name, args }
    }

    fn arg(&mut self, at: u16, dtype: DType) -> Result<&mut ArgUse, Contradiction> {
        let at = usize::from(at);
        if at >= self.args.len() {
            self.args.resize(at + 1, None);
        }
        let reads = Reads::Never;
        let writes = false;
        let arg = self.args[at].get_or_insert(ArgUse {
            dtype,
            reads,
            writes,
        });
        match arg.dtype == dtype {
            true => Ok(arg),
            false => Err(contradiction!(
                "argument {at} of {} has two dtypes, {} and {dtype}",
                self.name,
                arg.dtype
            )),
        }
    }

    pub fn reads(&mut self, at: u16, dtype: DType, reads: Reads) -> Result<(), Contradiction> {
        let arg = self.arg(at, dtype)?;
        arg.reads = arg.reads.max(reads);
        Ok(())
    }

    /// No kernel writes an argument for two results.
    pub fn writes(&mut self, at: u16, dtype: DType) -> Result<(), Contradiction> {
        let name = self.name;
        let arg = self.arg(at, dtype)?;
        match std::mem::replace(&mut arg.writes, true) {
            false => Ok(()),
            true => Err(contradiction!("{name} writes argument {at} twice")),
        }
    }

    /// What a program does with the arguments of its step. `raw` is the dtype of one more, a part of a product,
    /// and whether the program writes that.
    pub fn program(
        &mut self,
        p: &TileProgram,
        raw: Option<(DType, bool)>,
        reads: Reads,
    ) -> Result<(), Contradiction> {
        let mut args = &p.args[..];
        if let Some((dtype, written)) = raw {
            args = match p.args.split_last() {
                Some((last, args)) if (last.dtype, last.written) == (dtype, written) => args,
                _ => {
                    return Err(contradiction!(
                        "{} reads or writes a part of a product of {dtype}",
                        p.name
                    ));
                }
            };
        }
        for (at, arg) in args.iter().enumerate() {
            let at = at as u16;
            match arg.written {
                true => self.writes(at, arg.dtype)?,
                false => self.reads(at, arg.dtype, Reads::Never)?,
            }
        }
        for inst in p.stages.iter().flat_map(|s| &s.code) {
            if let Inst::Load { access, .. } | Inst::LoadAt { access, .. } = inst {
                let arg = p.accesses.get(usize::from(*access)).map(|a| a.arg);
                let arg = arg.filter(|a| usize::from(*a) < p.args.len());
                let arg = arg.ok_or_else(|| contradiction!("{} names no argument", p.name))?;
                if let Some(of) = args.get(usize::from(arg)) {
                    self.reads(arg, of.dtype, reads)?;
                }
            }
        }
        Ok(())
    }

    /// What a product or the like does with its result: it is written, or passes through more work.
    pub fn result(
        &mut self,
        out: u16,
        dtype: DType,
        epilogue: &Option<Epilogue>,
    ) -> Result<(), Contradiction> {
        match epilogue {
            Some(e) => self.program(&e.program, Some((dtype, false)), Reads::First),
            None => self.writes(out, dtype),
        }
    }

    /// An operand, or what makes it.
    pub fn operand(
        &mut self,
        arg: u16,
        dtype: DType,
        prologue: &Option<Box<Prologue>>,
    ) -> Result<(), Contradiction> {
        let Some(Prologue { program }) = prologue.as_deref() else {
            return self.reads(arg, dtype, Reads::Throughout);
        };
        let stores = |a: &crate::tile::Arg| a.written;
        let others = program.args.len().saturating_sub(1);
        if program.sites > 0 || program.args[..others].iter().any(stores) {
            let name = &program.name;
            return Err(contradiction!("{name} does more than make an operand"));
        }
        self.program(program, Some((dtype, true)), Reads::Throughout)
    }

    /// The contract of a kernel that reads nothing of what it writes.
    pub fn finish(self, sites: u32) -> Result<Contract, Contradiction> {
        self.no_argument(|a| a.writes && a.is_read())?;
        self.finish_reading_back(sites)
    }

    /// The contract of a kernel that may read what it wrote itself.
    pub fn finish_reading_back(self, sites: u32) -> Result<Contract, Contradiction> {
        self.no_argument(|a| a.writes && a.reads == Reads::Throughout)?;
        let name = self.name;
        // Else calls that differ in nothing but these would be linked again and again, at every depth.
        let unused = || contradiction!("{name} has an argument that it does not use");
        let args = self.args.into_iter().map(|a| a.ok_or_else(unused));
        Ok(Contract {
            args: args.collect::<Result<_, _>>()?,
            sites,
        })
    }

    fn no_argument(&self, is: impl Fn(&ArgUse) -> bool) -> Result<(), Contradiction> {
        match self.args.iter().flatten().any(is) {
            true => Err(contradiction!("{} writes its own operand", self.name)),
            false => Ok(()),
        }
    }
}
