//! The contract of a kernel: its use of its arguments, independent of its implementation.
//!
//! Each kind of kernel declares it once, in [`Described`]. Code that checks a plan, orders its steps, or decides what
//! may alias reads only the [`Contract`].

use crate::tile::{Inst, TileProgram};
use crate::{Dims, Epilogue, Footprint, Plan, Prologue};
use kiln_base::{DType, Dim};

/// A kernel's use of its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contract {
    /// The uses of the arguments, one per argument of the steps that call it.
    pub args: Vec<ArgUse>,
    /// The number of data-error sites.
    pub sites: u32,
}

/// A kernel's use of an argument.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ArgUse {
    /// Its element type.
    pub dtype: DType,
    /// The time at which it is read.
    pub reads: Reads,
    /// True if it is written.
    pub writes: bool,
}

/// The time at which a kernel reads an argument.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reads {
    /// Not at all, or only elements that it wrote there itself.
    Never,
    /// Each element before a result's element is written there: a result may alias it.
    First,
    /// Also after parts of a result are written.
    Throughout,
}

impl ArgUse {
    /// True if it is read at all.
    pub fn is_read(&self) -> bool {
        self.reads != Reads::Never
    }
}

/// The reason why a kernel is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Contradiction(pub String);

/// Makes a [`Contradiction`].
macro_rules! contradiction {
    ($($text:tt)*) => { $crate::Contradiction(format!($($text)*)) };
}
pub(crate) use contradiction;

/// The description of a kernel, which every kind of kernel provides.
pub trait Described: Dims {
    /// Returns a readable name.
    fn name(&self) -> &str;

    /// Returns its use of its arguments.
    ///
    /// # Errors
    /// If it contradicts itself.
    fn contract(&self) -> Result<Contract, Contradiction>;

    /// Returns the extents whose product is the number of elements of its only result, if it writes that completely.
    fn results(&self) -> Option<Vec<&Dim>> {
        None
    }

    /// Returns an estimate of the arithmetic operations of a run, of a kernel without fused work.
    fn operations(&self) -> Dim {
        let results = self.results().into_iter().flatten();
        results.fold(Dim::ONE, |n, d| &n * d)
    }

    /// Returns its footprints in its arguments, without those of its programs and bodies.
    fn footprints(&self) -> Vec<Footprint> {
        Vec::new()
    }

    /// True if it runs on the CPU in parts, and its steps can be concurrent with others.
    fn in_parts(&self) -> bool {
        false
    }

    /// Returns the prologues of its operands, one for each operand that may have one.
    fn prologues(&self) -> &[Option<Box<Prologue>>] {
        &[]
    }

    /// Returns the tile program of its epilogue, or of the fused group that it is.
    fn program(&self) -> Option<&TileProgram> {
        None
    }

    /// Returns the programs that it runs.
    fn bodies(&self) -> &[Plan] {
        &[]
    }
}

/// A contract under construction.
pub(crate) struct Draft<'a> {
    name: &'a str,
    args: Vec<Option<ArgUse>>,
}

impl<'a> Draft<'a> {
    /// Makes the draft of a kernel of this name.
    pub fn new(name: &'a str) -> Draft<'a> {
        let args = Vec::new();
        Draft { name, args }
    }

    fn arg(&mut self, index: u16, dtype: DType) -> Result<&mut ArgUse, Contradiction> {
        let index = usize::from(index);
        if index >= self.args.len() {
            self.args.resize(index + 1, None);
        }
        let reads = Reads::Never;
        let writes = false;
        let arg = self.args[index].get_or_insert(ArgUse {
            dtype,
            reads,
            writes,
        });
        match arg.dtype == dtype {
            true => Ok(arg),
            false => Err(contradiction!(
                "argument {index} of {} has two dtypes, {} and {dtype}",
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

    /// Adds a written argument. No kernel writes an argument for two results.
    pub fn writes(&mut self, at: u16, dtype: DType) -> Result<(), Contradiction> {
        let name = self.name;
        let arg = self.arg(at, dtype)?;
        match std::mem::replace(&mut arg.writes, true) {
            false => Ok(()),
            true => Err(contradiction!("{name} writes argument {at} twice")),
        }
    }

    /// Adds a program's use of the arguments of its step. `raw` is the dtype of one more argument, a part of a product,
    /// and true if the program writes that.
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
        for (index, arg) in args.iter().enumerate() {
            let index = index as u16;
            match arg.written {
                true => self.writes(index, arg.dtype)?,
                false => self.reads(index, arg.dtype, Reads::Never)?,
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

    /// Adds the result of a product or a similar kernel: it is written, or passes through an epilogue.
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

    /// Adds an operand, or its prologue.
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
        let operand_count = program.args.len().saturating_sub(1);
        if program.sites > 0 || program.args[..operand_count].iter().any(stores) {
            let name = &program.name;
            return Err(contradiction!("{name} does more than make an operand"));
        }
        self.program(program, Some((dtype, true)), Reads::Throughout)
    }

    /// Returns the contract of a kernel that does not read arguments that it writes.
    pub fn finish(self, sites: u32) -> Result<Contract, Contradiction> {
        self.no_argument(|a| a.writes && a.is_read())?;
        self.finish_reading_back(sites)
    }

    /// Returns the contract of a kernel that may read elements that it wrote itself.
    pub fn finish_reading_back(self, sites: u32) -> Result<Contract, Contradiction> {
        self.no_argument(|a| a.writes && a.reads == Reads::Throughout)?;
        let name = self.name;
        // Otherwise, calls that differ only in unused arguments would be linked repeatedly, at every depth.
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
