//! Walking over what is recorded.

use std::sync::Arc;

/// What tells outputs of nodes apart, for as long as these are alive.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(usize, u32);

impl Key {
    /// That of an output.
    #[inline]
    pub fn of<T>(node: &Arc<T>, output: u32) -> Key {
        Key(Arc::as_ptr(node) as usize, output)
    }

    /// That of a node as a whole.
    #[inline]
    pub fn whole<T>(node: &Arc<T>) -> Key {
        Key::of(node, u32::MAX)
    }
}

/// Visits what lies behind an item and then the item: operands before users, the first operand first, without
/// recursion, since programs are millions of operations deep.
///
/// `visit` is asked for an item whether anything is to be visited before it, and what; where it has said so, it
/// is asked again, with `true`, when that is done, and then has nothing more to say. It knows itself what it has
/// been asked for before.
///
/// # Errors
/// The first of `visit`.
pub fn postorder<T, I, E>(
    item: T,
    mut visit: impl FnMut(&T, bool) -> Result<Option<I>, E>,
) -> Result<(), E>
where
    I: IntoIterator<Item = T, IntoIter: DoubleEndedIterator>,
{
    let mut stack = vec![(item, false)];
    while let Some((item, is_last)) = stack.pop() {
        if let Some(first) = visit(&item, is_last)? {
            stack.push((item, true));
            stack.extend(first.into_iter().rev().map(|t| (t, false)));
        }
    }
    Ok(())
}
