//! Calls.

use crate::cpu::{ARGUMENTS, Cpu, Function, RSP};
use crate::fault::{Fault, FaultKind, Outcome, Raised, raise};
use crate::memory::{Memory, Plain};
use crate::program::Program;
use crate::step::Step;
use std::collections::HashMap;

/// A processor, and the memory that code may use.
pub struct Machine<'a> {
    memory: Memory<'a>,
    stack: Vec<u64>,
    functions: Vec<Function>,
    limit: u64,
    /// The decoded programs, by their code.
    programs: HashMap<Vec<u8>, Program>,
}

/// The callee-saved registers: `RBX`, `RBP`, `R12` to `R15`.
const KEPT: [usize; 6] = [3, 5, 12, 13, 14, 15];

const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// The return address of a call, where no code is.
const CALLER: u64 = 0xCA11_0000_CA11_0000;

impl Default for Machine<'_> {
    fn default() -> Self {
        Machine::new()
    }
}

impl<'a> Machine<'a> {
    /// A machine whose code may use its stack of 128 KiB and its constants.
    pub fn new() -> Machine<'a> {
        Machine {
            memory: Memory::default(),
            stack: vec![0; 16384],
            functions: Vec::new(),
            limit: 1 << 30,
            programs: HashMap::new(),
        }
    }

    /// Lets code read these elements.
    pub fn readable<T: Plain>(mut self, x: &'a [T]) -> Machine<'a> {
        self.memory.readable(x);
        self
    }

    /// Lets code read and write these elements.
    pub fn writable<T: Plain>(mut self, x: &'a mut [T]) -> Machine<'a> {
        self.memory.writable(x);
        self
    }

    /// Lets code read these bytes, and write them if `writable`. Regions may overlap.
    ///
    /// # Safety
    /// The bytes can be read, and written if `writable`, as long as the machine is used, and nobody else writes to
    /// them while code runs.
    pub unsafe fn region(mut self, at: *mut u8, bytes: usize, writable: bool) -> Machine<'a> {
        // SAFETY: what the caller promised.
        unsafe { self.memory.add(at, bytes, writable) };
        self
    }

    /// Revokes all memory that code was given.
    pub fn without_memory(mut self) -> Machine<'a> {
        self.memory.truncate(0);
        self
    }

    /// Code may call this function, which then runs on the processor.
    ///
    /// # Safety
    /// The function can be called with what the code passes to it, and uses no memory of the machine but what was
    /// given by [`Machine::region`].
    pub unsafe fn function(mut self, f: Function) -> Machine<'a> {
        self.functions.push(f);
        self
    }

    /// Limits calls to this number of instructions.
    pub fn limit(mut self, instructions: u64) -> Machine<'a> {
        self.limit = instructions;
        self
    }

    /// Calls code that [`kiln_x86::Asm::finish`] gave as a System V function, with up to six integers or addresses,
    /// and gives what it returns in `RAX`.
    ///
    /// # Errors
    /// A fault of the code.
    ///
    /// # Panics
    /// If there are more arguments.
    pub fn call(&mut self, code: &[u8], arguments: &[u64]) -> Result<u64, Fault> {
        assert!(arguments.len() <= 6, "{} arguments", arguments.len());
        let known = self.programs.remove_entry(code);
        let (code, program) = known.unwrap_or_else(|| (code.to_vec(), Program::new(code)));
        let given = self.memory.regions();
        let constants = program.constants();
        // SAFETY: neither the constants nor the stack are used otherwise until the regions are taken back below.
        unsafe {
            let at = constants.as_ptr().cast_mut();
            self.memory.add(at, constants.len(), false);
            let stack = self.stack.as_mut_ptr().cast();
            self.memory.add(stack, size_of_val(&self.stack[..]), true);
        }
        let result = self.run(&program, arguments);
        self.memory.truncate(given);
        self.programs.insert(code, program);
        result
    }

    fn run(&mut self, program: &Program, arguments: &[u64]) -> Result<u64, Fault> {
        let top = (self.stack.as_ptr() as u64 + 8 * self.stack.len() as u64) & !63;
        let mut cpu = Cpu::new(&mut self.memory, &self.functions);
        for (argument, register) in arguments.iter().zip(ARGUMENTS) {
            cpu.gprs[register] = *argument;
        }
        cpu.gprs[RSP] = top;
        let kept = cpu.gprs;
        cpu.next = program.start();
        let mut last = None;
        let mut run = || -> Outcome<u64> {
            // The stack has room for the caller's address.
            cpu.push(CALLER)?;
            for _ in 0..self.limit {
                let Some(step) = program.step(cpu.next) else {
                    let message = match last {
                        None => "there is no code",
                        Some(_) => "continues where there is no code",
                    };
                    return raise(FaultKind::NotCode, message);
                };
                last = Some(step);
                cpu.next = program.start() + step.end as u64;
                match step.action {
                    Some(action) => action(&mut cpu, step)?,
                    None => return raise(FaultKind::Unknown, "is not interpreted"),
                }
                if cpu.next == CALLER {
                    check_kept(&cpu, &kept)?;
                    return Ok(cpu.gprs[0]);
                }
            }
            raise(
                FaultKind::Endless,
                format!("more than {} instructions", self.limit),
            )
        };
        run().map_err(|Raised { kind, message }| Fault {
            kind,
            message,
            offset: last.map_or(0, |step| step.at),
            instruction: last.map_or(String::new(), Step::text),
        })
    }
}

/// Checks that callee-saved registers hold their values from before the call, and that no tiles are in use.
fn check_kept(cpu: &Cpu, before: &[u64; 16]) -> Outcome<()> {
    if cpu.tiles.is_some() {
        return raise(FaultKind::NotKept, "tiles are in use on return");
    }
    let changed = (KEPT.into_iter().chain([RSP])).find(|r| cpu.gprs[*r] != before[*r]);
    match changed {
        None => Ok(()),
        Some(r) => {
            let (name, was, is) = (NAMES[r], before[r], cpu.gprs[r]);
            let message = format!("{name} was {was:#x} and is {is:#x} on return");
            raise(FaultKind::NotKept, message)
        }
    }
}
