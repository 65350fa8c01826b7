//! Machine code that is interpreted in tests, so that what is printed for a level is proven on processors that lack it,
//! and touches only what it was given.
//!
//! While a thread [interprets](interpreting), each call of printed code goes to an interpreter instead of the
//! processor. What the code may touch is declared: the arguments of the steps that run, to the byte, memory that their
//! kernels take meanwhile, and the lists of addresses that a call comes with.

use crate::lock::lock;
use kiln_x86_interpreter::{Function, Machine};
use std::cell::RefCell;
use std::sync::Mutex;

/// Memory: where, how many bytes, and whether it may be written.
pub type Region = (*const u8, usize, bool);

#[derive(Default)]
struct Interpreter {
    machine: Machine<'static>,
    memory: Vec<Region>,
    /// How many functions the machine knows.
    functions: usize,
    calls: usize,
}

/// What printed code calls.
static FUNCTIONS: Mutex<Vec<Function>> = Mutex::new(vec![]);

thread_local! {
    static INTERPRETER: RefCell<Option<Interpreter>> = const { RefCell::new(None) };
}

/// Interprets all printed code that `f` runs on this thread, where all parts of a run are then; gives how many calls
/// these were.
pub fn interpreting<R>(f: impl FnOnce() -> R) -> (R, usize) {
    INTERPRETER.set(Some(Interpreter::default()));
    let result = f();
    let calls = INTERPRETER.take().map_or(0, |i| i.calls);
    (result, calls)
}

/// Whether this thread interprets.
pub fn is_on() -> bool {
    INTERPRETER.with_borrow(Option::is_some)
}

/// The memory that was declared before, which comes back.
pub struct Declared(Vec<Region>);

impl Drop for Declared {
    fn drop(&mut self) {
        INTERPRETER.with_borrow_mut(|i| {
            i.iter_mut()
                .for_each(|i| i.memory = std::mem::take(&mut self.0));
        });
    }
}

/// Says what code may touch until the result is dropped, beside what is [`given`] meanwhile.
pub fn declare(memory: impl Iterator<Item = Region>) -> Declared {
    let swap = |i: &mut Interpreter| std::mem::replace(&mut i.memory, memory.collect());
    Declared(INTERPRETER.with_borrow_mut(|i| i.as_mut().map(swap).unwrap_or_default()))
}

/// Kernels took memory, or use what they took for so many bytes now.
pub fn given(at: *const u8, bytes: usize, written: bool) {
    INTERPRETER.with_borrow_mut(|i| {
        if let Some(i) = i {
            i.memory.retain(|(other, ..)| *other != at);
            i.memory.push((at, bytes, written));
        }
    });
}

/// Code was printed that calls this function.
pub fn calls(f: Function) {
    let mut all = lock(&FUNCTIONS);
    if !all.contains(&f) {
        all.push(f);
    }
}

/// Interprets a call of code, if this thread does so; it may touch `beside` too.
pub fn call(code: &[u8], arguments: &[u64], beside: &[Region]) -> bool {
    let Some(mut i) = INTERPRETER.take() else {
        return false;
    };
    let mut machine = i.machine.without_memory();
    for (at, bytes, written) in i.memory.iter().chain(beside) {
        // SAFETY: whoever declared it answers for it, and nobody else uses it while the call lasts.
        machine = unsafe { machine.region(at.cast_mut(), *bytes, *written) };
    }
    for f in lock(&FUNCTIONS).iter().skip(i.functions) {
        // SAFETY: it uses the operands that code puts onto the stack, and the context of the run.
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
