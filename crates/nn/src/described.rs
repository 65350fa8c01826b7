//! Modules declared as in PyTorch: the type of a field, and its initial value, in one line.

use kiln_tensor::Result;

/// Declares a struct that is a [`Module`](trait@crate::Module), and its `new`. The arguments of `new` follow the
/// struct's name, and the initial value of a field follows its type. A field without a value holds the argument of its
/// name. A value may be a `Result`; `new` returns the first error.
///
/// ```
/// use kiln_nn::{Forward, GELU, LayerNorm, Linear, Module, Sequential, module, sequential};
/// use kiln_tensor::{DType, Result, Tensor};
///
/// module!(struct Block(d: usize, scale: f64) {
///     norm: LayerNorm = LayerNorm::new(d),
///     mlp: Sequential = sequential![Linear::new(d, 4 * d), GELU::new(), Linear::new(4 * d, d)],
///     scale: f64,
/// });
///
/// impl Forward for Block {
///     fn forward(&self, x: Tensor) -> Result<Tensor> {
///         Ok(self.mlp.call(self.norm.call(&x)) * self.scale + x)
///     }
/// }
///
/// let block = Block::new(8, 0.5)?;
/// assert_eq!(block.call(Tensor::zeros([2, 8], DType::F32)).shape()?, [2, 8]);
/// assert_eq!(block.norm.normalized_shape(), [8]);
/// # Ok::<(), kiln_tensor::Error>(())
/// ```
///
/// The result is the struct with `#[derive(Module)]`, a further field `hooks: Hooks`, and a constructor that makes the
/// fields in order. `pub`, docs and attributes are written as in any struct. A struct with type parameters, or with
/// another kind of constructor, must be written out.
#[macro_export]
macro_rules! module {
    (@into_field $field:ident) => {
        $field
    };
    (@into_field $field:ident $into_field:expr) => {
        $crate::IntoField::into_field($into_field)?
    };
    ($(#[$meta:meta])* $vis:vis struct $name:ident ($($arg:ident: $given:ty),* $(,)?) {
        $($(#[$about:meta])* $field_vis:vis $field:ident: $ty:ty $(= $into_field:expr)?),* $(,)?
    }) => {
        $(#[$meta])*
        #[derive($crate::Module)]
        #[module(path = $crate)]
        $vis struct $name {
            $($(#[$about])* $field_vis $field: $ty,)*
            hooks: $crate::Hooks,
        }

        impl $name {
            /// Makes the module with new parts.
            ///
            /// # Errors
            /// The first error of a part.
            $vis fn new($($arg: $given),*) -> $crate::Result<$name> {
                $(let $field: $ty = $crate::module!(@into_field $field $($into_field)?);)*
                Ok($name { $($field,)* hooks: $crate::Hooks::new() })
            }
        }
    };
}

/// A value from which a field of a [`module!`](crate::module) can be made: one of its type, a result of one, or an
/// option of a result.
#[diagnostic::on_unimplemented(message = "`{Self}` is neither a `{T}` nor a result of one")]
pub trait IntoField<T> {
    #[doc(hidden)]
    fn into_field(self) -> Result<T>;
}

impl<T> IntoField<T> for T {
    fn into_field(self) -> Result<T> {
        Ok(self)
    }
}

impl<T> IntoField<T> for Result<T> {
    fn into_field(self) -> Result<T> {
        self
    }
}

impl<T> IntoField<Option<T>> for Option<Result<T>> {
    fn into_field(self) -> Result<Option<T>> {
        self.transpose()
    }
}
