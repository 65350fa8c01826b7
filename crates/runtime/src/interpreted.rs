//! Machine code that is interpreted in tests, so that what is printed for a level is proven on processors that lack it,
//! and touches only what it was given.
//!
//! While a thread [interprets](interpreting), each call of printed code goes to an interpreter instead of the
//! processor. What the code may touch is declared: the arguments of the steps that run, to the byte, memory that their
//! kernels take meanwhile, and the lists of addresses that a call comes with.

mod attention;
mod layers;
mod programs;

use crate::contraction::Call;
use crate::lock::lock;
use kiln_base::Level;
use kiln_x86_interpreter::{Function, Machine};
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Mutex;

/// Memory: where, how many bytes, and whether it may be written.
pub(crate) type Region = (*const u8, usize, bool);

/// The lists that a tile's code is called with.
#[derive(Copy, Clone, Default)]
pub(crate) struct Lists {
    /// Taps, and accesses of the work on sums.
    pub taps: usize,
    pub places: usize,
    /// Whether the left operand is a list of lines and one of padding, each up to a zero.
    pub lines: bool,
}

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
    /// By where its code is.
    static LISTS: RefCell<HashMap<*const u8, Lists>> = RefCell::default();
}

/// Interprets all printed code that `f` runs on this thread, where all parts of a run are then; gives how many calls
/// these were.
pub(crate) fn interpreting<R>(f: impl FnOnce() -> R) -> (R, usize) {
    INTERPRETER.set(Some(Interpreter::default()));
    let result = f();
    let calls = INTERPRETER.take().map_or(0, |i| i.calls);
    (result, calls)
}

/// Whether this thread interprets.
pub(crate) fn is_on() -> bool {
    INTERPRETER.with_borrow(Option::is_some)
}

/// The memory that was declared before, which comes back.
pub(crate) struct Declared(Vec<Region>);

impl Drop for Declared {
    fn drop(&mut self) {
        INTERPRETER.with_borrow_mut(|i| {
            i.iter_mut()
                .for_each(|i| i.memory = std::mem::take(&mut self.0));
        });
    }
}

/// Says what code may touch until the result is dropped, beside what is [`given`] meanwhile.
pub(crate) fn declare(memory: impl Iterator<Item = Region>) -> Declared {
    let swap = |i: &mut Interpreter| std::mem::replace(&mut i.memory, memory.collect());
    Declared(INTERPRETER.with_borrow_mut(|i| i.as_mut().map(swap).unwrap_or_default()))
}

/// Kernels took memory, or use what they took for so many bytes now.
pub(crate) fn given(at: *const u8, bytes: usize, written: bool) {
    INTERPRETER.with_borrow_mut(|i| {
        if let Some(i) = i {
            i.memory.retain(|(other, ..)| *other != at);
            i.memory.push((at, bytes, written));
        }
    });
}

/// Code was printed that takes these lists.
pub(crate) fn takes(code: &[u8], lists: Lists) {
    LISTS.with_borrow_mut(|all| all.insert(code.as_ptr(), lists));
}

/// Code was printed that calls this function.
pub(crate) fn calls(f: Function) {
    let mut all = lock(&FUNCTIONS);
    if !all.contains(&f) {
        all.push(f);
    }
}

/// Interprets a call of code, if this thread does so; it may touch `beside` too.
pub(crate) fn call(code: &[u8], arguments: &[u64], beside: &[Region]) -> bool {
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

/// The same of a tile's code.
pub(crate) fn tile(code: &[u8], tile: &Call) -> bool {
    if !is_on() {
        return false;
    }
    let lists = LISTS.with_borrow(|all| all[&code.as_ptr()]);
    let list = |at: *const u8, n: usize| (at, 8 * n, false);
    let mut beside = vec![
        (std::ptr::from_ref(tile).cast(), size_of::<Call>(), false),
        list(tile.taps.cast(), lists.taps),
        list(tile.finish.cast(), lists.places),
    ];
    if lists.lines {
        let all = tile.left.cast::<usize>();
        let mut n = 0;
        for step in [2, 1] {
            // SAFETY: either list ends with a zero.
            while unsafe { *all.add(n) } != 0 {
                n += step;
            }
            n += 1;
        }
        beside.push(list(tile.left, n));
    }
    call(code, &[std::ptr::from_ref(tile) as u64], &beside)
}

/// Whether some tiles, a layer or a random program come out wrong.
#[cfg(all(target_arch = "x86_64", unix))]
pub(crate) fn is_wrong(seed: u64) -> bool {
    let level = [Level::Avx2, Level::Avx512][seed as usize / 2 % 2];
    let check = || match seed % 4 {
        0 => programs::check(seed, level),
        1 => {
            crate::contraction::tests::some_tiles(seed, level);
            Ok(0)
        }
        2 => layers::check(seed, level),
        _ if seed % 16 == 3 => layers::check_halves(seed, Level::Amx),
        _ if seed % 16 == 11 => layers::check_halves(seed, Level::Avx512Fp16),
        _ if seed % 16 == 7 => layers::check_whole(seed, Level::Amx),
        _ => layers::check_whole(seed, Level::Avx512Vnni),
    };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check));
    !matches!(result, Ok(Ok(_)))
}
