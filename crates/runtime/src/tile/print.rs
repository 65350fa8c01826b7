//! What of a stage is printed, and as what.

use super::ahead;
use super::bound::Bound;
use super::call::{MAX, Operand, Place, Printed};
use super::code::Code;
use super::inst::operands;
use super::link::{Drafting, Linker};
use super::linked::Stage;
use super::load;
use super::lower::{Draft, Function, Hidden, Make, Value};
use super::rounds::Name;
use super::walk::{Shape, Walk};
use crate::error::{Result, damaged};
use crate::printed::lines::{About, Key, Lines};
use crate::printed::stage::{Body, Kind, print};
use crate::printed::{Target, cache};
use hashbrown::{HashMap, HashSet};
use kiln_base::Compute;
use kiln_plan::tile::{Inst, Reg, Schedule, TILE};
use std::sync::Arc;

/// Whether an instruction has a printed form, as far as types say.
pub(super) fn is_printed(target: Target, bound: &Bound, inst: &Inst) -> bool {
    let program = bound.program;
    let about = About {
        registers: &program.registers,
        constants: &program.constants,
        slots: &program.slots,
        dtypes: &|access| {
            program.args[usize::from(program.accesses[usize::from(access)].arg)].dtype
        },
    };
    Lines::new(target, &about, std::slice::from_ref(inst), &[]).is_ok()
}

/// How an access lies, if it is one that is printed; `one` says that there is one lane.
pub(super) fn kind(walk: &Walk, is_store: bool, one: bool) -> Option<Kind> {
    match walk.shape {
        _ if walk.dynamic => None,
        Shape::Contiguous => Some(Kind::Line),
        Shape::Splat if is_store => one.then_some(Kind::Line),
        Shape::Splat => Some(Kind::Splat),
        // What limits exclude is not to be written.
        Shape::General if is_store && !walk.limits.is_empty() => None,
        Shape::General => match walk.long_runs()? {
            1 => Some(Kind::Line),
            0 if !is_store => Some(Kind::Splat),
            _ => None,
        },
    }
}

/// The code of a body. `None` if it can't be printed after all.
pub(super) fn code(target: Target, body: &Body) -> Option<Arc<kiln_x86::Code>> {
    // Printed here and not in the cache's hands: a body may turn out not to be printable.
    let mut failed = false;
    let name = || format!("fused work of {} instructions", body.code.len());
    let code = cache::code(body.key(target), name, || {
        print(body, target).unwrap_or_else(|_| {
            failed = true;
            vec![]
        })
    });
    code.filter(|c| !failed && !c.bytes().is_empty())
}

/// The code of a body, and where that writes past the cache, the same without that.
type Functions = (Arc<kiln_x86::Code>, Option<Arc<kiln_x86::Code>>);

/// As [`code`], for memory that is aligned and for other.
fn functions(target: Target, body: &mut Body) -> Option<Functions> {
    let first = code(target, body)?;
    let streams = body.operands.iter().any(|(_, k)| *k == Kind::Stream);
    if !streams {
        return Some((first, None));
    }
    for (_, kind) in &mut body.operands {
        if *kind == Kind::Stream {
            *kind = Kind::Line;
        }
    }
    Some((first, Some(code(target, body)?)))
}

/// Lanes that printed stages run over at once; between them a run may be ended early.
const STEP: usize = 1 << 15;

/// How many lanes a stage runs over at once.
pub(super) fn step(program: &super::Linked, stage: &Stage) -> usize {
    let is_call = |c: &Code| c.is_call;
    let whole = |c: &Code| {
        let operands = &program.printed[c.x as usize].operands;
        operands.iter().all(|o| match o.place {
            super::call::Place::Register(_) => o.step == 0,
            _ => true,
        })
    };
    let rows = program.schedule == Schedule::Rows;
    let long = stage.over_inner == rows
        && !stage.body.is_empty()
        && stage.body.iter().all(|c| is_call(c) && whole(c));
    if long {
        STEP.max(program.tile)
    } else {
        program.tile
    }
}

