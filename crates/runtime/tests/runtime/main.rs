//! Hand-built plans against straightforward reference loops, at every CPU level of this machine.

mod accesses;
mod algorithms;
mod bodies;
mod build;
mod compiled;
mod concurrency;
mod contractions;
// Emulated, which is the same on every processor.
#[cfg(not(portable))]
mod cuda;
mod custom;
mod damage;
mod executor;
mod gpu;
mod guards;
mod hostile;
// The interpreter runs machine code of x86-64.
#[cfg(not(portable))]
mod interpreted;
mod oracle;
mod ordered;
mod pointwise;
mod products;
mod reductions;
mod schedules;
