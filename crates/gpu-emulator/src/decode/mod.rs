//! Decodes functions to [`Kernel`]s: registers get slots, variables get offsets, calls are inlined, and each
//! instruction becomes an [`Op`]. An instruction that is not emulated is an error here, never skipped.

mod arithmetic;
mod asynchronous;
mod collective;
mod control;
mod matrix;
mod memory;
mod moves;
mod opcode;
mod operand;

use crate::code::{Constant, Inst, Op, Origin};
use crate::lanes::{ALWAYS, Operands, Predicate, Run, Slot, UNUSED};
use crate::program::{Global, Kernel, LoadError, Parameter, SHARED_START, Text};
use crate::ptx::{Function, Instruction, Module, Operand, Register, Space, Type};
use opcode::{Opcode, Unsupported};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

type Result<T, E = Unsupported> = std::result::Result<T, E>;

/// The depth of nested calls above which recursion is assumed.
const MAX_DEPTH: usize = 32;

/// Decodes the kernel `function` of `module`.
pub(crate) fn kernel(
    module: &Module,
    function: &Function,
    globals: &BTreeMap<String, Global>,
    text: &Arc<Text>,
) -> Result<Kernel, LoadError> {
    let mut offset = 0;
    let mut parameters = Vec::new();
    for p in &function.parameters {
        offset = usize::next_multiple_of(offset, p.align);
        parameters.push(Parameter {
            offset,
            size: p.size,
        });
        offset += p.size;
    }
    let names = function.parameters.iter().map(|v| v.name.as_str());
    let offsets = parameters.iter().map(|p| p.offset as u32);
    let mut decoder = Decoder {
        module,
        globals,
        parameters: names.zip(offsets).collect(),
        frame: Frame::new(function, 0),
        opcode: Opcode::new(""),
        operands: &[],
        scope: 0,
        guard: (ALWAYS, false),
        after: Vec::new(),
        constants: HashMap::new(),
        shared: HashMap::new(),
        kernel: Kernel {
            name: function.name.clone(),
            code: Vec::new(),
            origins: Vec::new(),
            words: 0,
            predicates: UNUSED + 1,
            constants: Vec::new(),
            parameters,
            parameter_bytes: offset,
            shared_end: SHARED_START,
            dynamic_align: 16,
            local_bytes: 0,
            max_threads: function.max_threads,
            cluster: function.cluster.unwrap_or([1; 3]),
            shared_granule: 16,
            has_global_atomics: false,
            text: text.clone(),
        },
    };
    decoder.function().map_err(|(line, why)| {
        let text = text.line(line);
        LoadError::Unsupported { line, why, text }
    })?;
    decoder.push(Op::Exit);
    let mut kernel = decoder.kernel;
    let constants = decoder.constants.into_iter();
    kernel.constants = constants.map(|((c, wide), slot)| (slot, wide, c)).collect();
    kernel.constants.sort_by_key(|c| c.0);
    Ok(kernel)
}

/// The state of decoding one kernel.
struct Decoder<'m> {
    module: &'m Module,
    globals: &'m BTreeMap<String, Global>,
    /// Offsets of the kernel's parameters.
    parameters: HashMap<&'m str, u32>,
    frame: Frame<'m>,
    /// The current instruction: opcode, operands, scope and guard.
    opcode: Opcode<'m>,
    operands: &'m [Operand],
    scope: u32,
    guard: (Predicate, bool),
    /// The operations to append after the current instruction: they widen its results.
    after: Vec<Op>,
    constants: HashMap<(Constant, bool), Slot>,
    /// Offsets of the shared variables that are used.
    shared: HashMap<String, u32>,
    /// The kernel so far.
    kernel: Kernel,
}