impl Linker<'_> {
    /// Which instructions of a stage are printed.
    pub(super) fn which_are_printed(&mut self, target: Target, index: usize) -> Result<Vec<bool>> {
        let bound = self.bound;
        let program = bound.program;
        let stage = &program.stages[index];
        let one = program.schedule == Schedule::Rows && !stage.over_inner;
        let mut stored: Vec<u16> = vec![];
        let mut printed = Vec::with_capacity(stage.code.len());
        for inst in &stage.code {
            let mut is = is_printed(target, bound, inst);
            if let Inst::Load { access, .. } | Inst::Store { access, .. } = inst {
                let is_store = matches!(inst, Inst::Store { .. });
                let x = self.walk(usize::from(*access), stage.over_inner)?;
                let kind = kind(&self.walks[x as usize], is_store, one);
                let arg = program.accesses[usize::from(*access)].arg;
                // What is the same for all lanes is read before any of them is written.
                let again = kind == Some(Kind::Splat) && stored.contains(&arg);
                is &= kind.is_some() && !again;
                if is_store {
                    stored.push(arg);
                }
            }
            printed.push(is);
        }
        // A gather makes its walk one that is not printed, wherever it stands.
        for (is, inst) in printed.iter_mut().zip(&stage.code) {
            let gathered = |access: u16| {
                let at = |i: &Inst| matches!(i, Inst::LoadAt { access: a, .. } if *a == access);
                program.stages.iter().flat_map(|s| &s.code).any(at)
            };
            if let Inst::Load { access, .. } | Inst::Store { access, .. } = inst {
                *is &= !gathered(*access);
            }
        }
        Ok(printed)
    }

    /// Adds a printed function of some instructions, or these as they are if it can't be.
    pub(super) fn function(&mut self, draft: &mut Drafting, code: &[usize]) -> Result<()> {
        let program = self.bound.program;
        let stage = &program.stages[draft.index];
        let Some(target) = Target::of(self.level) else {
            return Err(damaged!("nothing is printed at this level"));
        };
        let mut made = Making::new(self, draft.index, code);
        let added = code.iter().all(|i| made.inst(self, draft, *i).is_ok());
        made.outputs(self, draft, code);
        if ahead::costliest(self.bound) == Some(draft.index) && draft.stage.functions.is_empty() {
            made.ahead(self)?;
        }
        let Making {
            mut body,
            operands,
            values,
            walks,
            sums,
            ..
        } = made;
        let streams = body.operands.iter().any(|(_, k)| *k == Kind::Stream);
        let function = (added && operands.len() <= MAX)
            .then(|| functions(target, &mut body))
            .flatten();
        let Some((printed, plain)) = function else {
            for i in code {
                self.interpreted(draft, *i, (0, 0))?;
            }
            return Ok(());
        };
        self.streams |= streams;
        draft.walks.extend(walks);
        let mut operands = operands;
        let mut after = vec![];
        for (i, operand) in sums {
            let inst = &stage.code[i];
            let Inst::Reduce { acc, .. } = inst else {
                continue;
            };
            let acc = self.global(acc.0);
            let (parts, flush) = self.reduction(inst, acc, [None; 3], &mut draft.out);
            if let Place::State(x) = &mut operands[operand].place {
                *x = parts.x;
            }
            after.extend(flush);
        }
        let mut runs: Vec<(u32, Vec<usize>)> = vec![];
        for (i, operand) in operands.iter().enumerate() {
            if let Place::Run(x) = operand.place {
                match runs.iter_mut().find(|(y, _)| *y == x) {
                    Some((_, operands)) => operands.push(i),
                    None => runs.push((x, vec![i])),
                }
            }
        }
        draft.stage.functions.push(Function {
            printed: Printed {
                code: printed,
                plain,
                operands,
                runs,
            },
            values,
        });
        let f = draft.stage.functions.len() - 1;
        draft.stage.drafts.push(Draft {
            make: Make::Printed(f),
            dst: None,
            sources: [None; 3],
            x: 0,
            hidden: Hidden::None,
        });
        draft.stage.drafts.extend(after);
        Ok(())
    }
}

/// A body, while instructions are added to it.
struct Making {
    stage: usize,
    /// Whether its lanes are those of a row.
    along: bool,
    /// Whether there is one lane.
    one: bool,
    reduces: bool,
    body: Body,
    operands: Vec<Operand>,
    /// Operands that are values of the stage, and whether they are written.
    values: Vec<(usize, Value, bool)>,
    walks: Vec<u32>,
    /// What instructions of this body made.
    made: HashMap<usize, Reg>,
    /// What it reads from elsewhere.
    given: HashMap<Name, Reg>,
    /// Loads by their walk.
    loads: HashMap<u32, u16>,
    slots: HashMap<u16, u16>,
    /// Reductions, and the operand of each.
    sums: Vec<(usize, usize)>,
}

impl Making {
    fn new(linker: &Linker, stage: usize, code: &[usize]) -> Making {
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
            reduces,
            body: Body {
                block: (along && reduces).then_some(tile as u32),
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
                Kind::Splat | Kind::State => 0,
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
        let Some(mut kind) = kind(walk, is_store, self.one) else {
            return Err(damaged!("an access that is not printed"));
        };
        let place = match walk.shape {
            Shape::Contiguous => Place::Line(x),
            Shape::Splat => Place::First(x),
            Shape::General => Place::Run(x),
        };
        let streams = is_store && walk.shape == Shape::Contiguous && !self.reduces;
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
    fn inst(&mut self, linker: &mut Linker, draft: &Drafting, i: usize) -> Result<()> {
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

    /// Adds what is fetched for the next row.
    fn ahead(&mut self, linker: &mut Linker) -> Result<()> {
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
    fn outputs(&mut self, linker: &mut Linker, draft: &mut Drafting, code: &[usize]) {
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
