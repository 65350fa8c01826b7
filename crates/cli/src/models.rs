//! The built-in networks and training steps: those of the example `kernels`.

#[path = "../../../examples/kernels/models/mod.rs"]
mod networks;

pub use networks::{Setup, Workload as Program};

/// Their names and what they are.
pub fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    networks::WORKLOADS
        .iter()
        .map(|(name, about, _)| (*name, *about))
}

/// Makes and compiles one, with random weights.
pub(crate) fn make(name: &str, setup: Setup) -> kiln::Result<Program> {
    match networks::WORKLOADS.iter().find(|w| w.0 == name) {
        Some((.., make)) => make(setup),
        None => Err(kiln::Error::invalid(
            "kiln",
            format!("there is no model {name}"),
        )),
    }
}
