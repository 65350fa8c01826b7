//! Directions of rounding.

/// The direction in which a number between two representable ones is rounded.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    Down,
    Up,
    Zero,
}

impl Rounding {
    /// The rounding that an instruction's immediate selects by two bits. A third bit selects that of `MXCSR`, which
    /// is to nearest.
    pub fn of(immediate: u8) -> Rounding {
        match immediate & 7 {
            1 => Rounding::Down,
            2 => Rounding::Up,
            3 => Rounding::Zero,
            _ => Rounding::Nearest,
        }
    }
}
