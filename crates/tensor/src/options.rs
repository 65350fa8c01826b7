//! Options that PyTorch takes as keyword arguments.

use kiln_ir::OpError;

/// Options that can be invalid regardless of what they are applied to. A function checks them when it is called, a
/// layer when it is constructed.
pub trait Settings {
    /// Checks the options.
    ///
    /// # Errors
    /// The first invalid option.
    fn check(&self) -> Result<(), OpError> {
        Ok(())
    }
}

/// A struct of options: public fields with defaults, and a setter for each field. Fields in the parentheses are
/// required; a single required field converts into the struct. Tensors listed after the fields are optional.
#[doc(hidden)]
#[macro_export]
macro_rules! options {
    ($(#[$meta:meta])* $name:ident () { $($fields:tt)* }) => {
        $crate::options! { @struct $(#[$meta])* $name () { $($fields)* } }

        impl Default for $name {
            fn default() -> $name {
                $name::new()
            }
        }
    };
    (@struct $(#[$meta:meta])* $name:ident ($($(#[$about:meta])* $required:ident: $given:ty),*) {
        $($(#[$doc:meta])* $field:ident: $ty:ty = $default:expr,)*
        $(; $($(#[$what:meta])* $tensor:ident,)*)?
    }) => {
        $(#[$meta])*
        #[derive(Clone, Debug)]
        pub struct $name {
            $($(#[$about])* pub $required: $given,)*
            $($(#[$doc])* pub $field: $ty,)*
            $($($(#[$what])* pub $tensor: Option<$crate::Tensor>,)*)?
        }

        impl $name {
            /// The defaults.
            pub fn new($($required: impl Into<$given>),*) -> $name {
                $name {
                    $($required: $required.into(),)*
                    $($field: $default.into(),)*
                    $($($tensor: None,)*)?
                }
            }

            $(#[doc = concat!("These with another [`", stringify!($field), "`](Self::", stringify!($field), ").")]
            pub fn $field(mut self, $field: impl Into<$ty>) -> $name {
                self.$field = $field.into();
                self
            })*

            $($(#[doc = concat!("These with a [`", stringify!($tensor), "`](Self::", stringify!($tensor), "), or none.")]
            #[track_caller]
            pub fn $tensor(mut self, $tensor: impl $crate::MaybeTensor) -> $name {
                self.$tensor = $tensor.into_option();
                self
            })*)?
        }
    };
    ($(#[$meta:meta])* $name:ident ($(#[$about:meta])* $required:ident: $given:ty) { $($fields:tt)* }) => {
        $crate::options! {
            @struct $(#[$meta])* $name ($(#[$about])* $required: $given) { $($fields)* }
        }

        impl<T: Into<$given>> From<T> for $name {
            fn from($required: T) -> $name {
                $name::new($required)
            }
        }
    };
    ($(#[$meta:meta])* $name:ident ($($required:tt)+) { $($fields:tt)* }) => {
        $crate::options! { @struct $(#[$meta])* $name ($($required)+) { $($fields)* } }
    };
}

pub(crate) use options;
