//! Traversal of recorded graphs.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A key of an output of a node, unique for as long as the node is alive.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Key(usize, u32);

impl Hash for Key {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        // The addresses of nodes lie further apart than the number of outputs of most nodes.
        state.write_usize(self.0.wrapping_add(self.1 as usize));
    }
}

impl Key {
    /// Returns the key of an output.
    #[inline]
    pub fn of<T>(node: &Arc<T>, output: u32) -> Key {
        Key(Arc::as_ptr(node) as usize, output)
    }

    /// Returns the key of a node as a whole.
    #[inline]
    pub fn whole<T>(node: &Arc<T>) -> Key {
        Key::of(node, u32::MAX)
    }
}

/// Visits everything that an item depends on, then the item: operands before users, the first operand first. It does
/// not recurse, since programs can be millions of operations deep.
///
/// `visit` gets an item, and a list to which it adds the items that must be visited before it. If it returns true, it
/// is called for the item again once those are done, with `true`, and must then return false. It must keep track of
/// visited items.
///
/// # Errors
/// The first of `visit`.
pub fn postorder<T, E>(
    item: T,
    mut visit: impl FnMut(&T, bool, &mut First<T>) -> Result<bool, E>,
) -> Result<(), E> {
    let mut stack = First(vec![(item, false)]);
    while let Some((item, is_last)) = stack.0.pop() {
        let len_before = stack.0.len();
        if visit(&item, is_last, &mut stack)? {
            stack.0.push((item, true));
            stack.0[len_before..].reverse();
        }
    }
    Ok(())
}

/// The items to be visited, each with whether it is visited for the last time.
pub struct First<T>(Vec<(T, bool)>);

impl<T> First<T> {
    /// Adds items to visit before the current one.
    #[inline]
    pub fn extend(&mut self, items: impl IntoIterator<Item = T>) {
        self.0.extend(items.into_iter().map(|t| (t, false)));
    }
}