/// One use of a function: the kernel, or a call.
struct Frame<'m> {
    function: &'m Function,
    /// The slot or predicate of each register.
    slots: Vec<Option<u32>>,
    /// Offsets in local memory of `.local` variables and of arguments.
    locals: HashMap<String, u32>,
    depth: usize,
    /// Branches to fix up: index in the code → index of the target instruction in the function.
    jumps: Vec<(usize, usize)>,
}

impl<'m> Frame<'m> {
    fn new(function: &'m Function, depth: usize) -> Frame<'m> {
        Frame {
            function,
            slots: vec![None; function.registers.len()],
            locals: HashMap::new(),
            depth,
            jumps: Vec::new(),
        }
    }
}

impl<'m> Decoder<'m> {
    /// Appends the code of a function. An error carries the line of its instruction.
    fn function(&mut self) -> Result<(), (u32, Unsupported)> {
        let function = self.frame.function;
        // Consecutive scopes declare arguments of the same name; one slot of the largest size serves them all.
        let mut rooms: BTreeMap<&String, (usize, usize)> = BTreeMap::new();
        for variable in &function.variables {
            if matches!(variable.space, Space::Local | Space::Param) {
                let (size, align) = rooms.entry(&variable.name).or_default();
                *size = variable.size.max(*size);
                *align = variable.align.max(*align);
            }
        }
        for (name, (size, align)) in rooms {
            let offset = self.local(size, align);
            self.frame.locals.insert(name.clone(), offset);
        }
        let mut starts = Vec::with_capacity(function.instructions.len() + 1);
        for instruction in &function.instructions {
            starts.push(self.kernel.code.len() as u32);
            self.kernel.origins.push(Origin {
                line: instruction.line,
                source: instruction.source,
            });
            self.instruction(instruction)?;
        }
        starts.push(self.kernel.code.len() as u32);
        for (jump, to) in std::mem::take(&mut self.frame.jumps) {
            match &mut self.kernel.code[jump].op {
                Op::Branch(target) => *target = starts[to],
                Op::BranchTable { targets, .. } => {
                    for target in targets.iter_mut() {
                        *target = starts[*target as usize];
                    }
                }
                _ => unreachable!("only branches are recorded"),
            }
        }
        Ok(())
    }

    fn instruction(&mut self, instruction: &'m Instruction) -> Result<(), (u32, Unsupported)> {
        let fail = |why| (instruction.line, why);
        self.guard = match instruction.guard {
            Some((register, negated)) => (self.predicate_slot(register).map_err(fail)?, negated),
            None => (ALWAYS, false),
        };
        self.opcode = Opcode::new(&instruction.opcode);
        self.operands = &instruction.operands;
        self.scope = instruction.scope;
        if self.opcode.name == "call" {
            return self.call(instruction);
        }
        self.operation().map_err(fail)?;
        for op in std::mem::take(&mut self.after) {
            self.push(op);
        }
        self.opcode.finish().map_err(fail)
    }

    /// Decodes any instruction but a call.
    fn operation(&mut self) -> Result<()> {
        match self.opcode.name {
            "mov" | "selp" | "cvt" | "cvta" | "setp" | "set" | "isspacep" => self.moves(),
            "ld" | "ldu" | "st" | "atom" | "red" => self.memory(),
            "bra" | "brx" | "ret" | "exit" | "trap" | "bar" | "barrier" | "membar" | "fence"
            | "nanosleep" | "prefetch" | "prefetchu" | "griddepcontrol" | "setmaxnreg"
            | "discard" | "applypriority" | "createpolicy" => self.control(),
            "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => self.collective(),
            "cp" | "mbarrier" => self.asynchronous(),
            "ldmatrix" | "stmatrix" | "mma" | "wgmma" => self.matrix(),
            "mapa" => self.map_shared(),
            _ => self.arithmetic(),
        }
    }

