//! A small interpreter of the machine code that [`kiln_x86::Asm`] makes, so that code for AVX-512 and AMX is also
//! proven on a machine that has AVX2 only. It checks what hardware does not: accesses outside the memory that the
//! code was given, use of flags that no instruction set, saved registers that are not restored.
//!
//! ```
//! use kiln_x86::{Asm, Gpr, Mem, Vreg, Width, op};
//! use kiln_x86_interpreter::Machine;
//!
//! let mut a = Asm::new(true);
//! a.op(op::VMOVUPS, Width::Z, (Vreg(20), Mem::at(Gpr::RDI)));
//! a.op(op::VADDPS, Width::Z, (Vreg(20), Vreg(20), Vreg(20)));
//! a.op(op::VMOVUPS_STORE, Width::Z, (Mem::at(Gpr::RSI), Vreg(20)));
//! a.leave(&[], 0);
//! let code = a.finish();
//!
//! let (x, mut y) = ([1.5f32; 16], [0.0f32; 16]);
//! let arguments = [x.as_ptr() as u64, y.as_mut_ptr() as u64];
//! let mut machine = Machine::new().readable(&x).writable(&mut y);
//! machine.call(&code, &arguments)?;
//! // Four bytes further on, the vector ends behind the array.
//! let fault = machine.call(&code, &[arguments[0] + 4, arguments[1]]).unwrap_err();
//! assert!(fault.to_string().contains("vmovups zmm20,[rdi]"));
//! drop(machine);
//! assert_eq!(y, [3.0; 16]);
//! # Ok::<(), kiln_x86_interpreter::Fault>(())
//! ```
//!
//! The stages: `program` decodes (`decode`) the reachable code into a list of steps (`step`); `exec` has an action for each, by
//! its mnemonic. `machine` runs the list on registers (`cpu`) and the memory that the caller declared (`memory`).
//! `number` is the arithmetic.
//!
//! Not modelled: exceptions of floating point, rounding modes other than the default of `MXCSR`, the auxiliary carry
//! flag, approximations (such as `vrcp14ps`, which differs between processors), timing.

mod cpu;
mod decode;
mod exec;
mod fault;
mod machine;
mod memory;
mod number;
mod program;
mod step;
mod tile;
mod vector;

pub use cpu::Function;
pub use fault::{Fault, FaultKind};
pub use machine::Machine;
pub use memory::Plain;
