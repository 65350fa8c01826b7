//! A printed body, while instructions of a stage are added to it.

use super::ahead;
use super::call::{Operand, Place};
use super::inst::operands;
use super::link::{Drafting, Linker};
use super::load;
use super::lower::Value;
use super::print::{kind, least_run};
use super::rounds::Name;
use super::walk::Shape;
use crate::error::{Result, damaged};
use crate::printed::lines::Key;
use crate::printed::stage::{Body, Kind};
use hashbrown::{HashMap, HashSet};
use kiln_base::Compute;
use kiln_plan::tile::{Inst, Reg, Schedule, TILE};

/// A body, while instructions are added to it.
pub(super) struct Making {
    stage: usize,
    /// Whether its lanes are those of a row.
    along: bool,
    /// Whether there is one lane.
    one: bool,
    /// Whether lanes are reduced one by one.
    lane_by_lane: bool,
    reduces: bool,
    pub body: Body,
    pub operands: Vec<Operand>,
    /// Operands that are values of the stage, and whether they are written.
    pub values: Vec<(usize, Value, bool)>,
    pub walks: Vec<u32>,
    /// What instructions of this body made.
    made: HashMap<usize, Reg>,
    /// What it reads from elsewhere.
    given: HashMap<Name, Reg>,
    /// Loads by their walk.
    loads: HashMap<u32, u16>,
    slots: HashMap<u16, u16>,
    /// Reductions, and the operand of each.
    pub sums: Vec<(usize, usize)>,
}

impl Making {
    pub(super) fn new(linker: &Linker, stage: usize, code: &[usize]) -> Making {
        let program = linker.bound.program;
        let rows = program.schedule == Schedule::Rows;
        let source = &program.stages[stage];
        let reduces = |i: &usize| matches!(source.code[*i], Inst::Reduce { .. });
        let along = rows && source.over_inner;
        let reduces = code.iter().any(reduces);
        let tile = program.cut.tile.map_or(TILE, usize::from).clamp(1, TILE);
        Making {
            stage,
            along,
            one: rows && !source.over_inner,
            lane_by_lane: !rows && source.over_inner,
            reduces,
            body: Body {
                block: (along && reduces).then_some(tile as u32),
                steps: !rows && source.over_inner && code.len() == source.code.len(),
                ..Body::default()
            },
            operands: vec![],
            values: vec![],
            walks: vec![],
            made: HashMap::new(),
            given: HashMap::new(),
            loads: HashMap::new(),
            slots: HashMap::new(),
            sums: vec![],
        }
    }

    fn register(&mut self, ty: Compute) -> Result<Reg> {
        let n = u16::try_from(self.body.registers.len());
        self.body.registers.push(ty);
        Ok(Reg(n.map_err(|_| damaged!("a stage of too many values"))?))
    }

    fn operand(&mut self, key: Key, kind: Kind, place: Place) -> usize {
        let size = self.body.size(key);
        self.body.operands.push((key, kind));
        self.operands.push(Operand {
            place,
            size,
            step: match kind {
                Kind::Line | Kind::Stream => size,
                Kind::Splat | Kind::SplatOfRow | Kind::State => 0,
            },
            streams: kind == Kind::Stream,
        });
        self.operands.len() - 1
    }

    /// A register that an instruction reads.
    fn read(&mut self, linker: &mut Linker, draft: &Drafting, name: Name, r: Reg) -> Result<Reg> {
        if let Name::Made(i) = name
            && let Some(r) = self.made.get(&i)
        {
            return Ok(*r);
        }
        if let Some(r) = self.given.get(&name) {
            return Ok(*r);
        }
        let program = linker.bound.program;
        let new = self.register(program.registers[usize::from(r.0)])?;
        self.given.insert(name, new);
        let constant = program.constants.iter().find(|(c, _)| *c == r);
        if let Some((_, x)) = constant {
            self.body.constants.push((new, *x));
            return Ok(new);
        }
        let value = linker.value(draft, name, r.0);
        // Other stages may use the register as a name for something else.
        let mut lines = (0..program.stages.len())
            .filter(|s| program.stages[*s].over_inner && linker.fixed[*s].contains(&r.0));
        let varies = lines.any(|s| {
            program.stages[s].code.iter().any(|i| {
                let reduces = matches!(i, Inst::Reduce { .. } | Inst::ArgReduce { .. });
                !reduces && operands(i).1 == Some(r)
            })
        });
        let same = self.along && !varies && matches!(name, Name::Before(_));
        if let (Value::Global(_), true, false) = (value, self.along, same) {
            linker.spread.insert(r.0);
        }
        let kind = if same { Kind::Splat } else { Kind::Line };
        let at = self.operand(Key::Input(new), kind, Place::Register(0));
        self.values.push((at, value, false));
        Ok(new)
    }