    /// Inlines a call. Arguments live in local memory, where the caller stored them.
    fn call(&mut self, instruction: &'m Instruction) -> Result<(), (u32, Unsupported)> {
        let fail = |why: String| (instruction.line, why);
        if self.guard.0 != ALWAYS {
            return Err(fail("a call under a predicate".into()));
        }
        if self.frame.depth == MAX_DEPTH {
            return Err(fail("calls nest too deeply: is it recursion?".into()));
        }
        fn list<'a>(operands: &mut &'a [Operand]) -> &'a [Operand] {
            match operands.split_first() {
                Some((Operand::List(items), rest)) => {
                    *operands = rest;
                    items
                }
                _ => &[],
            }
        }
        let mut operands = self.operands;
        let returns = list(&mut operands);
        let Some((Operand::Symbol(name, 0), mut rest)) = operands.split_first() else {
            return Err(fail("a call through a pointer".into()));
        };
        let arguments = list(&mut rest);
        let callee = self
            .module
            .functions
            .iter()
            .find(|f| !f.is_entry && &f.name == name);
        let callee = callee.ok_or_else(|| fail(format!("call of `{name}`, which is not here")))?;
        let mut inner = Frame::new(callee, self.frame.depth + 1);
        let formals = callee.parameters.iter().zip(arguments);
        for (formal, actual) in formals.chain(callee.returns.iter().zip(returns)) {
            let offset = match actual {
                Operand::Symbol(name, 0) => self.frame.locals.get(name),
                _ => None,
            };
            let &offset = offset.ok_or_else(|| fail("an argument that is no .param".into()))?;
            inner.locals.insert(formal.name.clone(), offset);
        }
        let outer = std::mem::replace(&mut self.frame, inner);
        let result = self.function();
        self.frame = outer;
        result
    }

    /// Allocates local memory and returns its offset.
    fn local(&mut self, size: usize, align: usize) -> u32 {
        let offset = self.kernel.local_bytes.next_multiple_of(align.max(1));
        self.kernel.local_bytes = offset + size;
        offset as u32
    }

    fn push(&mut self, op: Op) {
        let (guard, negated) = self.guard;
        let origin = self.kernel.origins.len().saturating_sub(1) as u32;
        self.kernel.code.push(Inst {
            guard,
            negated,
            origin,
            op,
        });
    }

    /// Appends a loop over lanes: its destination, sources and number.
    fn lanes(&mut self, run: Run, d: Slot, sources: [Slot; 3], x: u32) {
        let operands = Operands::new(d, sources, x);
        self.push(Op::Lanes { run, operands });
    }

    /// A fresh register.
    fn fresh(&mut self, wide: bool) -> Slot {
        let slot = self.kernel.words;
        self.kernel.words += if wide { 64 } else { 32 };
        slot
    }

    /// The register that holds `constant`.
    fn constant(&mut self, constant: Constant, wide: bool) -> Slot {
        if let Some(&slot) = self.constants.get(&(constant, wide)) {
            return slot;
        }
        let slot = self.fresh(wide);
        self.constants.insert((constant, wide), slot);
        slot
    }

    /// The slot of a data register, and true if it is 64 bits wide.
    fn register_slot(&mut self, register: Register) -> Result<(Slot, bool)> {
        let wide = match self.frame.function.registers[register.0 as usize] {
            Type::Pred => return Err("a predicate for a number".into()),
            Type::B128 => return Err("128-bit registers".into()),
            ty => ty.is_wide(),
        };
        let slot = match self.frame.slots[register.0 as usize] {
            Some(slot) => slot,
            None => self.fresh(wide),
        };
        self.frame.slots[register.0 as usize] = Some(slot);
        Ok((slot, wide))
    }

    fn predicate_slot(&mut self, register: Register) -> Result<Predicate> {
        if self.frame.function.registers[register.0 as usize] != Type::Pred {
            return Err("a number for a predicate".into());
        }
        let known = &mut self.frame.slots[register.0 as usize];
        Ok(*known.get_or_insert_with(|| {
            self.kernel.predicates += 1;
            self.kernel.predicates - 1
        }))
    }
}
