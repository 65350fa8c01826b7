//! Walking over what is recorded.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// What tells outputs of nodes apart, for as long as these are alive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Key(usize, u32);

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Nodes lie further apart than most have outputs.
        state.write_usize(self.0.wrapping_add(self.1 as usize));
    }
}

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
/// `visit` is asked for an item whether anything is to be visited before it, and adds what to the list that it is
/// given; where it has said so, it is asked again, with `true`, when that is done, and then has nothing more to say.
/// It knows itself what it has been asked for before.
///
/// # Errors
/// The first of `visit`.
pub fn postorder<T, E>(
    item: T,
    mut visit: impl FnMut(&T, bool, &mut First<T>) -> Result<bool, E>,
) -> Result<(), E> {
    let mut stack = First(vec![(item, false)]);
    while let Some((item, is_last)) = stack.0.pop() {
        let rest = stack.0.len();
        if visit(&item, is_last, &mut stack)? {
            stack.0.push((item, true));
            stack.0[rest..].reverse();
        }
    }
    Ok(())
}

/// What is to be visited, and whether for the last time.
pub struct First<T>(Vec<(T, bool)>);

impl<T> First<T> {
    /// Adds what is visited before an item.
    #[inline]
    pub fn extend(&mut self, items: impl IntoIterator<Item = T>) {
        self.0.extend(items.into_iter().map(|t| (t, false)));
    }
}
