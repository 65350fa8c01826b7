//! Interpretation of machine code in tests. It tests emitted code on processors without its level, and checks that the
//! code accesses only declared memory.
//!
//! While a thread [interprets](interpreting), each call of emitted code goes to an interpreter instead of the
//! processor. The code may access declared memory only: the arguments of the current steps, memory that kernels
//! allocate meanwhile, and the address tables of calls.

use crate::lock::lock;
use kiln_x86_interpreter::{Function, Machine};
use std::cell::RefCell;
use std::sync::Mutex;

/// A memory region: its address, its bytes, and true if it may be written.
pub type Region = (*const u8, usize, bool);

#[derive(Default)]
struct Interpreter {
    machine: Machine<'static>,
    memory: Vec<Region>,
    /// The number of functions that the machine has registered.
    functions: usize,
    calls: usize,
}

/// The functions that emitted code calls.
static FUNCTIONS: Mutex<Vec<Function>> = Mutex::new(vec![]);

thread_local! {
    static INTERPRETER: RefCell<Option<Interpreter>> = const { RefCell::new(None) };
}

/// Calls `f`, and interprets all emitted code that it runs. This thread then runs all parts of parallel runs. Returns
/// the result of `f`, and the number of interpreted calls.
pub fn interpreting<R>(f: impl FnOnce() -> R) -> (R, usize) {
    INTERPRETER.set(Some(Interpreter::default()));
    let result = f();
    let calls = INTERPRETER.take().map_or(0, |i| i.calls);
    (result, calls)
}

/// True if this thread interprets machine code.
pub fn is_interpreting() -> bool {
    INTERPRETER.with_borrow(Option::is_some)
}

/// The previously declared memory, which is restored on drop.
pub struct Declared(Vec<Region>);

impl Drop for Declared {
    fn drop(&mut self) {
        INTERPRETER.with_borrow_mut(|i| {
            i.iter_mut()
                .for_each(|i| i.memory = std::mem::take(&mut self.0));
        });
    }
}

/// Declares the memory that code may access until the result is dropped, in addition to [declared
/// memory](declare_memory).
pub fn declare(memory: impl Iterator<Item = Region>) -> Declared {
    let swap = |i: &mut Interpreter| std::mem::replace(&mut i.memory, memory.collect());
    Declared(INTERPRETER.with_borrow_mut(|i| i.as_mut().map(swap).unwrap_or_default()))
}

/// Declares memory that a kernel allocated, or updates its size.
pub fn declare_memory(address: *const u8, bytes: usize, written: bool) {
    INTERPRETER.with_borrow_mut(|i| {
        if let Some(i) = i {
            i.memory.retain(|(declared, ..)| *declared != address);
            i.memory.push((address, bytes, written));
        }
    });
}

/// Registers a function that emitted code calls.
pub fn register_function(f: Function) {
    let mut functions = lock(&FUNCTIONS);
    if !functions.contains(&f) {
        functions.push(f);
    }
}

/// Interprets a call of machine code, which may also access `accessible`. Returns false if this thread does not
/// interpret.
pub fn call(code: &[u8], arguments: &[u64], accessible: &[Region]) -> bool {
    let Some(mut i) = INTERPRETER.take() else {
        return false;
    };
    let mut machine = i.machine.without_memory();
    for (address, bytes, written) in i.memory.iter().chain(accessible) {
        // SAFETY: the declarer vouches for it, and nobody else uses it during the call.
        machine = unsafe { machine.region(address.cast_mut(), *bytes, *written) };
    }
    for f in lock(&FUNCTIONS).iter().skip(i.functions) {
        // SAFETY: it uses the operands that code puts on the stack, and the context of the run.
        machine = unsafe { machine.function(*f) };
        i.functions += 1;
    }
    let result = machine.call(code, arguments);
    i.machine = machine;
    i.calls += 1;
    INTERPRETER.set(Some(i));
    result.unwrap_or_else(|fault| panic!("{fault}"));
    true
}
