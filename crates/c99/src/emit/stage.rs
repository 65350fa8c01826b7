//! The instructions of a stage at one point.

use super::dialect::{C99, Dialect, combine};
use super::numbers::{Numbers, number};
use super::text::{Text, sum};
use crate::error::{Error, Result};
use kiln_base::prim::Reduction;
use kiln_base::{Compute, DType};
use kiln_kernel::affine::Affine;
use kiln_plan::tile::{Dynamic, Inst, Reg, Schedule, TileProgram};
use std::collections::{BTreeMap, BTreeSet};

/// The number of partial results of a reduction by rows, which compilers keep in a vector.
pub(super) const PARTIAL_RESULTS: i64 = 16;

/// The number of steps of a sum of f32 above which it accumulates in double precision.
pub(super) const MAX_F32_TERMS: i64 = 256;

/// The address of a stage: the expression of each axis's index, and the suffixes of its results.
pub(super) struct StageAddress {
    /// For each axis, the terms whose sum is its index.
    pub index: Vec<Vec<String>>,
    /// The number of the inner point.
    pub number: String,
    /// The suffix of the name of a register that lives from stage to stage: `[l]`, or nothing.
    pub lane: &'static str,
    /// The suffix of the name of a partial result: `[l]`, or nothing.
    pub part: &'static str,
    /// The index into a slot.
    pub slot: String,
}

/// A program, and the arguments to emit it with.
pub(crate) struct Called<'a> {
    pub name: String,
    pub program: &'a TileProgram,
    pub values: &'a [i64],
    /// The name of each argument; arguments in the same memory have the same name.
    pub args: &'a [String],
    /// The error number of each site of the program.
    pub sites: &'a [u32],
    /// The argument of which only a part exists, from `first` on, if the program works on ranges of its points.
    pub raw: Option<usize>,
}

/// Emits stages of a program.
pub(super) struct Stages<'a> {
    pub numbers: &'a Numbers<'a>,
    pub called: &'a Called<'a>,
    /// Registers that live from stage to stage.
    pub live_out: BTreeSet<Reg>,
    names: std::cell::Cell<usize>,
}

/// The state between the instructions of a stage.
struct Point<'a> {
    address: &'a StageAddress,
    names: BTreeMap<Reg, String>,
    unread: BTreeSet<String>,
}

