//! The functions of the driver, as the CUDA driver API manual describes them.

// The manual documents the functions, and C callers pass the pointers that it asks for.
#![allow(
    missing_docs,
    non_snake_case,
    clippy::too_many_arguments,
    clippy::not_unsafe_ptr_arg_deref
)]

/// Defines exported functions, and `table`, their names with their addresses.
macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            pub extern "C" fn $name($($arg: $ty),*) -> crate::status::Status {
                crate::status::guard(stringify!($name), || $body)
            }
        )*

        /// The functions of this file.
        pub(crate) fn table() -> Vec<(&'static str, *const std::ffi::c_void)> {
            vec![$((stringify!($name), $name as *const std::ffi::c_void)),*]
        }
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

/// The address of the function called `name`, or of its newest version.
pub(crate) fn find(name: &str) -> Option<*const std::ffi::c_void> {
    let tables = [
        context::table(),
        cublaslt::table(),
        device::table(),
        event::table(),
        extra::table(),
        graph::table(),
        launch::table(),
        memory::table(),
        module::table(),
        nccl::table(),
        nvml::table(),
        pools::table(),
        stream::table(),
    ];
    let all: Vec<_> = tables.into_iter().flatten().collect();
    ["_v3", "_v2", ""].iter().find_map(|suffix| {
        let wanted = format!("{name}{suffix}");
        all.iter()
            .find(|(name, _)| *name == wanted)
            .map(|(_, address)| *address)
    })
}
