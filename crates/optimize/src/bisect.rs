//! Finding the patch that makes a result wrong.

/// The position of the first of `patches` patches after which `is_right` is false, where it is true after none and
/// false after all of them.
///
/// # Errors
/// The errors of `is_right`.
pub fn first_wrong<E>(
    patches: usize,
    mut is_right: impl FnMut(usize) -> Result<bool, E>,
) -> Result<usize, E> {
    let (mut right, mut wrong) = (0, patches);
    while wrong - right > 1 {
        let middle = right + (wrong - right) / 2;
        match is_right(middle)? {
            true => right = middle,
            false => wrong = middle,
        }
    }
    Ok(right)
}
