//! The functions of the driver, as the CUDA driver API manual describes them.

// The manual documents the functions, and C callers pass the pointers that it asks for.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::too_many_arguments,
    clippy::not_unsafe_ptr_arg_deref
)]

/// Defines exported functions.
macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($arg: $ty),*) -> crate::status::Status {
                crate::status::guard(stringify!($name), || $body)
            }
        )*
    };
}

mod context;
mod cublaslt;
mod device;
mod event;
mod extra;
mod graph;
mod launch;
mod memory;
mod module;
mod nccl;
mod nvml;
mod pools;
mod stream;
