//! Emission of affine indices and of loads at data-dependent addresses.

use super::blocks;
use super::builder::BodyBuilder;
use super::emitted::OperandLocation;
use super::link::Linker;
use super::linked::Stage;
use super::walk::{Shape, Walk};
use kiln_base::Compute;
use kiln_base::prim::Binary;
use kiln_jit::emission::lines::Key;
use kiln_jit::emission::stage::{Elements, Kind};
use kiln_kernel::bound::BoundDynamic;
use kiln_kernel::error::{Result, damaged};
use kiln_plan::tile::{Dynamic, Inst, Reg};

impl BodyBuilder {
    /// Returns a register with the element index of each lane for an unbounded access.
    pub(super) fn lane_indices(
        &mut self,
        linker: &mut Linker,
        x: u32,
        out: &mut Stage,
    ) -> Result<Reg> {
        if let Some(r) = self.numbers.get(&x) {
            return Ok(*r);
        }
        let walk = &linker.walks[x as usize];
        let stride = match walk.shape {
            Shape::Splat => Some(0),
            Shape::Contiguous => Some(1),
            Shape::General => self.run_stride(walk),
        };
        let new = match stride {
            None if self.by_lane => {
                // The lanes contribute the same at every step.
                let index = blocks::index::<true>(&mut linker.walks[x as usize], linker.level);
                let lanes = self.prepend(linker, Compute::I64, (index, x), (out, true))?;
                let base = self.linear(OperandLocation::LaneZero(x), 0)?;
                let new = self.register(Compute::I64)?;
                self.body.code.push(Inst::Binary {
                    op: Binary::Add,
                    dst: new,
                    a: lanes,
                    b: base,
                    site: 0,
                });
                new
            }
            None => {
                let index = blocks::index::<false>(&mut linker.walks[x as usize], linker.level);
                self.prepend(linker, Compute::I64, (index, x), (out, false))?
            }
            Some(stride) => {
                let location = BodyBuilder::location(walk, x);
                self.walks.push(x);
                self.linear(location, stride)?
            }
        };
        self.numbers.insert(x, new);
        Ok(new)
    }

    /// Returns a register whose lane i holds `location + i · stride`.
    fn linear(&mut self, location: OperandLocation, stride: i64) -> Result<Reg> {
        let new = self.register(Compute::I64)?;
        let n = self.operands.len() as u16;
        self.add_operand(Key::Number(n), Kind::Number, location);
        self.operands[usize::from(n)].step = stride as usize;
        self.body.code.push(Inst::Index {
            dst: new,
            offset: i64::from(n).into(),
            strides: vec![stride.into()],
        });
        Ok(new)
    }

    /// Prepares a function to report data errors: it gets the context and the lane, and is called once per step.
    pub(super) fn enable_reports(&mut self) {
        if !self.body.operands.iter().any(|(k, _)| *k == Key::Context) {
            self.body.steps = false;
            self.add_operand(Key::Context, Kind::Context, OperandLocation::Context);
            let lane = self.add_operand(Key::Lane, Kind::Number, OperandLocation::Zero);
            self.operands[lane].step = 1;
        }
    }

    /// Returns the access and the dynamic indices of a load at data-dependent addresses; `None` if it is interpreted.
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
        // Other instructions on this walk then know that it reads outside its bounds.
        linker.walks[x as usize].dynamic = true;
        let parts = linker.bound.dynamics[linker.numbers[&(self.stage, i)]].clone();
        let walk = &linker.walks[x as usize];
        let fits = walk.limits.is_empty() && stays_in_bounds(walk, &parts);
        let wide = dtype.size() == 8 || dtype.size() == 4 && walk.len <= i64::from(i32::MAX);
        let consecutive = match walk.shape {
            Shape::Contiguous => true,
            Shape::Splat => self.scalar,
            Shape::General => self.run_stride(walk) == Some(1),
        };
        let is_uniform = self.scalar || indices.iter().all(|r| self.body.is_uniform(*r));
        let is_contiguous = consecutive && is_uniform;
        if !fits || !is_contiguous && !wide || self.stored.contains(&arg) {
            return Ok(None);
        }
        let lanes = self.lane_indices(linker, x, out)?;
        let extent = linker.walks[x as usize].len;
        let base = |index: Reg, elements: Elements| Dynamic {
            index,
            stride: 1i64.into(),
            extent: extent.into(),
            site: elements as u32,
        };
        let tail = parts.iter().zip(indices).map(|(part, index)| Dynamic {
            index: *index,
            stride: part.stride.into(),
            extent: part.extent.into(),
            site: part.site,
        });
        let tail: Vec<Dynamic> = tail.collect();
        self.enable_reports();
        let location = OperandLocation::Argument(arg.into());
        if !is_contiguous {
            let access = self.access(dtype, Kind::Memory, location);
            let dynamic = [base(lanes, Elements::Gathered)].into_iter().chain(tail);
            return Ok(Some((access, dynamic.collect())));
        }
        // The first lane's address covers all lanes; it is checked once, before them.
        let access = self.access(dtype, Kind::LanesAt, location);
        let [start, address] = [self.register(Compute::I64)?, self.register(Compute::I64)?];
        let number = self.body.code.iter().find_map(|inst| match inst {
            Inst::Index { dst, offset, .. } if *dst == lanes => Some(offset.clone()),
            _ => None,
        });
        let Some(offset) = number else {
            return Err(damaged!("contiguous lanes have no `Index` instruction"));
        };
        self.body.code.push(Inst::Index {
            dst: start,
            offset,
            strides: vec![0i64.into()],
        });
        let dynamic = [base(start, Elements::Address)].into_iter().chain(tail);
        self.body.code.push(Inst::LoadAt {
            dst: address,
            access,
            dynamic: dynamic.collect(),
        });
        Ok(Some((access, vec![base(address, Elements::Contiguous)])))
    }
}

/// True if addresses stay within the argument for any data.
fn stays_in_bounds(walk: &Walk, parts: &[BoundDynamic]) -> bool {
    let (mut low, mut high) = walk.range;
    for part in parts {
        let span = i128::from(part.stride) * i128::from((part.extent - 1).max(0));
        (low, high) = (low + span.min(0), high + span.max(0));
    }
    low >= 0 && high < i128::from(walk.len)
}
