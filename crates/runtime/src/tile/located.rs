//! What of a printed body depends on where lanes are.

use super::bound::BoundDynamic;
use super::call::Place;
use super::link::Linker;
use super::linked::Stage;
use super::load;
use super::making::Making;
use super::walk::{Shape, Walk};
use crate::error::Result;
use crate::printed::lines::Key;
use crate::printed::stage::Kind;
use kiln_base::Compute;
use kiln_plan::tile::{Dynamic, Inst, Reg};

impl Making {
    /// The affine numbers of a walk without limits.
    pub(super) fn number(&mut self, linker: &mut Linker, x: u32, out: &mut Stage) -> Result<Reg> {
        if let Some(r) = self.numbers.get(&x) {
            return Ok(*r);
        }
        let walk = &linker.walks[x as usize];
        let stride = match walk.shape {
            Shape::Splat => Some(0),
            Shape::Contiguous => Some(1),
            Shape::General => walk.long_runs(self.least()),
        };
        let new = match stride {
            None => self.before(linker, Compute::I64, (load::index, x), out)?,
            Some(stride) => {
                let place = Making::place(walk, x);
                let new = self.register(Compute::I64)?;
                let n = self.operands.len() as u16;
                self.operand(Key::Number(n), Kind::Number, place);
                self.operands[usize::from(n)].step = stride as usize;
                self.walks.push(x);
                self.body.code.push(Inst::Index {
                    dst: new,
                    offset: i64::from(n).into(),
                    strides: vec![stride.into()],
                });
                new
            }
        };
        self.numbers.insert(x, new);
        Ok(new)
    }

    /// Data errors are reported: the function is told of the run, and has one step.
    pub(super) fn reports(&mut self) {
        if !self.body.operands.iter().any(|(k, _)| *k == Key::Context) {
            self.body.steps = false;
            self.operand(Key::Context, Kind::Context, Place::Context);
            let lane = self.operand(Key::Lane, Kind::Number, Place::Zero);
            self.operands[lane].step = 1;
        }
    }

    /// A load at addresses that depend on data, if it is one that is printed.
    pub(super) fn load_at(
        &mut self,
        linker: &mut Linker,
        (i, access): (usize, u16),
        indices: &[Reg],
        out: &mut Stage,
    ) -> Result<Option<(u16, Vec<Dynamic>)>> {
        let program = linker.bound.program;
        let arg = program.accesses[usize::from(access)].arg;
        let dtype = program.args[usize::from(arg)].dtype;
        let over_inner = program.stages[self.stage].over_inner;
        let x = linker.walk(usize::from(access), over_inner)?;
        // What else is of this walk then knows that it reaches further.
        linker.walks[x as usize].dynamic = true;
        let parts = linker.bound.dynamics[linker.numbers[&(self.stage, i)]].clone();
        let walk = &linker.walks[x as usize];
        let fits = walk.limits.is_empty() && stays(walk, &parts);
        let wide = dtype.size() == 8 || dtype.size() == 4 && walk.len <= i64::from(i32::MAX);
        let side_by_side = match walk.shape {
            Shape::Contiguous => true,
            Shape::Splat => self.one,
            Shape::General => walk.long_runs(self.least()) == Some(1),
        };
        let of_one = self.one || indices.iter().all(|r| self.body.is_same(*r));
        let same = side_by_side && of_one;
        if !fits || !same && !wide || self.stored.contains(&arg) {
            return Ok(None);
        }
        let first = Dynamic {
            index: self.number(linker, x, out)?,
            stride: 1i64.into(),
            extent: linker.walks[x as usize].len.into(),
            site: same.into(),
        };
        let rest = parts.iter().zip(indices).map(|(part, index)| Dynamic {
            index: *index,
            stride: part.stride.into(),
            extent: part.extent.into(),
            site: part.site,
        });
        self.reports();
        let kind = if same { Kind::Line } else { Kind::Memory };
        let access = self.memory(dtype, kind, Place::Argument(arg.into()));
        // It begins at the element that the address says, whatever the lane.
        if let Some(operand) = self.operands.last_mut() {
            operand.step = 0;
        }
        Ok(Some((access, [first].into_iter().chain(rest).collect())))
    }
}

/// Whether addresses stay within the argument whatever the data.
fn stays(walk: &Walk, parts: &[BoundDynamic]) -> bool {
    let (mut low, mut high) = walk.range;
    for part in parts {
        let far = i128::from(part.stride) * i128::from((part.extent - 1).max(0));
        (low, high) = (low + far.min(0), high + far.max(0));
    }
    low >= 0 && high < i128::from(walk.len)
}
