//! Directions of rounding.

/// Where a number that lies between two goes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Nearest,
    Down,
    Up,
    Zero,
}

impl Rounding {
    /// As an instruction's immediate says: in two bits, unless a third asks for `MXCSR`'s, which is to the nearest.
    pub fn of(immediate: u8) -> Rounding {
        match immediate & 7 {
            1 => Rounding::Down,
            2 => Rounding::Up,
            3 => Rounding::Zero,
            _ => Rounding::Nearest,
        }
    }
}
