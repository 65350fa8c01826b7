//! The intermediate representation: the op set with its one inference, the [`Graph`], its verifier and text form, and
//! the reference evaluation of every op, the oracle of all tests.
//!
//! ```
//! use kiln_ir::{Builder, DType, Fact, Graph, GraphBuilder, Loc, Op, Pw, Role, ops};
//!
//! let mut graph = Graph::default();
//! let mut b = GraphBuilder::new(&mut graph, Loc::UNKNOWN);
//! let x = b.input(Fact::new(DType::F32, [2, 3]), Role::Data);
//! let y = b.pointwise(Pw::Exp, &[x]).unwrap();
//! graph.add_output(y);
//! assert_eq!(graph.fact(y).to_string(), "f32[2, 3]");
//! ```

mod build;
mod error;
pub mod eval;
mod fact;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod graph;
pub mod linalg;
mod needs;
mod op;
pub mod ops;
pub mod pointwise;
pub mod text;
pub mod verify;

pub use build::{Builder, GraphBuilder};
pub use error::OpError;
pub use fact::{Fact, Facts, Shape, broadcast_shapes};
pub use graph::{Graph, Node, NodeId, Output, SymbolInfo, Target, Value};
pub use kiln_base::Role;
pub use kiln_base::{DType, Dim, Kind, Loc, Scalar, Sym};
pub use needs::Need;
pub use op::{Cost, Op, OpDef};
pub use pointwise::Pw;
