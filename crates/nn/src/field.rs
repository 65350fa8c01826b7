//! The types of a module's fields.

use crate::copy::Copies;
use crate::members::Members;
use crate::{Hooks, Mode, Module};
use kiln_tensor::{DType, Error, ErrorKind, IntList, Result, Var};
use std::marker::PhantomData;

/// The type of a field of a module. It is implemented for modules, [`Var`], [`Mode`], [`Hooks`], plain data, and
/// `Option` and `Vec` of them. The derive uses it to add the field to the module and to copy it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a module nor a `Var` nor plain data",
    note = "derive `Module` for it, or mark the field `#[skip]`"
)]
pub trait Field: Sized {
    /// Adds the members of the field `name`.
    fn add_to<'a>(&'a self, name: &str, members: &mut Members<'a>);

    /// Returns the value of this field in a copy of the module.
    ///
    /// # Errors
    /// As [`Module::deep_copy`].
    fn copy_with(&self, copies: &mut Copies) -> Result<Self>;

    /// The module's hooks, if this field holds them.
    fn hooks(&self) -> Option<&Hooks> {
        None
    }
}

impl<M: Module> Field for M {
    fn add_to<'a>(&'a self, name: &str, members: &mut Members<'a>) {
        members.child(name, self);
    }

    fn copy_with(&self, copies: &mut Copies) -> Result<M> {
        Module::copy_with(self, copies)
    }
}

impl Field for Var {
    fn add_to<'a>(&'a self, name: &str, members: &mut Members<'a>) {
        if self.is_parameter() {
            members.parameter(name, self);
        } else {
            members.buffer(name, self);
        }
    }

    fn copy_with(&self, copies: &mut Copies) -> Result<Var> {
        copies.var(self)
    }
}

impl Field for Mode {
    fn add_to<'a>(&'a self, _: &str, members: &mut Members<'a>) {
        members.mode(self);
    }

    fn copy_with(&self, _: &mut Copies) -> Result<Mode> {
        Ok(self.clone())
    }
}

impl Field for Hooks {
    fn add_to<'a>(&'a self, _: &str, _: &mut Members<'a>) {}

    fn copy_with(&self, copies: &mut Copies) -> Result<Hooks> {
        Hooks::copy_with(self, copies)
    }

    fn hooks(&self) -> Option<&Hooks> {
        Some(self)
    }
}

impl<F: Field> Field for Option<F> {
    fn add_to<'a>(&'a self, name: &str, members: &mut Members<'a>) {
        if let Some(field) = self {
            field.add_to(name, members);
        }
    }

    fn copy_with(&self, copies: &mut Copies) -> Result<Option<F>> {
        self.as_ref()
            .map(|field| field.copy_with(copies))
            .transpose()
    }
}

impl<F: Field> Field for Vec<F> {
    fn add_to<'a>(&'a self, name: &str, members: &mut Members<'a>) {
        for (i, field) in self.iter().enumerate() {
            field.add_to(&format!("{name}.{i}"), members);
        }
    }

    fn copy_with(&self, copies: &mut Copies) -> Result<Vec<F>> {
        self.iter().map(|field| field.copy_with(copies)).collect()
    }
}

impl<F: Field, const N: usize> Field for [F; N] {
    fn add_to<'a>(&'a self, name: &str, members: &mut Members<'a>) {
        for (i, field) in self.iter().enumerate() {
            field.add_to(&format!("{name}.{i}"), members);
        }
    }

    fn copy_with(&self, copies: &mut Copies) -> Result<[F; N]> {
        let fields: Result<Vec<F>> = self.iter().map(|field| field.copy_with(copies)).collect();
        // The length is the same as here.
        fields?.try_into().map_err(|_| {
            Error::at_caller(
                ErrorKind::Internal,
                "deep_copy",
                "an array of another length",
            )
        })
    }
}

macro_rules! plain_data {
    ($($ty:ty)*) => {
        $(impl Field for $ty {
            fn add_to<'a>(&'a self, _: &str, _: &mut Members<'a>) {}

            #[allow(clippy::clone_on_copy)]
            fn copy_with(&self, _: &mut Copies) -> Result<$ty> {
                Ok(self.clone())
            }
        })*
    };
}
plain_data!(bool u8 u16 u32 u64 usize i8 i16 i32 i64 isize f32 f64 char String &'static str DType IntList);

impl<T> Field for PhantomData<T> {
    fn add_to<'a>(&'a self, _: &str, _: &mut Members<'a>) {}

    fn copy_with(&self, _: &mut Copies) -> Result<PhantomData<T>> {
        Ok(PhantomData)
    }
}
