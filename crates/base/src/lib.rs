//! The vocabulary that all Kiln crates share: [`DType`]s, [`Scalar`]s, [`Dim`]s, source locations ([`Loc`]),
//! [`Machine`]s, the scalar primitives of kernels ([`prim`], [`special`]), the registries of [`custom`] operators and
//! of the groups of [`collective`] ones, the names of the [`linalg`] operators, and
//! [atomic replacement of files](mod@file).

/// Defines an enum whose values have names, and `ALL`: a slice, or an array if its length follows the enum's name.
macro_rules! named_enum {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $text:literal),* $(,)? }) => {
        named_enum! { @ $(#[$doc])* $name (&'static [$name] = &[$($name::$variant),*]) { $($variant = $text),* } }
    };
    ($(#[$doc:meta])* $name:ident[$n:literal] { $($variant:ident = $text:literal),* $(,)? }) => {
        named_enum! { @ $(#[$doc])* $name ([$name; $n] = [$($name::$variant),*]) { $($variant = $text),* } }
    };
    (@ $(#[$doc:meta])* $name:ident ($all:ty = $list:expr) { $($variant:ident = $text:literal),* }) => {
        $(#[$doc])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[allow(missing_docs)] // the names are the documentation
        pub enum $name { $($variant),* }

        impl $name {
            /// Every value, in declaration order.
            pub const ALL: $all = $list;

            /// Returns the short name, such as in emitted kernels.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text),* }
            }
        }
    };
}

pub mod collective;
pub mod custom;
mod dim;
mod dtype;
mod element;
mod features;
pub mod file;
mod float8;
mod instruction;
pub mod linalg;
mod loc;
mod machine;
pub mod prim;
mod role;
mod scalar;
mod scoped;
pub mod special;
mod threads;

pub use dim::{
    Dim, DimFactor, MAX_PARTS, NotADim, NotDivisible, Sym, SymbolValues, addressable, ceil,
    contiguous_strides, numel,
};
pub use dtype::{Compute, DType, Float, Kind};
pub use element::{Element, elements, round_float};
pub use features::{Feature, Features, LevelError};
pub use float8::Float8;
pub use instruction::Instruction;
pub use loc::Loc;
pub use machine::{Cpu, Gpu, Machine};
pub use role::Role;
pub use scalar::{Scalar, float_to_int, wrap_int};
pub use scoped::{Scoped, Slot};
pub use threads::{DefaultThreads, THREAD_VARIABLES};

/// Returns the text of a panic that was caught.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no text")
}

/// The deepest nesting of the bodies of loops and branches.
pub const MAX_DEPTH: usize = 64;
