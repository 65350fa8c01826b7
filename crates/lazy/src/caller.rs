//! The user's lines of operations that a library records.

use kiln_base::{Loc, Scoped};
use std::cell::Cell;
use std::panic::Location;

#[derive(Clone, Copy)]
struct Caller {
    /// The library's source folder.
    library: &'static str,
    loc: &'static Location<'static>,
}

thread_local! {
    static CALLER: Cell<Option<Caller>> = const { Cell::new(None) };
}

/// Runs `f`. Operations that source files under the folder `library` record in it count as recorded at the line that
/// called this function. If that line is in the library too, they count as recorded at the line of the enclosing
/// call, which may be one of another library.
///
/// `#[track_caller]` does this for direct calls, but its trace ends at a `dyn` call, such as that of
/// a layer in a container.
#[track_caller]
pub fn on_behalf_of_caller<T>(library: &'static str, f: impl FnOnce() -> T) -> T {
    let loc = match (CALLER.get(), Location::caller()) {
        (Some(outer), loc) if loc.file().starts_with(library) => outer.loc,
        (_, loc) => user_line(loc),
    };
    on_behalf_of(library, loc, f)
}

/// [`on_behalf_of_caller`] for a line that [`user_line`] returned before, such as that of a loader.
pub fn on_behalf_of<T>(
    library: &'static str,
    loc: &'static Location<'static>,
    f: impl FnOnce() -> T,
) -> T {
    let _inside = Scoped::new(&CALLER, Some(Caller { library, loc }));
    f()
}

/// The user's line for an operation recorded at `loc`.
#[inline]
pub fn user_line(loc: &'static Location<'static>) -> &'static Location<'static> {
    match CALLER.get() {
        Some(c) if loc.file().starts_with(c.library) => c.loc,
        _ => loc,
    }
}

/// Replaces the location of an error in a library by the user's.
pub(crate) fn user_loc(loc: Loc) -> Loc {
    match CALLER.get() {
        Some(c) if loc.file().starts_with(c.library) => Loc::from(c.loc),
        _ => loc,
    }
}