    /// An access of a walk.
    fn access(&mut self, linker: &mut Linker, access: u16, is_store: bool) -> Result<u16> {
        let program = linker.bound.program;
        let over_inner = program.stages[self.stage].over_inner;
        let x = linker.walk(usize::from(access), over_inner)?;
        if let (Some(n), false) = (self.loads.get(&x), is_store) {
            return Ok(*n);
        }
        let walk = &linker.walks[x as usize];
        let arg = usize::from(program.accesses[usize::from(access)].arg);
        let dtype = program.args[arg].dtype;
        let Some(mut kind) = kind(
            walk,
            is_store,
            self.one,
            least_run(self.along || self.lane_by_lane),
        ) else {
            return Err(damaged!("an access that is not printed"));
        };
        let place = match walk.shape {
            Shape::Contiguous => Place::Line(x),
            Shape::Splat => Place::First(x),
            Shape::General => Place::Run(x),
        };
        let kept = self.reduces || self.body.steps;
        let streams = is_store && walk.shape == Shape::Contiguous && !kept;
        linker.walks[x as usize].make_fills(dtype);
        if streams && load::is_direct(dtype) && dtype.size() >= 4 && linker.streams(arg) {
            kind = Kind::Stream;
        }
        let n = self.body.dtypes.len() as u16;
        self.body.dtypes.push(dtype);
        self.operand(Key::Access(n), kind, place);
        self.walks.push(x);
        if !is_store {
            self.loads.insert(x, n);
        }
        Ok(n)
    }

    fn slot(&mut self, linker: &Linker, slot: u16) -> u16 {
        if let Some(n) = self.slots.get(&slot) {
            return *n;
        }
        let n = self.body.slots.len() as u16;
        let ty = linker.bound.program.slots[usize::from(slot)];
        self.body.slots.push(ty);
        self.operand(Key::Slot(n), Kind::Line, Place::Slot(u32::from(slot)));
        self.slots.insert(slot, n);
        n
    }

    /// Adds an instruction.
    pub(super) fn inst(&mut self, linker: &mut Linker, draft: &Drafting, i: usize) -> Result<()> {
        let program = linker.bound.program;
        let inst = &program.stages[self.stage].code[i];
        let (reads, writes) = operands(inst);
        let mut from = vec![];
        for (r, name) in reads.iter().zip(&draft.names[i]) {
            from.push(self.read(linker, draft, *name, *r)?);
        }
        let ty = |r: Reg| program.registers[usize::from(r.0)];
        let dst = match writes {
            Some(r) => self.register(ty(r))?,
            None => Reg(0),
        };
        let new = match inst {
            Inst::Load { access, .. } => Inst::Load {
                dst,
                access: self.access(linker, *access, false)?,
            },
            Inst::Store { access, .. } => Inst::Store {
                access: self.access(linker, *access, true)?,
                src: from[0],
            },
            Inst::Keep { slot, .. } => Inst::Keep {
                slot: self.slot(linker, *slot),
                src: from[0],
            },
            Inst::Kept { slot, .. } => Inst::Kept {
                slot: self.slot(linker, *slot),
                dst,
            },
            Inst::Unary { op, .. } => Inst::Unary {
                op: *op,
                dst,
                a: from[0],
            },
            Inst::Binary { op, .. } => Inst::Binary {
                op: *op,
                dst,
                a: from[0],
                b: from[1],
                site: 0,
            },
            Inst::Select { .. } => Inst::Select {
                dst,
                mask: from[0],
                a: from[1],
                b: from[2],
            },
            Inst::Convert { from: of, to, .. } => Inst::Convert {
                dst,
                a: from[0],
                from: *of,
                to: *to,
            },
            Inst::Reduce { op, acc, .. } => {
                let key = Key::Accumulator(dst);
                let at = if self.along {
                    self.operand(key, Kind::State, Place::State(0))
                } else {
                    let acc = Value::Global(linker.global(acc.0));
                    let at = self.operand(key, Kind::Line, Place::Register(0));
                    self.values.push((at, acc, true));
                    at
                };
                self.sums.push((i, at));
                Inst::Reduce {
                    op: *op,
                    acc: dst,
                    a: from[0],
                }
            }
            Inst::LoadAt { .. }
            | Inst::Index { .. }
            | Inst::Random { .. }
            | Inst::ArgReduce { .. } => {
                return Err(damaged!("an instruction that is not printed"));
            }
        };
        if writes.is_some() {
            self.made.insert(i, dst);
        }
        self.body.code.push(new);
        Ok(())
    }

