//! The effects of instructions, by families.

mod bits;
mod compare;
mod convert;
mod elementwise;
mod float;
mod gather;
mod integer;
mod lanes128;
mod masks;
mod moves;
mod permute;
mod scalar;
pub(crate) mod tiles;

use crate::cpu::Cpu;
use crate::fault::Outcome;
use crate::step::Step;

/// The effect of an instruction.
pub(crate) type Action = fn(&mut Cpu, &Step) -> Outcome<()>;

/// The action of an instruction, if it is interpreted.
pub(crate) fn find(step: &Step) -> Option<Action> {
    let families = [
        scalar::find,
        float::find,
        integer::find,
        bits::find,
        convert::find,
        compare::find,
        masks::find,
        moves::find,
        lanes128::find,
        permute::find,
        gather::find,
        tiles::find,
    ];
    families.into_iter().find_map(|find| find(step))
}
