//! The effects of instructions, by families.

/// The action of a step from a table. Each line holds mnemonics and an action; in an action, `T` is the type after its
/// mnemonic.
macro_rules! actions {
    ($step:expr; $($($($mnemonic:ident)|+ $(: $t:ty)?),+ => $action:expr;)*) => {
        match $step.mnemonic {
            $($($($mnemonic)|+ => {
                $(type T = $t;)?
                #[allow(clippy::unnecessary_cast, reason = "some `T` is the target of the cast")]
                let action: $crate::cpu::Action = $action;
                Some(action)
            })+)*
            _ => None,
        }
    };
}

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
mod tiles;

use crate::cpu::Action;
use crate::step::Step;

/// The action of an instruction, if it is interpreted.
pub(crate) fn action(step: &Step) -> Option<Action> {
    let families = [
        scalar::action,
        float::action,
        integer::action,
        bits::action,
        convert::action,
        compare::action,
        masks::action,
        moves::action,
        lanes128::action,
        permute::action,
        gather::action,
        tiles::action,
    ];
    families.into_iter().find_map(|action| action(step))
}