    /// Runs that are alike become rows of one call; what lies elsewhere from row to row is not read in front of all.
    pub(super) fn rows(&mut self, linker: &Linker) {
        let runs = self
            .operands
            .iter()
            .any(|o| matches!(o.place, Place::Run(_)));
        let streams = self.operands.iter().any(|o| o.streams);
        self.body.steps |= runs && !streams && !self.lane_by_lane && self.body.block.is_none();
        for ((_, kind), operand) in self.body.operands.iter_mut().zip(&self.operands) {
            let moves = match operand.place {
                Place::Run(_) => true,
                Place::First(x) => self.lane_by_lane && linker.walks[x as usize].moves(),
                _ => false,
            };
            if self.body.steps && moves && *kind == Kind::Splat {
                *kind = Kind::SplatOfRow;
            }
        }
    }

    /// Adds what is fetched for the next row.
    pub(super) fn ahead(&mut self, linker: &mut Linker) -> Result<()> {
        let bound = linker.bound;
        let program = bound.program;
        let inner = program.stages.iter().filter(|s| s.over_inner);
        let mut fetched: Vec<u32> = vec![];
        for inst in inner.flat_map(|s| &s.code) {
            let Inst::Load { access, .. } = inst else {
                continue;
            };
            let x = linker.walk(usize::from(*access), true)?;
            let walk = &linker.walks[x as usize];
            let Some(distance) = ahead::distance(bound, walk).filter(|_| !fetched.contains(&x))
            else {
                continue;
            };
            fetched.push(x);
            let n = self.body.dtypes.len() as u16;
            self.body.dtypes.push(program.args[walk.arg].dtype);
            self.operand(Key::Ahead(n), Kind::Line, Place::Ahead(x, distance));
            self.walks.push(x);
        }
        Ok(())
    }

    /// Adds what is read elsewhere of what `code` makes.
    pub(super) fn outputs(&mut self, linker: &mut Linker, draft: &mut Drafting, code: &[usize]) {
        let source = &linker.bound.program.stages[self.stage].code;
        let elsewhere: HashSet<usize> = (0..source.len())
            .filter(|i| !code.contains(i))
            .flat_map(|i| &draft.names[i])
            .filter_map(|n| match n {
                Name::Made(i) => Some(*i),
                Name::Before(_) => None,
            })
            .collect();
        let mut given: HashSet<u16> = HashSet::new();
        for i in code.iter().rev() {
            let reduces = matches!(source[*i], Inst::Reduce { .. });
            let Some(r) = operands(&source[*i]).1.filter(|_| !reduces) else {
                continue;
            };
            let fixed = linker.fixed[self.stage].contains(&r.0);
            // Of several writers the last one counts.
            if !(fixed && given.insert(r.0) || !fixed && elsewhere.contains(i)) {
                continue;
            }
            let value = linker.made(draft, *i, r);
            let Some(out) = self.made.get(i).copied() else {
                continue;
            };
            self.body.outputs.push(out);
            let at = self.operand(Key::Output(out), Kind::Line, Place::Register(0));
            self.values.push((at, value, true));
        }
    }
}
