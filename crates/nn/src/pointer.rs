//! Pointers to modules.

use crate::copy::{BoxCopy, Copies};
use crate::members::Members;
use crate::{Forward, Hooks, Module};
use kiln_tensor::Result;
use std::sync::Arc;

/// A pointer to a module acts as that module.
macro_rules! pointers {
    ($($pointer:ident |$this:ident, $copies:ident| $copy:expr;)*) => {$(
        impl<M: Module + BoxCopy + ?Sized> Module for $pointer<M> {
            fn as_module(&self) -> &dyn Module {
                (**self).as_module()
            }

            fn members(&self) -> Members<'_> {
                (**self).members()
            }

            fn name(&self) -> &str {
                (**self).name()
            }

            fn extra_repr(&self) -> String {
                (**self).extra_repr()
            }

            fn hooks(&self) -> Option<&Hooks> {
                (**self).hooks()
            }

            fn reset_parameters(&self) -> Result<()> {
                (**self).reset_parameters()
            }

            fn copy_with(&self, $copies: &mut Copies) -> Result<Self> {
                let $this = self;
                $copy
            }
        }

        impl<I, O, M: Forward<I, O> + BoxCopy + ?Sized> Forward<I, O> for $pointer<M> {
            fn forward(&self, input: I) -> Result<O> {
                (**self).forward(input)
            }
        }
    )*};
}
pointers! {
    Box |this, copies| (**this).box_copy(copies);
    Arc |this, copies| copies.shared(this);
}
