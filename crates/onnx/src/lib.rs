//! ONNX models: <https://onnx.ai>.
//!
//! [`load`] reads a model. [`Model::run`] compiles it for the shapes of its inputs and runs it; [`Model::compile`]
//! compiles it for any; [`Model::record`] records it, for training or within another program. Operators are recorded as
//! Kiln's own operations, of which `ops` has a file for each kind. [`export()`] writes a compiled function as a model.
//! Nothing else in Kiln knows of ONNX.

mod call;
mod check;
mod data;
mod export;
mod fault;
mod files;
mod known;
mod loaded;
mod maps;
mod missing;
mod model;
mod nodes;
mod ops;
mod packed;
mod proto;
mod record;
mod scan;
mod scope;
mod tensor;
mod text;
mod value;

pub use data::{Data, Outputs};
pub use export::{Export, export};
pub use files::{read_value, write_value};
pub use loaded::{Kind, Port};
pub use maps::{Keys, Maps};
pub use model::{Model, load};
pub use packed::Packed;
pub use text::Text;
