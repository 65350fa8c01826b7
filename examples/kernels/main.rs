//! How many kernels networks and training steps become.
//!
//! ```sh
//! cargo run --release --example kernels              # a table
//! cargo run --release --example kernels -- encoder   # every kernel of one of them
//! ```
//!
//! A kernel is a launch of the plan, and updates that start together are one launch. What depends on
//! weights alone is computed once per change of the weights, and counted apart.

mod models;

use kiln::{CompileOptions, Explain, Result};
use models::WORKLOADS;

fn main() -> Result<()> {
    let options = CompileOptions::default();
    let only = std::env::args().nth(1);
    if only.is_none() {
        println!("{:>7}  {:>8}  {:>7}", "kernels", "prepared", "patches");
    }
    for (name, about, make) in WORKLOADS {
        match &only {
            Some(only) if only == name => print!("{}", make(&options)?.program.explain()),
            Some(_) => {}
            None => println!(
                "{}  {name}: {about}",
                row(make(&options)?.program.explain())
            ),
        }
    }
    Ok(())
}

/// The numbers of a program.
fn row(explain: &Explain) -> String {
    let (run, prepared) = (explain.kernels_run(), explain.kernels_prepared());
    format!("{run:>7}  {prepared:>8}  {:>7}", explain.rewrites.len())
}