impl<'a> Stages<'a> {
    pub fn new(numbers: &'a Numbers<'a>, called: &'a Called<'a>) -> Stages<'a> {
        Stages {
            numbers,
            called,
            live_out: live_out(numbers),
            names: Default::default(),
        }
    }

    pub fn ty(&self, r: Reg) -> Result<Compute> {
        let ty = self
            .numbers
            .program
            .registers
            .get(usize::from(r.0))
            .copied();
        ty.ok_or_else(|| Error::Damaged(format!("no register {}", r.0)))
    }

    /// The type of a reduction's partial results.
    pub fn sum_type(&self, op: Reduction, ty: Compute) -> Compute {
        let long = self.numbers.inner_points() > MAX_F32_TERMS * self.width();
        match op == Reduction::Sum && ty == Compute::F32 && long {
            true => Compute::F64,
            false => ty,
        }
    }

    /// The number of partial results of a reduction.
    fn width(&self) -> i64 {
        match self.numbers.program.schedule {
            Schedule::Lanes => 1,
            Schedule::Rows => PARTIAL_RESULTS,
        }
    }

    fn site(&self, site: u32) -> u32 {
        self.called.sites.get(site as usize).copied().unwrap_or(0) + 1
    }

    /// Emits the instructions of stage `at` at a point.
    pub fn point(&self, at: usize, address: &StageAddress, text: &mut Text) -> Result<()> {
        let stages = &self.numbers.program.stages;
        let counts = |s: &kiln_plan::tile::Stage| {
            let is = |i: &&Inst| matches!(i, Inst::Index { .. });
            s.code.iter().filter(is).count()
        };
        let mut index: usize = stages[..at].iter().map(counts).sum();
        let mut point = Point {
            address,
            names: BTreeMap::new(),
            unread: BTreeSet::new(),
        };
        for inst in &stages[at].code {
            self.inst(inst, &mut point, &mut index, text)?;
        }
        for name in &point.unread {
            text.line(format!("(void){name};"));
        }
        Ok(())
    }

    /// The expression for a register's value.
    fn read(&self, r: Reg, p: &mut Point<'_>) -> Result<String> {
        if let Some(name) = p.names.get(&r) {
            p.unread.remove(name);
            return Ok(name.clone());
        }
        let mut constants = self.numbers.program.constants.iter();
        if let Some((_, value)) = constants.find(|(c, _)| *c == r) {
            return Ok(C99::literal(*value, self.ty(r)?));
        }
        Ok(format!("r{}{}", r.0, p.address.lane))
    }

    fn define(&self, r: Reg, value: &str, p: &mut Point<'_>, text: &mut Text) -> Result<()> {
        let number = self.names.replace(self.names.get() + 1);
        let name = format!("v{number}");
        text.line(format!(
            "const {} {name} = {value};",
            C99::ctype(self.ty(r)?)
        ));
        match self.live_out.contains(&r) {
            true => text.line(format!("r{}{} = {name};", r.0, p.address.lane)),
            false => drop(p.unread.insert(name.clone())),
        }
        p.names.insert(r, name);
        Ok(())
    }

    fn affine(&self, a: &Affine, address: &StageAddress) -> String {
        let terms = a.strides.iter().zip(&address.index);
        sum(
            a.offset,
            terms.flat_map(|(s, names)| names.iter().map(|n| (*s, &n[..]))),
        )
    }

    /// The element of an access, and the condition under which it exists.
    fn element(
        &self,
        access: u16,
        more: &[String],
        address: &StageAddress,
    ) -> Result<(String, Option<String>, DType)> {
        let access = (self.numbers.accesses.get(usize::from(access)))
            .ok_or_else(|| Error::Damaged(format!("no access {access}")))?;
        let dtype = self.numbers.program.args[access.arg].dtype;
        let mut index = self.affine(&access.at, address);
        more.iter().for_each(|m| index += &format!(" + {m}"));
        if self.called.raw == Some(access.arg) {
            index += " - first";
        }
        let bounds = access.limits.iter().map(|limit| match limit.extent {
            ..=0 => "0".to_string(),
            n => format!("(size_t)({}) < {n}u", self.affine(&limit.value, address)),
        });
        let bounds: Vec<String> = bounds.collect();
        let guard = (!bounds.is_empty()).then(|| bounds.join(" && "));
        Ok((
            format!("{}[{index}]", self.called.args[access.arg]),
            guard,
            dtype,
        ))
    }

    fn load(
        &self,
        (dst, access): (Reg, u16),
        dynamic: &[Dynamic],
        p: &mut Point<'_>,
        text: &mut Text,
    ) -> Result<()> {
        let ty = self.ty(dst)?;
        let mut more = Vec::new();
        let mut empty = false;
        for d in dynamic {
            let index = self.read(d.index, p)?;
            let [stride, extent] = [&d.stride, &d.extent].map(|d| number(d, self.numbers.values));
            let (stride, extent) = (stride?, extent?);
            empty |= extent <= 0;
            let site = self.site(d.site);
            more.push(format!(
                "{stride} * kiln_index({index}, {extent}, failed, {site})"
            ));
        }
        let fill = C99::literal(self.numbers.accesses[usize::from(access)].fill, ty);
        let (element, bounds, dtype) = self.element(access, &more, p.address)?;
        let mut value = C99::loaded(&element, dtype);
        if empty {
            // There is no element for any index.
            value = format!("({}, {fill})", more.join(", "));
        }
        if let Some(bounds) = bounds {
            value = format!("{bounds} ? {value} : {fill}");
        }
        self.define(dst, &value, p, text)
    }

    fn inst(
        &self,
        inst: &Inst,
        p: &mut Point<'_>,
        index: &mut usize,
        text: &mut Text,
    ) -> Result<()> {
        match inst {
            Inst::Load { dst, access } => self.load((*dst, *access), &[], p, text),
            Inst::LoadAt {
                dst,
                access,
                dynamic,
            } => self.load((*dst, *access), dynamic, p, text),
            Inst::Index { dst, .. } => {
                let value = self.affine(&self.numbers.indices[*index], p.address);
                *index += 1;
                self.define(*dst, &format!("(int64_t)({value})"), p, text)
            }
            Inst::Unary { op, dst, a } => {
                let (ty, a) = (self.ty(*a)?, self.read(*a, p)?);
                self.define(*dst, &C99::unary(*op, &a, ty)?, p, text)
            }
            Inst::Binary {
                op,
                dst,
                a,
                b,
                site,
            } => {
                let ty = self.ty(*a)?;
                let (a, b) = (self.read(*a, p)?, self.read(*b, p)?);
                let value = C99::binary(*op, &a, &b, ty, self.site(*site))?;
                self.define(*dst, &value, p, text)
            }
            Inst::Select { dst, mask, a, b } => {
                let [mask, a, b] = [mask, a, b].map(|r| self.read(*r, p));
                self.define(*dst, &format!("{} ? {} : {}", mask?, a?, b?), p, text)
            }
            Inst::Convert { dst, a, from, to } => {
                let a = self.read(*a, p)?;
                self.define(*dst, &C99::convert(&a, *from, *to), p, text)
            }
            Inst::Random {
                dst,
                kind,
                seed,
                offset,
                index,
            } => {
                let [s, o, i] = [seed, offset, index].map(|r| self.read(*r, p));
                let (s, o, i) = (s?, o?, i?);
                let value = C99::random(*kind, [&s, &o, &i], self.ty(*dst)?);
                self.define(*dst, &value, p, text)
            }
            Inst::Reduce { op, acc, a } => {
                let ty = self.ty(*acc)?;
                let value = self.read(*a, p)?;
                let sum = self.sum_type(*op, ty);
                let partial = format!("s{}{}", acc.0, p.address.part);
                let next = combine(*op, &partial, &value, sum);
                text.line(format!("{partial} = {next};"));
                Ok(())
            }
            Inst::ArgReduce { op, acc, a } => {
                let (value, lane) = (self.read(*a, p)?, p.address.lane);
                let (best, position) = (format!("s{}{lane}", acc.0), format!("r{}{lane}", acc.0));
                let beats = match op {
                    Reduction::Max => ">",
                    _ => "<",
                };
                let nan = match self.ty(*a)?.is_float() {
                    true => format!(" || ({value} != {value} && {best} == {best})"),
                    false => String::new(),
                };
                text.open(format!("if ({value} {beats} {best}{nan})"));
                text.line(format!("{best} = {value};"));
                text.line(format!("{position} = {};", p.address.number));
                text.close();
                Ok(())
            }
            Inst::Keep { slot, src } => {
                let value = self.read(*src, p)?;
                text.line(format!("k{slot}[{}] = {value};", p.address.slot));
                Ok(())
            }
            Inst::Kept { dst, slot } => {
                self.define(*dst, &format!("k{slot}[{}]", p.address.slot), p, text)
            }
            Inst::Store { access, src } => self.store(*access, *src, p, text),
        }
    }

    fn store(&self, access: u16, src: Reg, p: &mut Point<'_>, text: &mut Text) -> Result<()> {
        let (ty, value) = (self.ty(src)?, self.read(src, p)?);
        let (element, bounds, dtype) = self.element(access, &[], p.address)?;
        let value = match dtype.compute() == ty {
            true => value,
            false => {
                format!("({})", C99::convert(&value, ty.dtype(), dtype))
            }
        };
        let line = format!("{element} = {};", C99::stored(&value, dtype));
        text.line(match bounds {
            Some(bounds) => format!("if ({bounds}) {line}"),
            None => line,
        });
        Ok(())
    }

    /// The reductions of a stage.
    pub fn reductions(&self, at: usize) -> Result<Vec<Reduced>> {
        let code = self.numbers.program.stages[at].code.iter();
        let regs = code.filter_map(|i| match i {
            Inst::Reduce { op, acc, a } => Some((*op, *acc, *a, false)),
            Inst::ArgReduce { op, acc, a } => Some((*op, *acc, *a, true)),
            _ => None,
        });
        regs.map(|(op, acc, a, address)| {
            let ty = self.ty(a)?;
            let suffix = match address {
                true => ty,
                false => self.sum_type(op, ty),
            };
            Ok(Reduced {
                op,
                acc: acc.0,
                ty: suffix,
                address,
            })
        })
        .collect()
    }
}

/// A reduction of a stage.
pub(super) struct Reduced {
    pub op: Reduction,
    pub acc: u16,
    /// The type of its partial results.
    pub ty: Compute,
    /// True if it returns the position of an element instead of its value.
    pub address: bool,
}

impl Reduced {
    pub fn identity(&self) -> String {
        C99::identity(self.op, self.ty)
    }
}

/// The registers that are read in another stage than the one that writes them, or that a reduction writes.
fn live_out(numbers: &Numbers<'_>) -> BTreeSet<Reg> {
    let program = numbers.program;
    let constants: BTreeSet<Reg> = program.constants.iter().map(|(r, _)| *r).collect();
    let mut live_out = BTreeSet::new();
    for stage in &program.stages {
        let mut defined = constants.clone();
        for inst in &stage.code {
            let (reads, writes) = inst.operands();
            live_out.extend(reads.into_iter().filter(|r| !defined.contains(r)));
            match inst {
                Inst::Reduce { .. } | Inst::ArgReduce { .. } => live_out.extend(writes),
                _ => defined.extend(writes),
            }
        }
    }
    live_out
}
