//! Graph to graph passes: one file each under [`passes`](mod@passes), one list, [`passes()`].
//!
//! A [`Rule`] looks at a node and returns a [`Patch`]: new nodes and the values that they replace. The driver checks
//! that facts are kept, verifies the graph around each patch in debug builds, and names the patch in the [`Report`].
//! It can stop after the n-th patch, so that [`first_wrong`] finds the patch that makes a result wrong.
//!
//! ```
//! use kiln_ir::{Builder, DType, Fact, Graph, GraphBuilder, Loc, Pw, Role};
//! use kiln_optimize::{Options, optimize};
//!
//! let mut graph = Graph::default();
//! let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
//! let x = b.input(Fact::new(DType::F32, [4]), Role::Data);
//! let one = b.pointwise(Pw::Exp, &[x])?;
//! let two = b.pointwise(Pw::Exp, &[x])?;
//! let y = b.pointwise(Pw::Add, &[one, two])?;
//! graph.add_output(y);
//!
//! let (graph, report) = optimize(graph, &Options::default())?;
//! assert_eq!(graph.len(), 3);
//! assert_eq!(report.fired[0].rule, "common_subexpression");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod arena;
mod bisect;
mod driver;
mod error;
mod options;
mod pass;
pub mod passes;
mod patch;
mod report;
mod rewriter;
mod sums;
mod view;

pub use bisect::first_wrong;
pub use driver::{optimize, optimize_observed, optimize_with};
pub use error::OptimizeError;
pub use options::Options;
pub use pass::{Pass, Rule, Run};
pub use passes::decompose::decompose;
pub use passes::passes;
pub use patch::{Patch, PatchBuilder};
pub use report::{Fired, Report};
pub use rewriter::Rewriter;
pub use view::View;
